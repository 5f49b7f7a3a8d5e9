"""Base class of the estimators, and what they check."""

from __future__ import annotations

import importlib
import math
import numbers
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from .. import _threads
from .._checks import nearest_name
from ..errors import InputError, KernelRidgeWarning, ShapeError
from ..kernels import Kernel
from ..neighbors import nearest
from ..tuning.scores import Loss
from .candidates import Metric, Request
from .encoding import ROUNDING, Array, Centers, Rows, TableEncoder, different_points, fit_encoder
from .predictor import FEWEST, Predictor
from .prior import ModelPrior
from .reading import on_cpu, read_table, read_weights
from .selection import choose, choose_for_model, read_request
from .storage import load_estimator, save_estimator

# What little is done gains little from a second thread, and loses much where cores are busy: each operation waits for both.
FEW_ROWS = 2000
FEW_PAIRS = 2_000_000  # of query and training row


@dataclass(frozen=True)
class Explanation:
    """Training rows behind each prediction, largest weight first; it can be unpacked as `(indices, weights)`.

    The prediction is `prior + (weights * (y - y_prior)[indices]).sum(1)`, with what the prior predicts for each training row
    without it, `y_prior`; without a prior both are zero. Of a classifier it is the scores, before the calibration.
    """

    indices: Array  # (Q, R) rows, in the order they were given
    weights: Array  # (Q, R) zero where fewer rows took part
    prior: Array  # (Q, C) the share of the prior
    ids: Array | None  # (Q, R) the names of the rows, if they were given

    def __iter__(self) -> Iterator[Array]:
        return iter((self.indices, self.weights))


def _without_idle_outputs(centers: Centers) -> Centers:
    """Without outputs that are zero everywhere, such as classes that are still to come."""
    some = centers.values.abs().amax(0) > 0
    return centers if bool(some.all() | ~some.any()) else centers._replace(values=centers.values[:, some])


@dataclass(eq=False, repr=False)
class Parameters:
    """What all estimators are made from; scikit-learn reads the names off the constructor."""

    n_neighbors: int | str = "auto"
    _: KW_ONLY
    alpha: float | str = "auto"
    kernel: Kernel | str = "auto"
    metric: Metric = "auto"
    prior: Any = "auto"
    categorical_features: Any = "from_dtype"
    warm_start: bool = False
    random_state: Any = 0
    n_jobs: int | None = None
    verbose: int = 0


class KernelRidgeBase(Parameters, BaseEstimator):
    """Fitting, growing, shrinking and explaining; a subclass reads `y` and says what is predicted.

    Attributes:
        encoder_: how each column of the table is encoded.
        predictor_: the training rows, and the ensemble of kernels (its `members`) that predicts from them.
        candidates_: what was tried, the best first, with its loss on rows that were left out.
    """

    _dense = False
    _loss: Loss = "mse"
    _multilabel = False
    _remedy = ""
    _ids: Array | None = None
    _group_names: dict[Any, int]
    encoder_: TableEncoder
    predictor_: Predictor
    _dtype: torch.dtype

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, ids: Any = None) -> Any:
        """Choose what is `"auto"` and keep the rows.

        Args:
            X: table, `(n, D)`: an array, a tensor, a sparse matrix (made dense), or a frame of pandas or polars; NaN is a
                missing value, half precision becomes float32.
            y: of a regressor, targets `(n,)` or `(n, C)`; of a classifier, labels `(n,)`, or `(n, C)` zeros and ones (or
                a sparse matrix of them) where a row may have several labels.
            sample_weight: `(n,)`; a row of weight two counts as two rows, its alpha is halved.
            groups: `(n,)` names; rows of one group, such as pictures of one thing, never vouch for each other: whatever is
                chosen or calibrated by leaving a row out leaves its group out.
            ids: `(n,)` names of the rows, all different, for `explain` and `forget`.
        """
        return self._fit(X, y, sample_weight, groups=groups, ids=ids)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        classes: Any = None,
        *,
        groups: Any = None,
        ids: Any = None,
        grow: bool = False,
    ) -> Any:
        """Fit; or `grow`, with these rows beside those there are, if there are any."""
        known = hasattr(self, "predictor_")
        keep = known and (grow or bool(self.warm_start))
        y, sample_weight, groups = on_cpu(y), on_cpu(sample_weight), on_cpu(groups)
        with self._threads():
            table = read_table(self, X, reset=not keep)
            given_weights = read_weights(sample_weight, len(table))
            given_ids = self._read_ids(ids, len(table), grow=known and grow)
            group_numbers = self._read_groups(groups, len(table), reset=not (known and grow))
            # The last that can fail: it may add classes. Copies: the arrays of the caller may change, or be read-only.
            values = torch.tensor(self._read_values(table, y, reset=not keep, classes=classes))
            request = None
            if not (known and grow):
                request = read_request(self, dense=self._dense, loss=self._loss, multilabel=self._multilabel)
            weights = torch.tensor(given_weights * self._class_weights(values))
            if request is None or keep:
                points = torch.tensor(self.encoder_.encode(table), dtype=self._dtype)
            else:
                given = table, values.numpy(), weights.numpy(), self.categorical_features
                names = getattr(self, "feature_names_in_", None)
                own_model = isinstance(request.prior, ModelPrior)
                self.encoder_, encoded = fit_encoder(*given, names=names, seed=request.seed, all_columns=own_model)
                self._dtype = torch.float32 if getattr(table, "dtype", None) == np.float32 else torch.float64
                points = torch.tensor(encoded, dtype=self._dtype)
            model = self.predictor_.prior if request is None or keep else request.prior
            if isinstance(model, ModelPrior):
                values = self._targets_of_model(model.scores(points), values)
            rows = Rows(points, values, weights, group_numbers)
            with _threads.threads(1) if len(table) <= FEW_ROWS else nullcontext():
                self._learn(rows, request, keep, model)
                self._ids = given_ids
                self._describe()
                if request is not None:
                    self._calibrate()
        neighbors = self.predictor_.num_neighbors()
        if self._dense and neighbors is not None:
            warnings.warn(
                f"{type(self).__name__} has {len(self.predictor_.centers.points)} different rows, too many for one "
                f"factorization: each prediction uses the {neighbors} nearest. LocalKernelRidgeRegressor chooses how many.",
                KernelRidgeWarning,
                stacklevel=3,
            )
        return self

    def _learn(self, rows: Rows, request: Request | None, keep: bool, model: Any) -> None:
        """The predictor: with these rows too where there is no request, with what was chosen before, or chosen anew."""
        if request is None or keep:
            predictor = self.predictor_
            rows = rows._replace(values=(rows.values - predictor.offset) / predictor.unit)
            if request is None:
                self.predictor_ = predictor.append(rows)
            else:
                choices = predictor.members, predictor.offset, predictor.unit, request.seed, predictor.prior
                self.predictor_ = Predictor(rows, *choices)
            return
        offset, unit = self._unit(different_points(rows))
        rows = rows._replace(values=(rows.values - offset) / unit)
        predictor = Predictor(rows, (), offset, unit, request.seed, model if isinstance(model, ModelPrior) else None)
        if predictor.prior is None:
            choice = choose(_without_idle_outputs(predictor.centers), request, predictor.groups)
            predictor.members, predictor.prior = choice.members, choice.prior
            if choice.fitted is not None and choice.fitted.spectrum.values.shape == rows.values.shape:
                predictor.fitted_prior = choice.fitted  # seconds, where rows and columns are many
        else:
            choice = choose_for_model(predictor.left_over, request)
            predictor.members = choice.members
        self.predictor_ = predictor
        self.candidates_ = sorted(choice.tried.items(), key=lambda one: one[1])

    def _read_groups(self, groups: Any, count: int, *, reset: bool) -> Tensor:
        if reset:
            self._group_names = {}
        if groups is None:
            return torch.full((count,), -1)
        names = column_or_1d(groups)
        check_consistent_length(names, np.empty(count))
        numbers = [self._group_names.setdefault(name, len(self._group_names)) for name in names.tolist()]
        return torch.tensor(numbers)

    def _read_ids(self, ids: Any, count: int, *, grow: bool) -> Array | None:
        before = self._ids if grow else None
        if ids is None:
            if before is not None:
                raise InputError("The rows of this estimator have ids. Give ids of the new rows too.")
            return None
        if grow and before is None:
            raise InputError("The rows of this estimator have no ids, so new ones cannot have any.")
        names = np.asarray(ids, dtype=object)
        if names.shape != (count,):
            raise ShapeError(f"ids must have one entry for each of {count} rows, got the shape {names.shape}.")
        names = names if before is None else np.concatenate((before, names))
        repeated = [name for name, number in Counter(names.tolist()).items() if number > 1]
        if repeated:
            raise InputError(f"ids must be different, but {repeated[0]!r} is there twice. Forget the earlier row first.")
        return names

    def _class_weights(self, values: Tensor) -> Array | float:
        return 1.0

    def _targets_of_model(self, scores: Tensor, values: Tensor) -> Tensor:
        """What a row is corrected to, from the scores of a model of the caller's own, `(n, C)` each."""
        if scores.shape != values.shape:
            remedy = self._remedy if scores.shape[1] > values.shape[1] else ""
            raise ShapeError(f"The prior predicts {scores.shape[1]} outputs, but y has {values.shape[1]}.{remedy}")
        return values

    def _calibrate(self) -> None:
        """Whatever is learned from the fitted predictor."""

    def forget(self, rows: Any = None, *, ids: Any = None) -> Any:
        """Drop training rows; predictions are exactly those without them from the next one on.

        Args:
            rows: their numbers, in the order in which rows were given; those after a forgotten one move up.
            ids: their names instead.
        """
        check_is_fitted(self)
        self.predictor_.check_whole()
        if (rows is None) == (ids is None):
            raise InputError("Give rows or ids.")
        return self._forget(self._rows_named(ids) if rows is None else rows)

    def _forget(self, rows: Any) -> Any:
        self.predictor_.check_whole()
        which = np.atleast_1d(np.asarray(rows))
        count = len(self.predictor_.rows.points)
        if which.dtype.kind not in "iu" or which.ndim != 1:
            raise InputError(f"rows must be row numbers, an int or a list of ints, got {rows!r}.")
        if len(which) and (which.min() < 0 or which.max() >= count):
            raise InputError(f"rows must lie between 0 and {count - 1}, got {which.min()} to {which.max()}.")
        self.predictor_ = self.predictor_.forget(torch.from_numpy(which.astype(np.int64)))
        if self._ids is not None:
            self._ids = np.delete(self._ids, which)
        self._describe()
        return self

    def _rows_named(self, ids: Any) -> list[int]:
        if self._ids is None:
            raise InputError("The rows of this estimator have no ids. Give them to fit, or forget row numbers.")
        places = {name: at for at, name in enumerate(self._ids.tolist())}
        names = [ids] if isinstance(ids, str) or np.ndim(ids) == 0 else list(ids)
        unknown = [name for name in names if name not in places]
        if unknown:
            near = nearest_name(str(unknown[0]), [str(name) for name in places])
            hint = "" if near is None else f" Did you mean {near}?"
            raise InputError(f"There is no row with the id {unknown[0]!r}.{hint}")
        return [places[name] for name in names]

    def explain(self, X: Any, n_rows: int | None = None) -> Explanation:
        """The training rows behind each prediction, and the weight of each.

        Args:
            X: rows to explain.
            n_rows: how many training rows to name for each, those of the largest weight; `None` is all that count.

        Shape:
            - X: `(Q, D)`; indices, weights: `(Q, R)`
        """
        if n_rows is not None and n_rows < 1:
            raise InputError(f"n_rows must be at least 1 or None, got {n_rows}.")
        query = self._query(X)
        with self._threads(query):
            indices, weights = self.predictor_.explain(query, n_rows)
            prior = self.predictor_.prior_scores(query)
            prior = self.predictor_.in_units(prior) if self.predictor_.prior is not None else torch.zeros_like(prior)
        return Explanation(indices, weights, prior.numpy(), None if self._ids is None else self._ids[indices])

    def error_indicator(self, X: Any) -> Array:
        """The power function: how far each row is from the training rows, `(Q, D)` to `(Q,)`; about 1 far from all."""
        query = self._query(X)
        with self._threads(query):
            variance = self.predictor_.predict_with_variance(query).variance
        return (variance - self.predictor_.ridge).clamp_min(0).sqrt().numpy()

    def typicality(self, X: Any) -> Array:
        """The share of (up to 2000) training rows, each left out, with as large an error indicator, `(Q, D)` to `(Q,)`."""
        indicators = self.error_indicator(X)
        if len(self.predictor_.centers.points) < FEWEST:
            return np.ones_like(indicators)
        with self._threads():
            left_out = self.predictor_.leave_out()[0].variance
        known = np.sort((left_out - self.predictor_.ridge).clamp_min(0).sqrt().numpy())
        return 1 - np.searchsorted(known, indicators) / len(known)

    def leave_one_out(self) -> tuple[Array, Array] | None:
        """Predictions for up to 2000 different training rows without them, and their targets; `None` below three rows.

        They are in the order in which the rows were given. Rows that agree in every feature are one, with the mean of their
        targets, and left out together. Of a classifier, probabilities and the share of each class.

        Shape:
            - predictions, targets: `(n, C)`
        """
        check_is_fitted(self)
        if len(self.predictor_.centers.points) < FEWEST:
            return None
        with self._threads():
            means, sample = self.predictor_.leave_out()[0].mean, self.predictor_.sample
        order = self.predictor_.first_rows[sample.which].argsort()
        return self._outputs(means[order]).numpy(), self._targets(sample.centers.values[order]).numpy()

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest training rows in the metric of the kernel (of the one with the largest share).

        Args:
            X: rows whose neighbors to find; `None` is every training row, of which none is its own neighbor.
            n_neighbors: how many; `None` is as many as take part in a prediction.
            return_distance: give `(distances, indices)`, or `indices` alone.

        Shape:
            - X: `(Q, D)`; distances, indices: `(Q, M)`
        """
        check_is_fitted(self)
        self.predictor_.check_whole()
        most = len(self.predictor_.rows.points) - (X is None)
        count = min(self.n_neighbors_, most) if n_neighbors is None else n_neighbors
        if not 1 <= count <= most:
            raise InputError(f"n_neighbors must lie between 1 and the number of training rows ({most}), got {count}.")
        embed, query = self.kernel_.embed, None if X is None else self._query(X)
        with self._threads(query), torch.no_grad():
            points = embed(self.predictor_.rows.points)
            embedded = points if query is None else embed(query)
            indices = nearest(embedded, points, count, exclude_self=query is None)
            distances = torch.linalg.vector_norm(points[indices] - embedded.unsqueeze(1), dim=-1)
        return (distances.numpy(), indices.numpy()) if return_distance else indices.numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that was given and fitted to one file, for `torchkrr.estimators.load`; no pickle is involved.

        The file is written atomically. An attribute `notes_`, a dictionary that JSON can hold, goes with it.
        """
        check_is_fitted(self)
        save_estimator(self, path)

    def to_store(self, store: Any, n_neighbors: int | None = None) -> None:
        """Move the training rows into a store of `torchkrr.stores`; `torchkrr.stores.open_head(store)` predicts from there.

        Prior, calibration and leave-one-out residuals go into the metadata, where they stay as they are. One kernel has to
        predict from the nearest rows: fit with `n_neighbors=100`, say. The same call goes on after an error.

        Args:
            store: opened with `kernel=model.kernel_`; nothing else is in its table.
            n_neighbors: makes an estimator with one kernel local that predicts from all rows; it is calibrated anew.
        """
        check_is_fitted(self)
        # Stores come after the estimators: they know them, to open a head.
        importlib.import_module("..stores.heads", __package__).to_store(self, store, n_neighbors)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """The estimator of this class that `save` wrote to `path`; `torchkrr.estimators.load` reads any class."""
        return load_estimator(path, (cls,))

    @property
    def ids_(self) -> Array | None:
        """The names of the training rows, `(n,)`, if they were given."""
        return self._ids

    def _threads(self, query: Tensor | None = None) -> AbstractContextManager[None]:
        """As many threads as `n_jobs` asks for, while it lasts; -1 is one for each core.

        `None` leaves torch's setting, but for a query that is compared with few rows.
        """
        if self.n_jobs is None:
            small = query is not None and len(query) * self.n_samples_fit_ <= FEW_PAIRS
            return _threads.threads(1) if small else nullcontext()
        if not isinstance(self.n_jobs, numbers.Integral) or self.n_jobs == 0:
            raise InputError(f"n_jobs must be None, a positive int, or negative to leave cores free, got {self.n_jobs!r}.")
        return _threads.threads(self.n_jobs if self.n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + self.n_jobs))

    def _query(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.tensor(self.encoder_.encode(read_table(self, X, reset=False)), dtype=self._dtype)

    def _describe(self) -> None:
        """Attributes that say what was chosen: of the member with the largest share."""
        first, neighbors = self.predictor_.members[0], self.predictor_.num_neighbors()
        self.kernel_, self.alpha_ = first.kernel, first.ridge
        self.n_neighbors_ = int((self.predictor_.rows.weights > 0).sum()) if neighbors is None else neighbors
        self.n_samples_fit_ = self.predictor_.num_rows

    def _unit(self, centers: Centers) -> tuple[Tensor, Tensor]:
        """Where the values of the centers lie, and how far apart, `(C,)` each."""
        total = centers.weights.sum()
        shares, values = (centers.weights / total).unsqueeze(1), centers.values
        offset = (shares * values).sum(0)
        spread = ((shares * (values - offset).square()).sum(0) + centers.scatter.sum(0) / total).sqrt()
        if not math.isfinite(float(spread.sum())):
            raise InputError("y is too large to compute its variance. Divide it by a constant first.")
        # What is left of a constant after rounding is no spread.
        return offset, torch.where(spread > ROUNDING * values.abs().amax(0), spread, 1.0)

    def _outputs(self, means: Tensor) -> Tensor:
        """What is said of predicted means `(Q, C)`, float64."""
        return self.predictor_.in_units(means)

    def _targets(self, values: Tensor) -> Tensor:
        """What was given of kept values `(n, C)`, float64."""
        return self.predictor_.in_units(values)

    def _read_values(self, table: Any, y: Any, *, reset: bool, classes: Any) -> Array:
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags
