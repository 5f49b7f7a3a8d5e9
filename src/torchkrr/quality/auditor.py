"""Look at labeled data: labels that are likely wrong, outliers, and near duplicates."""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import type_of_target
from torch import Tensor

from .._checks import check_choice
from .._extras import import_extra
from .._files import replacing
from ..errors import InputError
from ..estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from ..estimators.base import KernelRidgeBase
from ..estimators.candidates import some_of, usual_map
from ..estimators.encoding import Array
from ..estimators.left_out import LeftOut
from ..estimators.predictor import SMALLEST, Predictor
from ..neighbors import nearest
from .duplicates import DuplicateGroup, duplicate_groups, groups_of_pairs, near_pairs
from .noise import ClassNoise, discoveries, fit_class_noise, most_wrong, tail_shares

RATE = 0.25
OUTLIER_RATE = 0.1
DUPLICATE_DISTANCE = 0.5
MOST_SCORES = 1 << 28  # numbers: 2 GB
FEWEST_ROWS = 5
Task = Literal["classification", "regression"]


class ClassSummary(NamedTuple):
    """What the audit says of the rows that were given one label."""

    label: Any
    rows: int
    issues: int
    share_wrong: float  # estimated, of the labels
    confused_with: Any  # the class that most of the wrong ones are taken to be; None where there are none


class Evidence(NamedTuple):
    """The rows behind what is predicted for one row without it, those of the largest weight first."""

    rows: Array
    weights: Array


@dataclass(eq=False)
class Audit:
    """What `torchkrr.audit` found. Rows are in the order in which they were given.

    Attributes:
        task: `"classification"` or `"regression"`.
        given_label: `(N,)`, of numbers `(N,)` or `(N, C)`.
        label_quality: `(N,)`, the probability that a label is right, or the share of right targets that are as far off.
        is_label_issue: `(N,)` bool.
        rate: the expected share of right labels among the issues, under the noise model.
        suggested_label: the likeliest class given the row and its label, of an issue the likeliest other one; of numbers the
            prediction without the row.
        outlier_score: `(N,)` from 0, far from all others, to 1.
        is_outlier_issue: `(N,)` bool.
        near_duplicates: groups of rows that are nearly the same; those whose labels differ come first.
        probabilities: of classes `(N, C)`, in the order of `classes`: of each class for the row, whatever its label.
        classes: `(C,)`.
        noise: the noise model of classes, with `transition` `(C, C)`: how often a row of one is labeled another.
        error_indicator: `(N,)` the power function at each row without it.
        ids: names of the rows, if they were given.
        estimator: the fitted head that all of it comes from.
    """

    task: Task
    given_label: Array
    label_quality: Array
    is_label_issue: Array
    suggested_label: Array
    outlier_score: Array
    is_outlier_issue: Array
    near_duplicates: list[DuplicateGroup]
    error_indicator: Array
    rate: float
    estimator: KernelRidgeBase
    ids: Array | None = None
    classes: Array | None = None
    probabilities: Array | None = None
    noise: ClassNoise | None = None
    left_out: LeftOut | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.label_quality)

    def __repr__(self) -> str:
        disagreeing = sum(group.disagrees for group in self.near_duplicates)
        return (
            f"Audit({len(self)} rows: {int(self.is_label_issue.sum())} label issues at an expected false discovery rate of "
            f"{self.rate:.2g}, {int(self.is_outlier_issue.sum())} outliers, {len(self.near_duplicates)} groups of near "
            f"duplicates, {disagreeing} of them with different labels)"
        )

    @property
    def ranked(self) -> Array:
        """All rows, the most suspicious first."""
        return np.argsort(self.label_quality, kind="stable")

    @property
    def is_near_duplicate(self) -> Array:
        """`(N,)` bool."""
        found = np.zeros(len(self), dtype=bool)
        for group in self.near_duplicates:
            found[group.rows] = True
        return found

    @cached_property
    def summary(self) -> list[ClassSummary]:
        """Of each class, the one with the largest share of wrong labels first; nothing for numbers."""
        found = []
        for label in [] if self.classes is None else self.classes.tolist():
            mine = self.given_label == label
            issues = mine & self.is_label_issue
            names, counts = np.unique(self.suggested_label[issues], return_counts=True)
            other = names.tolist()[int(counts.argmax())] if len(names) else None
            wrong = float(1 - self.label_quality[mine].mean()) if mine.any() else 0.0
            found.append(ClassSummary(label, int(mine.sum()), int(issues.sum()), wrong, other))
        return sorted(found, key=lambda one: -one.share_wrong)

    @property
    def confusion(self) -> Array:
        """How many issues have each given (row) and suggested (column) label, `(C, C)`."""
        if self.classes is None:
            raise InputError("Targets that are numbers have no confusion matrix.")
        count = len(self.classes)
        given, other = (
            np.searchsorted(self.classes, labels[self.is_label_issue]) for labels in (self.given_label, self.suggested_label)
        )
        found: Array = np.bincount(given * count + other, minlength=count**2).reshape(count, count)
        return found

    def evidence(self, row: int, n_rows: int = 10) -> Evidence:
        """Which other rows say what a row should be, and with what weight."""
        assert self.left_out is not None
        predictor = self.estimator.predictor_
        center = int(predictor.centers.of_row[row])
        if center < 0:
            raise InputError(f"Row {row} has no weight, so it was not left out.")
        centers, weights = self.left_out.behind(center, n_rows)
        return Evidence(predictor.first_rows.numpy()[centers], weights)

    def to_frame(self) -> Any:
        """A pandas DataFrame with the columns of cleanlab's Datalab, a row for each row."""
        pandas = import_extra("pandas", "A frame", extra="cli")
        return pandas.DataFrame(self._columns(), index=None if self.ids is None else pandas.Index(self.ids, name="id"))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of `to_frame`, the most suspicious row first, whole or not at all."""
        names = np.arange(len(self)) if self.ids is None else self.ids
        columns = {"row" if self.ids is None else "id": names, **self._columns()}
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            listed = [_plain(column) for column in columns.values()]
            writer.writerows([column[row] for column in listed] for row in self.ranked.tolist())

    def to_html(self, path: str | os.PathLike[str], *, shown: Any = None, title: str = "Audit") -> None:
        """Write a report, one file that works offline, whole or not at all.

        Args:
            shown: what a reader sees of a row: a sequence of texts or of images (of Pillow, or arrays `(H, W, 3)` of bytes),
                or a function of the row number; `None` shows its number.
            title: of the page.
        """
        from .report import audit_page

        text = audit_page(self, shown, title)
        with replacing(path) as temporary:
            pathlib.Path(temporary).write_text(text, encoding="utf-8")

    def _columns(self) -> dict[str, Any]:
        sets: list[list[int]] = [[] for _ in range(len(self))]
        for group in self.near_duplicates:
            rows = group.rows.tolist()
            for row in rows:
                sets[row] = [other for other in rows if other != row]
        single = self.given_label.ndim == 1
        return {
            "is_label_issue": self.is_label_issue,
            "label_score": self.label_quality,
            "given_label": self.given_label if single else list(self.given_label),
            "predicted_label": self.suggested_label if single else list(self.suggested_label),
            "is_outlier_issue": self.is_outlier_issue,
            "outlier_score": self.outlier_score,
            "is_near_duplicate_issue": self.is_near_duplicate,
            "near_duplicate_sets": sets,
        }


def audit(
    data: Any,
    labels: Any = None,
    *,
    groups: Any = None,
    ids: Any = None,
    task: Task | Literal["auto"] = "auto",
    rate: float = RATE,
    duplicate_distance: float = DUPLICATE_DISTANCE,
    progress: bool = False,
) -> Audit:
    r"""Find labels that are likely wrong, outliers and near duplicates; nothing is trained or cross-validated.

    Every row is predicted without itself, without its group and without its near duplicates, by the head of
    `torchkrr.estimators` (leave-one-out in closed form). How these predictions say which labels are wrong, and what the rate
    of `is_label_issue` means, is told in `torchkrr.quality.noise`: for classes a class-conditional noise model, for numbers
    residuals with a Student's distribution.

    Args:
        data: features `(N, D)`: an array, a tensor, a sparse matrix or a frame; or a fitted estimator of this package, which
            is asked about its own training rows.
        labels: `(N,)` labels of any kind, or numbers; with an estimator they are known.
        groups: `(N,)` names; rows of one group, such as pictures of one thing, never vouch for each other.
        ids: `(N,)` names of the rows, all different.
        task: `"auto"` takes numbers with fractions for targets, and all else for classes.
        rate: the largest share of right labels among the issues that is accepted; fewer rows are issues where the expected
            F1 is better then.
        duplicate_distance: near duplicates are nearer than chance would have it, and at most this share of the distance to
            the tenth nearest row apart; 0 finds exact copies alone.
        progress: show what is going on.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> y[[3, 120]] = 2, 0  # two wrong labels
        >>> found = audit(X, y)
        >>> sorted(found.ranked[:2].tolist()), found.suggested_label[[3, 120]].tolist()
        ([3, 120], [0, 2])
    """
    if not 0 < rate < 1:
        raise InputError(f"rate must lie between 0 and 1, such as {RATE}, got {rate!r}.")
    if not duplicate_distance >= 0:
        raise InputError(f"duplicate_distance must not be negative, got {duplicate_distance!r}.")
    if isinstance(data, KernelRidgeBase):
        if labels is not None or groups is not None or ids is not None:
            raise InputError("A fitted estimator knows its labels, groups and ids. Give it alone, or features instead.")
        estimator = data
    else:
        if labels is None:
            raise InputError("audit needs labels: audit(features, labels), or a fitted estimator alone.")
        estimator = _fitted(data, labels, groups, ids, task, progress)
    return _Auditor(estimator, rate, duplicate_distance, progress).audit()


def _fitted(features: Any, labels: Any, groups: Any, ids: Any, task: str, progress: bool) -> KernelRidgeBase:
    check_choice("task", task, ("auto", "classification", "regression"))
    check_consistent_length(features, labels)
    if len(labels) < FEWEST_ROWS:
        raise InputError(f"An audit compares rows with each other and needs at least {FEWEST_ROWS}, got {len(labels)}.")
    plain = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    missing = [row for row, label in enumerate(plain.tolist()) if label is None or label != label]
    if missing:
        raise InputError(f"The label of row {missing[0]} is missing, and {len(missing) - 1} more. Leave such rows out.")
    if task == "auto":
        task = "regression" if type_of_target(plain, input_name="labels").startswith("continuous") else "classification"
    if task == "regression":
        regressor = LocalKernelRidgeRegressor(verbose=int(progress))
        return cast(KernelRidgeBase, regressor.fit(features, plain, groups=groups, ids=ids))
    count = len(np.unique(column_or_1d(plain)))
    if count < 2:
        raise InputError(f"All labels are {plain.ravel()[0]!r}. Without a second class nothing contradicts a label.")
    if count * len(plain) > MOST_SCORES:
        raise InputError(
            f"{len(plain):,} rows of {count:,} classes make {count * len(plain):,} scores, more than the {MOST_SCORES:,} "
            "that fit into memory. Audit groups of similar classes one by one, or numbers with task='regression'."
        )
    classifier = LocalKernelRidgeClassifier(verbose=int(progress))
    return cast(KernelRidgeBase, classifier.fit(features, plain, groups=groups, ids=ids))


class _Auditor:
    """A fitted estimator whose rows are looked at."""

    def __init__(self, estimator: KernelRidgeBase, rate: float, duplicate_distance: float, progress: bool) -> None:
        predictor = getattr(estimator, "predictor_", None)
        if predictor is None:
            raise InputError("The estimator is not fitted. Call fit first, or audit(features, labels).")
        predictor.check_whole()
        if getattr(estimator, "_multilabel", False):
            raise InputError("audit takes one label for each row. Audit the columns of several labels one by one.")
        self.estimator: Any = estimator
        self.rate = rate
        points = predictor.centers.points
        # Not in the metric of the kernel: a learned one may see no difference, and ranks of values see too much of it.
        compared = usual_map(some_of(points))(points.double()).float()
        self.duplicates = self._duplicates(predictor, near_pairs(compared, duplicate_distance))
        self.predictor = _without_vouching(predictor, self.duplicates)
        self.of_row = self.predictor.centers.of_row
        with estimator._threads():
            self.left_out = LeftOut(self.predictor, progress=progress)

    def audit(self) -> Audit:
        classes = getattr(self.estimator, "classes_", None)
        found = self._numbers() if classes is None else self._classes(classes)
        indicator, score, outliers = self._outliers()
        quality, issues = found["label_quality"], found["is_label_issue"]
        groups = duplicate_groups(self.duplicates, found["given_label"] if found["given_label"].ndim == 1 else None)
        return Audit(
            task="regression" if classes is None else "classification",
            outlier_score=score,
            is_outlier_issue=outliers,
            near_duplicates=groups,
            error_indicator=indicator,
            rate=self.rate if classes is None else float(quality[issues].mean()) if issues.any() else 0.0,
            estimator=self.estimator,
            ids=self.estimator.ids_,
            classes=classes,
            left_out=self.left_out,
            **found,
        )

    def _of_rows(self, of_centers: Tensor) -> Tensor:
        """What is known of centers, for each row; rows of weight zero get what is known of the first."""
        return of_centers[self.of_row.clamp_min(0)]

    def _classes(self, classes: Array) -> dict[str, Any]:
        known = self.estimator._known_classes()
        places = known.nonzero().squeeze(1)
        scores = self._of_rows(self.left_out.scores)
        number_of = known.cumsum(0) - 1
        given = number_of[self.predictor.rows.values.argmax(1)]
        noise = fit_class_noise(scores[:, places], given, self.predictor.rows.weights)
        quality = noise.quality(given)
        issues = most_wrong(quality, self.rate)
        others = noise.posterior.clone()
        others[torch.from_numpy(issues), given[torch.from_numpy(issues)]] = -1.0
        names = classes[places.numpy()]
        probabilities = torch.zeros(len(given), len(classes), dtype=torch.float64)
        probabilities[:, places] = noise.calibration.probabilities(scores[:, places])
        return {
            "given_label": names[given.numpy()],
            "label_quality": quality,
            "is_label_issue": issues,
            "suggested_label": names[others.argmax(1).numpy()],
            "probabilities": probabilities.numpy(),
            "noise": noise,
        }

    def _numbers(self) -> dict[str, Any]:
        predictor, values = self.predictor, self.predictor.rows.values
        scores = self._of_rows(self.left_out.scores)
        deviations = ((values - scores) / self._deviations()).numpy()
        shares = np.stack([tail_shares(column) for column in deviations.T], axis=1)
        quality = np.minimum(1.0, shares.min(1) * shares.shape[1])
        given, suggested = predictor.in_units(values).numpy(), predictor.in_units(scores).numpy()
        single = self.estimator._one_dimensional
        return {
            "given_label": given[:, 0] if single else given,
            "label_quality": quality,
            "is_label_issue": discoveries(quality, self.rate),
            "suggested_label": suggested[:, 0] if single else suggested,
        }

    @torch.no_grad()
    def _deviations(self) -> Tensor:
        """Of a new observation at each row, `(N, C)`; the residual of a row takes no part in its own."""
        predictor, residuals = self.predictor, self.predictor.residuals
        embedded = predictor.members[0].kernel.embed(predictor.centers.points)
        count = min(residuals.nearby + 1, len(residuals.points))
        near = nearest(embedded, residuals.points, count)
        own = predictor.sample.which[near] == torch.arange(len(near)).unsqueeze(1)
        near = near.gather(1, own.to(torch.uint8).argsort(dim=1, stable=True)[:, : max(1, count - 1)])
        return self._of_rows(residuals.std(near, self.left_out.variance)).clamp_min(SMALLEST)

    def _outliers(self) -> tuple[Array, Array, Array]:
        """Error indicators, scores, and which rows are outliers."""
        excess = self.left_out.variance - self.predictor.ridge / self.predictor.centers.weights
        indicator = excess.clamp_min(0).sqrt()
        logs = indicator.clamp_min(1e-9).log().numpy()
        middle = np.median(logs)
        beyond = logs - middle
        shares = np.where(beyond > 0, tail_shares(beyond, beyond[beyond > 0]), 1.0)
        found = discoveries(shares / 2, OUTLIER_RATE)  # half of all rows are beyond the middle
        rows = self.of_row.clamp_min(0).numpy()
        return indicator.numpy()[rows], shares[rows], found[rows]

    def _duplicates(self, predictor: Predictor, pairs: Tensor) -> Array:
        """The number of the group of each row, `(N,)`; -1 for rows of weight zero, and rows that are alone in theirs."""
        of_center = groups_of_pairs(pairs, len(predictor.centers.points))
        of_row = predictor.centers.of_row.numpy()
        found: Array = np.where(of_row >= 0, of_center[np.maximum(of_row, 0)], -1)
        sizes = np.bincount(found[found >= 0], minlength=int(found.max()) + 1)
        return np.where(sizes[found] > 1, found, -1)


def _without_vouching(predictor: Predictor, duplicates: Array) -> Predictor:
    """The same predictor, whose near duplicates are in one group, and in that of the caller's groups."""
    groups = predictor.rows.groups.numpy()
    if not (duplicates >= 0).any():
        return predictor
    count = len(groups)
    pairs = [_chained(names) for names in (groups, duplicates)]
    together = groups_of_pairs(torch.from_numpy(np.concatenate(pairs, axis=1)), count)
    sizes = np.bincount(together)
    merged = torch.from_numpy(np.where(sizes[together] > 1, together, -1).astype(np.int64))
    choices = predictor.members, predictor.offset, predictor.unit, predictor.seed, predictor.prior
    other = Predictor(predictor.rows._replace(groups=merged), *choices)
    other.fitted_prior = predictor.fitted_prior  # groups have no part in it, and it takes seconds where rows are many
    return other


def _chained(names: Array) -> Array:
    """Pairs `(2, P)` of rows that follow each other among those of one name; negative names are no names."""
    order = np.argsort(names, kind="stable")
    order = order[names[order] >= 0]
    same = names[order][1:] == names[order][:-1]
    found: Array = np.stack((order[:-1][same], order[1:][same]))
    return found


def _plain(column: Any) -> Sequence[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else column  # type: ignore[no-any-return]
