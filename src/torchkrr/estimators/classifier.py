"""The classifier."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..errors import InputError
from ..nn.prior import lifted
from ..tuning.calibration import ClassCalibration, calibrate_classes, no_calibration
from .base import KernelRidgeBase
from .encoding import Array, Centers
from .predictor import FEWEST, Predictor
from .prior import ModelPrior


@dataclass(eq=False, repr=False)
class LocalKernelRidgeClassifier(ClassifierMixin, KernelRidgeBase):
    r"""A prior, and kernel ridge regression of the class memberships that it leaves over; calibrated probabilities.

    $$ f(z) = p(z) + \mathcal P_k\bigl(x,\; y - p^{(-)}(x)\bigr)(z), \qquad
       P(z) = (1-\delta)\,\operatorname{softmax}\bigl(f(z)/T + b\bigr) + \delta/C $$

    $y$ are zeros and ones, a column for each of $C$ classes; $p$ is the prior, and $p^{(-)}(x_i)$ what it predicts for
    training row $i$ without that row. The temperature $T$ and the bias $b$ of each class have the least log loss on scores
    of left-out rows. The doubt $\delta$ is one in as many rows as there are: no class is ruled out. With several labels for
    a row the softmax is a sigmoid.

    What is `"auto"` is chosen by the log loss of left-out rows. Up to 6000 different rows every row takes part in each
    prediction, and up to three kernels are mixed; beyond, one kernel sees the nearest rows of each query.

    Equivalent to

        # prior=None, and kernel and alpha are given
        memberships = (labels[:, None] == model.classes_).astype(float)
        scores = estimators.KernelRidgeRegressor(alpha, kernel=kernel).fit(X, memberships).predict(query)
        result = model.calibration_.probabilities(torch.from_numpy(scores)).numpy()

    Args:
        prior: `None`; `"linear"`, ridge regression on the columns; `"coarse"`, kernel ridge regression with up to 1000
            spread points, fitted to all rows; a fitted model (an `nn.Module`, a scikit-learn classifier in
            `FrozenEstimator`, or a function from rows to logits), whose mistakes are corrected where rows are near and
            which stays what it was elsewhere; or `"auto"`: `None` or `"linear"`, whichever predicts left-out rows better. A
            kernel of `torchkrr.kernels` is used without one.
        margin: how far a row that a fitted model gets wrong lifts the score of its class above the others.
        class_weight: as in scikit-learn: a weight for each label, or `"balanced"`.
        n_neighbors, alpha, kernel, metric, categorical_features, warm_start, random_state, n_jobs, verbose: as in
            `LocalKernelRidgeRegressor`. `metric="auto"` scales all features alike here; `"ard"` and `"linear"` learn.

    Attributes:
        classes_: the labels, in order; with several labels for a row, the numbers of their columns. Of a model as the prior,
            its own `classes_`, or the numbers of its columns where rows show only some of them.
        calibration_: what turns scores into probabilities: `temperature`, `bias` `(C,)` and `doubt`. Where a fitted model is
            the prior its scores are logits, and stay so.
        kernel_, alpha_, n_neighbors_, candidates_, predictor_, encoder_, ids_, n_samples_fit_: as in
            `LocalKernelRidgeRegressor`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(90, 2))
        >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
        >>> model = LocalKernelRidgeClassifier().fit(X[:70], y[:70])
        >>> model.predict_proba(X[70:]).sum(1).round(6).tolist() == [1.0] * 20
        True
        >>> model.classes_.tolist()
        ['other', 'same']
        >>> model.predict_set(X[70:], coverage=0.9).shape
        (20, 2)
        >>> name, loss = model.candidates_[0]
    """

    _loss = "cross_entropy"
    _remedy = " Name all classes that it predicts: partial_fit(X, y, classes=...)."

    margin: float = field(default=1.0, kw_only=True)
    class_weight: Any = field(default=None, kw_only=True)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, groups: Any = None, ids: Any = None
    ) -> Any:
        """Add rows; what was chosen stays. An estimator that is not fitted is. A new label becomes a new class.

        Args:
            X, y, sample_weight, groups, ids: as in `fit`.
            classes: labels that may come later; they count as classes from the start.
        """
        if self.class_weight == "balanced" and hasattr(self, "predictor_"):
            raise InputError("class_weight='balanced' weighs the rows of one fit. Give a dictionary to add rows.")
        return self._fit(X, y, sample_weight, classes, groups=groups, ids=ids, grow=True)

    def forget(self, rows: Any = None, *, ids: Any = None, label: Any = None) -> Any:
        """Drop training rows; predictions are exactly those without them from the next one on.

        Args:
            rows: their numbers, in the order in which rows were given; those after a forgotten one move up.
            ids: their names instead.
            label: every row of this class instead. The class stays, but is not predicted as long as it has no row.
        """
        if label is None:
            return super().forget(rows, ids=ids)
        check_is_fitted(self)
        if rows is not None or ids is not None:
            raise InputError("Give rows, ids or a label.")
        if label not in self.classes_:
            raise InputError(f"label {label!r} is not one of the classes {self.classes_.tolist()}.")
        at = self.classes_.tolist().index(label)
        values = self.predictor_.rows.values
        mine = values[:, at] > 0.5 if self._multilabel else values.argmax(1) == at
        return self._forget(mine.nonzero().squeeze(1).numpy())

    def predict(self, X: Any) -> Array:
        """The label of the largest probability, `(Q, D)` to `(Q,)`; of several labels zeros and ones, `(Q, C)`."""
        check_is_fitted(self)
        probabilities = self.predict_proba(X)
        if self._multilabel:
            return (probabilities > 0.5).astype(np.int64)
        return self.classes_[probabilities.argmax(1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities in the order of `classes_`, `(Q, D)` to `(Q, C)`."""
        query = self._query(X)
        with self._threads(query):
            scores = self.predictor_.predict(query)
        return self._outputs(scores).to(query.dtype).numpy()

    def predict_set(self, X: Any, coverage: float = 0.9) -> Array:
        r"""The classes that a row may have: the right one is among them with probability `coverage`.

        Conformal, from leave-one-out: a class is in if its probability is at least $1 - q$, $q$ the
        $\lceil(n+1)\gamma\rceil$-th smallest of one minus the probabilities of the right classes of left-out training
        rows. A set without any class says that the row is like none of them.

        Shape:
            - X: `(Q, D)`; output: `(Q, C)` bool, in the order of `classes_`
        """
        if not isinstance(coverage, numbers.Real) or not 0 < coverage < 1:
            raise InputError(f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}.")
        if self._multilabel:
            raise InputError("predict_set is for rows of one class each. predict_proba gives a probability for each label.")
        probabilities = self.predict_proba(X)
        ordered, counts = self._surprises()
        known = float(counts[-1]) if len(counts) else 0.0
        rank = math.ceil((known + 1) * coverage - 1e-9)
        if rank > known:  # too few rows to say
            return np.ones_like(probabilities, dtype=bool)
        largest = float(ordered[int((counts < rank - 1e-9).sum())])
        return probabilities >= 1 - largest - 1e-9

    def _surprises(self) -> tuple[Tensor, Tensor]:
        """One minus the probabilities of the right classes of left-out rows, sorted, and how many rows are up to each."""
        scores, targets, counts = self._left_out()
        parts = targets * counts.unsqueeze(1)  # rows of a center may differ in their class
        ordered, order = (1 - self.calibration_.probabilities(scores)).flatten().sort()
        parts = parts.flatten()[order]
        some = parts > 0
        return ordered[some], parts[some].cumsum(0)

    def _left_out(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of left-out rows, their memberships, and how many rows each stands for."""
        sample, (centers, rows) = self.predictor_.sample, self.predictor_.leave_out()
        means, targets, counts = [rows.mean], [sample.values], [sample.counts]
        if len(self.predictor_.centers.points) >= FEWEST:
            means.append(centers.mean.double())
            targets.append(sample.centers.values)
            weights = sample.centers.weights  # in units of their mean: a table given twice knows no more
            counts.append(self.predictor_.group_shares * weights / weights.mean())
        return torch.cat(means), self._targets(torch.cat(targets)), torch.cat(counts)

    def _calibrate(self) -> None:
        if isinstance(self.predictor_.prior, ModelPrior):  # its scores are logits
            self.calibration_ = no_calibration(len(self.classes_), self._multilabel)
            return
        scores, targets, counts = self._left_out()
        known = self._known_classes()
        found = calibrate_classes(scores[:, known], targets[:, known], counts, multilabel=self._multilabel)
        bias = torch.zeros(len(known), dtype=torch.float64).masked_scatter(known, found.bias)
        self.calibration_ = found._replace(bias=bias)

    def _known_classes(self) -> Tensor:
        """Which classes have a row, `(C,)`; one that is to come is predicted as if it were not there."""
        if self._multilabel or isinstance(self.predictor_.prior, ModelPrior):
            return torch.ones(len(self.classes_), dtype=torch.bool)
        return self.predictor_.positive

    def _class_weights(self, values: Tensor) -> Array | float:
        if self.class_weight is None:
            return 1.0
        if self._multilabel:
            raise InputError("class_weight is for rows of one class each. Give sample_weight instead.")
        labels = self.classes_[values.argmax(1).numpy()]
        return compute_sample_weight(self.class_weight, labels)  # type: ignore[no-any-return]

    def _read_values(self, table: Any, y: Any, *, reset: bool, classes: Any) -> Array:
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        y = y.toarray() if issparse(y) else y
        if np.asarray(y).dtype.kind == "f":
            assert_all_finite(np.asarray(y), input_name="y")
        check_classification_targets(y)
        several = np.ndim(np.asarray(y)) == 2 and type_of_target(y) == "multilabel-indicator"
        if reset:
            self._multilabel = several
        if several != self._multilabel:
            expected = "zeros and ones, a column for each label" if self._multilabel else "one label for each row"
            raise InputError(f"y must hold {expected}, as in the fit.")
        if several:
            memberships: Array = check_array(y, dtype=np.float64, input_name="y")
            check_consistent_length(table, memberships)
            if reset:
                self.classes_ = np.arange(memberships.shape[1])
            if memberships.shape[1] != len(self.classes_):
                raise InputError(
                    f"y has {memberships.shape[1]} labels, but the estimator was fitted with {len(self.classes_)}."
                )
            return memberships
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_consistent_length(table, labels)
        if reset:
            # A model knows its classes, which need not all be among the labels.
            known = getattr(self.prior, "classes_", labels) if classes is None else classes
            self.classes_ = np.unique(known)
            strange = np.setdiff1d(labels, self.classes_)
            if len(strange):
                raise InputError(
                    f"y has labels that are not among the classes {self.classes_.tolist()}: {strange.tolist()}. "
                    "Name all of them, as classes."
                )
        elif len(np.setdiff1d(labels, self.classes_)):
            self._add_classes(np.union1d(self.classes_, labels))
        return np.eye(len(self.classes_))[np.searchsorted(self.classes_, labels)]  # type: ignore[no-any-return]

    def _targets_of_model(self, scores: Tensor, values: Tensor) -> Tensor:
        count, labels = scores.shape[1], self.classes_
        if (
            not self._multilabel
            and len(labels) < count
            and labels.dtype.kind in "iu"
            and 0 <= labels[0] <= labels[-1] < count
        ):
            # Mistakes of a few classes: the others are those of the model's other columns.
            values = torch.eye(count, dtype=values.dtype)[torch.from_numpy(labels)[values.argmax(1)].long()]
            self.classes_ = np.arange(count)
        super()._targets_of_model(scores, values)
        if self._multilabel:
            return torch.where((scores > 0) == (values > 0.5), scores, self.margin * (2 * values - 1))
        return lifted(scores, values.argmax(1), self.margin)

    def _add_classes(self, classes: Array) -> None:
        """Columns for new classes, of which no row is a member yet."""
        predictor = self.predictor_
        predictor.check_whole()
        if isinstance(predictor.prior, ModelPrior):
            new = np.setdiff1d(classes, self.classes_).tolist()
            raise InputError(f"y has labels that the prior, a model, does not predict: {new}.")
        places = torch.from_numpy(np.searchsorted(classes, self.classes_))

        def spread(values: Tensor) -> Tensor:
            return values.new_zeros(*values.shape[:-1], len(classes)).index_copy(-1, places, values)

        rows = predictor.rows._replace(values=spread(predictor.rows.values))
        offset, unit = predictor.offset.new_zeros(len(classes)), predictor.unit.new_ones(len(classes))
        self.predictor_ = Predictor(rows, predictor.members, offset, unit, predictor.seed, predictor.prior)
        self.calibration_ = self.calibration_._replace(bias=spread(self.calibration_.bias))
        self.classes_ = classes

    def _own_state(self) -> dict[str, Any]:
        return {
            "classes": self.classes_.tolist(),
            "classes_dtype": "object" if self.classes_.dtype.kind == "O" else self.classes_.dtype.str,
            "temperature": self.calibration_.temperature,
            "bias": self.calibration_.bias.tolist(),
            "doubt": self.calibration_.doubt,
            "multilabel": self._multilabel,
        }

    def _take_own_state(self, plain: dict[str, Any]) -> None:
        self.classes_ = np.array(plain["classes"], dtype=plain["classes_dtype"])
        self._multilabel = bool(plain.get("multilabel", False))  # files of 0.1.0 have no bias
        bias = torch.tensor(plain.get("bias", [0.0] * len(self.classes_)), dtype=torch.float64)
        self.calibration_ = ClassCalibration(float(plain["temperature"]), bias, self._multilabel, plain.get("doubt", 0.0))

    def _targets(self, values: Tensor) -> Tensor:
        if not isinstance(self.predictor_.prior, ModelPrior):
            return values
        if self._multilabel:
            return (values > 0).double()
        return torch.eye(values.shape[1], dtype=torch.float64)[values.argmax(1)]

    def _outputs(self, means: Tensor) -> Tensor:
        return self.calibration_.probabilities(means.masked_fill(~self._known_classes(), -math.inf))

    def _unit(self, centers: Centers) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(centers.values[0]), torch.ones_like(centers.values[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
