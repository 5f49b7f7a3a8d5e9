"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..errors import InputError
from ..tuning.scores import Loss, best_temperature
from .base import KernelRidgeBase
from .encoding import Array, Centers
from .predictor import FEWEST


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

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        """Add rows; what was chosen stays. An estimator that is not fitted is.

        Args:
            classes: all labels there will be; needed in the first call if it does not have them all.
        """
        return self._fit(X, y, sample_weight, classes, grow=True)

    def predict(self, X: Any) -> Array:
        """The label of the largest probability, `(Q, D)` to `(Q,)`."""
        check_is_fitted(self)
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """Probabilities in the order of `classes_`, `(Q, D)` to `(Q, C)`."""
        query = self._query(X)
        with self._threads():
            memberships = self.predictor_.predict(query)
        return self._outputs(memberships).to(query.dtype).numpy()

    def _calibrate(self) -> None:
        sample, (centers, rows) = self.predictor_.sample, self.predictor_.leave_out()
        means, targets, counts = [rows.mean], [sample.values], [sample.counts]
        if len(self.predictor_.centers.points) >= FEWEST:
            means.append(centers.mean.double())
            targets.append(sample.centers.values)
            counts.append(torch.ones(len(sample.which), dtype=torch.float64))
        known = len(torch.cat(counts)) > 0
        self.temperature_ = float(best_temperature(*map(torch.cat, (means, targets, counts)))) if known else 1.0

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

    def _own_state(self) -> dict[str, Any]:
        return {
            "classes": self.classes_.tolist(),
            "classes_dtype": "object" if self.classes_.dtype.kind == "O" else self.classes_.dtype.str,
            "temperature": self.temperature_,
        }

    def _take_own_state(self, plain: dict[str, Any]) -> None:
        self.classes_ = np.array(plain["classes"], dtype=plain["classes_dtype"])
        self.temperature_ = float(plain["temperature"])

    def _outputs(self, means: Tensor) -> Tensor:
        return torch.softmax(means.double() / self.temperature_, dim=1)

    def _unit(self, centers: Centers) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(centers.values[0]), torch.ones_like(centers.values[0])
