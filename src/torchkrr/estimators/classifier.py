"""A classifier of scikit-learn's kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError
from ..kernels import Kernel
from ..tuning.scores import Loss, best_temperature
from .base import KernelRidgeBase
from .columns import Array
from .predictor import Unit
from .rows import Centers
from .state import Plain
from .threads import threads
from .uncertainty import FEWEST, leave_out
from .wanted import Metric


class LocalKernelRidgeClassifier(ClassifierMixin, KernelRidgeBase):
    r"""Kernel ridge regression of class memberships on the nearest training rows of each query.

    Probabilities are $\operatorname{softmax}(m/T)$ of the predicted memberships $m$, with the temperature $T$ chosen by
    leave-one-out: never negative, and each row sums to one.

    Args:
        n_neighbors, alpha, kernel, metric, categorical_features, warm_start, random_state, n_jobs, verbose: as in
            `LocalKernelRidgeRegressor`.

    Attributes:
        classes_: the labels, in order.
        temperature_: $T$.
        kernel_, alpha_, n_neighbors_: what was chosen.

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
    """

    _loss: Loss = "cross_entropy"

    def __init__(
        self,
        n_neighbors: int | str = "auto",
        *,
        alpha: float | str = "auto",
        kernel: Kernel | str = "auto",
        metric: Metric = "auto",
        categorical_features: Any = "from_dtype",
        warm_start: bool = False,
        random_state: Any = 0,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.alpha = alpha
        self.kernel = kernel
        self.metric = metric
        self.categorical_features = categorical_features
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LocalKernelRidgeClassifier:
        """Choose what is `"auto"`, and keep the rows.

        Args:
            X: table, `(n, D)`: an array, or a frame of pandas or polars; NaN is a missing value.
            y: labels, `(n,)`.
            sample_weight: `(n,)`; a row of weight two counts as two rows.
        """
        self._fit(X, y, sample_weight)
        self.temperature_ = self._temperature()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> LocalKernelRidgeClassifier:
        """Add rows; what was chosen stays. An estimator that is not fitted is.

        Args:
            classes: all labels there will be; needed in the first call if it does not have them all.
        """
        first = not hasattr(self, "_predictor")
        self._partial_fit(X, y, sample_weight, classes)
        if first:
            self.temperature_ = self._temperature()
        return self

    def predict(self, X: Any) -> Array:
        """The label of the largest probability, `(Q, D)` to `(Q,)`."""
        check_is_fitted(self)
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities in the order of `classes_`, `(Q, D)` to `(Q, C)`."""
        query = self._query(X)
        with threads(self.n_jobs):
            memberships = self._predictor.predict(query).double()
        found: Array = torch.softmax(memberships / self.temperature_, dim=1).numpy()
        return found.astype(query.numpy().dtype)

    def _temperature(self) -> float:
        predictor = self._predictor
        sample, count = predictor.sample(), len(predictor.different().points)
        with threads(self.n_jobs), torch.no_grad():
            centers, rows = leave_out(sample, predictor.solved(), predictor.members, count)
        means, targets, counts = [rows.mean], [sample.values], [sample.counts]
        if count >= FEWEST:
            means.append(centers.mean.double())
            targets.append(sample.centers.values)
            counts.append(torch.ones(len(sample.which), dtype=torch.float64))
        elif not len(sample.counts):
            return 1.0
        return float(best_temperature(torch.cat(means), torch.cat(targets), torch.cat(counts)))

    def _read_values(self, table: Any, y: Any, *, reset: bool, classes: Any) -> Array:
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        check_consistent_length(table, labels)
        if reset:
            self.classes_ = np.unique(labels if classes is None else classes)
        strange = np.setdiff1d(labels, self.classes_)
        if len(strange):
            raise InputError(
                f"y has labels that are not among the classes {self.classes_.tolist()}: {strange.tolist()}. "
                "Name all of them in the first call, as classes."
            )
        return np.eye(len(self.classes_))[np.searchsorted(self.classes_, labels)]  # type: ignore[no-any-return]

    def _own_state(self) -> Plain:
        return {
            "classes": self.classes_.tolist(),
            "classes_dtype": "object" if self.classes_.dtype.kind == "O" else self.classes_.dtype.str,
            "temperature": self.temperature_,
        }

    def _take_own_state(self, plain: Plain) -> None:
        self.classes_ = np.array(plain["classes"], dtype=plain["classes_dtype"])
        self.temperature_ = float(plain["temperature"])

    def _unit(self, centers: Centers) -> Unit:
        return Unit(torch.zeros_like(centers.values[0]), torch.ones_like(centers.values[0]))
