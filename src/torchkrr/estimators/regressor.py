"""Regressors."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from torch import Tensor

from ..errors import InputError
from .base import KernelRidgeBase
from .encoding import Array, first_text


class Interval(NamedTuple):
    """Limits of each prediction, shaped like it."""

    lower: Array
    upper: Array


class _Regressor(MultiOutputMixin, RegressorMixin, KernelRidgeBase):
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, ids: Any = None) -> Any:
        """Add rows; the next prediction is that of a fit on all rows with the same kernel, alpha and number of neighbors.

        What was chosen, and how the columns are encoded, stays; an estimator that is not fitted is.
        """
        return self._fit(X, y, sample_weight, groups=groups, ids=ids, grow=True)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions, and with `return_std` the standard deviation of a new observation, of weight one, at each row.

        Shape:
            - X: `(Q, D)`; prediction and deviation: `(Q,)`, or `(Q, C)` if `y` had two dimensions
        """
        query = self._query(X)
        with self._threads(query):
            if return_std:
                return self._shaped(query, *self.predictor_.predict_with_std(query))
            return self._shaped(query, self.predictor_.predict(query))[0]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Interval:
        """Limits between which a new observation, of weight one, falls with probability `coverage`.

        From leave-one-out residuals (conformal, jackknife). Where there are too few of them for the coverage, the interval
        is that of Student's distribution for so few, and no less than the largest residual.

        Shape:
            - X: `(Q, D)`; lower, upper: `(Q,)`, or `(Q, C)` if `y` had two dimensions
        """
        return Interval(*self.predict_with_interval(X, coverage)[2:])

    def predict_with_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array, Array, Array]:
        """Prediction, standard deviation, lower and upper limit, as `predict` and `predict_interval`, from one solve."""
        if not isinstance(coverage, numbers.Real) or not 0 < coverage < 1:
            raise InputError(f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}.")
        query = self._query(X)
        with self._threads(query):
            mean, std = self.predictor_.predict_with_std(query)
            half = self.predictor_.residuals.quantile(float(coverage)) * std
        mean_, std_, lower, upper = self._shaped(query, mean, std, mean - half, mean + half)
        return mean_, std_, lower, upper

    def _shaped(self, query: Tensor, *columns: Tensor) -> tuple[Array, ...]:
        """`(Q, C)` each, in the dtype of the query, `(Q,)` if `y` had one dimension."""
        arrays = (one.to(query.dtype).numpy() for one in columns)
        return tuple(array[:, 0] if self._one_dimensional else array for array in arrays)

    def _read_values(self, table: Any, y: Any, *, reset: bool, classes: Any) -> Array:
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        try:
            values: Array = check_array(y, ensure_2d=False, allow_nd=False, dtype=np.float64, input_name="y")
        except ValueError:
            text = first_text(y)
            if text is None:
                raise
            raise InputError(
                f"y must hold numbers for a regressor, got the text {text!r}. For classes use LocalKernelRidgeClassifier."
            ) from None
        check_consistent_length(table, values)
        if reset:
            self._one_dimensional = values.ndim == 1
        values = values.reshape(len(values), -1)
        if not reset and values.shape[1] != len(self.predictor_.offset):
            raise InputError(
                f"y has {values.shape[1]} outputs, but the estimator was fitted with {len(self.predictor_.offset)}."
            )
        return values

    def _own_state(self) -> dict[str, Any]:
        return {"one_dimensional": self._one_dimensional}

    def _take_own_state(self, plain: dict[str, Any]) -> None:
        self._one_dimensional = bool(plain["one_dimensional"])


class LocalKernelRidgeRegressor(_Regressor):
    r"""A prior, and kernel ridge regression of what it leaves over.

    $$ f(z) = p(z) + \mathcal P_k\bigl(x,\; y - p^{(-)}(x)\bigr)(z) $$

    $p$ is the prior, $p^{(-)}(x_i)$ what it predicts for training row $i$ without that row, and $\mathcal P_k$ kernel ridge
    regression with a constant trend. Without a prior $p$ is zero, and the kernel predicts $y$ itself.

    What is `"auto"` is chosen by leave-one-out. Up to 2000 different rows every row takes part in each prediction, and
    several kernels, each with lengthscales of its own, are mixed in the shares that predict left-out rows best. Beyond that
    one kernel is chosen, its lengthscales learned, and it sees the nearest rows of each query.

    Equivalent to

        # kernel=Gaussian(lengthscale), and prior=model, which is fitted
        fit = sklearn.kernel_ridge.KernelRidge(alpha=alpha, kernel="rbf", gamma=1 / (2 * lengthscale**2))
        result = model.predict(query) + fit.fit(X, y - model.predict(X)).predict(query)

    Args:
        n_neighbors: training rows per prediction, or `"auto"`. More than there are means all.
        alpha: ridge, added to the diagonal of the kernel matrix (whose own diagonal is one), or `"auto"`.
        kernel: `"exponential"`, `"matern32"`, `"matern52"`, `"gaussian"`, `"laplacian"`, a kernel of `torchkrr.kernels`
            (used with its own metric), or `"auto"`.
        metric: `None` scales all features alike, `"ard"` learns a lengthscale per feature, `"linear"` a linear map; `"auto"`
            learns one lengthscale per feature where there are enough rows.
        prior: `None`; `"linear"`, ridge regression on the columns; `"coarse"`, kernel ridge regression with up to 1000
            spread points, fitted to all rows; a fitted model (an `nn.Module`, a scikit-learn estimator in
            `FrozenEstimator`, or a function from rows to numbers), which stays as it is, also far from all rows; or
            `"auto"`, `"linear"` where leave-one-out finds it better by more than one standard error. A kernel of
            `torchkrr.kernels` is used without one.
        categorical_features: `"from_dtype"` takes columns of strings and categories of a frame; or a mask, indices or names;
            or `None`. See `torchkrr.estimators.encoding` for how they, and missing values, are encoded.
        warm_start: let `fit` keep what an earlier `fit` chose, and replace the rows alone.
        random_state: of the rows that choices are made on. Up to 2000 different rows an int gives the same result each time;
            beyond, a part of the fit is limited in time and can differ.
        n_jobs: threads; `None` is torch's setting.
        verbose: show what is going on, on standard error.

    Attributes:
        kernel_, alpha_, n_neighbors_: what was chosen; of the kernel with the largest share, where several are mixed.
        candidates_: pairs of a name and a loss on left-out rows, the best first: what was tried.
        predictor_: the training rows, the prior (`predictor_.prior`), and the kernels that predict (`predictor_.members`).
        encoder_: how each column of the table is encoded (`encoder_.columns`).
        ids_: names of the rows, if they were given.
        n_samples_fit_: how many rows there are.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(size=(80, 2))
        >>> y = np.sin(6 * X[:, 0]) + X[:, 1]
        >>> model = LocalKernelRidgeRegressor().fit(X[:60], y[:60])
        >>> model.score(X[60:], y[60:]) > 0.99
        True
        >>> mean, std = model.predict(X[60:], return_std=True)
        >>> lower, upper = model.predict_interval(X[60:], coverage=0.9)
        >>> rows, weights = model.explain(X[60:], n_rows=3)
        >>> rows.shape
        (20, 3)
        >>> far = LocalKernelRidgeRegressor(prior="linear").fit(X[:60], 5 * X[:60, 0]).predict([[2.0, 0.5]])
        >>> bool(abs(far[0] - 10) < 0.1)
        True
    """


@dataclass(eq=False, repr=False)
class KernelRidgeRegressor(_Regressor):
    r"""Kernel ridge regression on all training rows, for up to six thousand different ones.

    The model is that of `LocalKernelRidgeRegressor`, with no prior unless one is asked for. The cost of a fit grows with the
    cube of the number of rows. Beyond 6000 different rows each prediction uses the 400 nearest, with a warning:
    `LocalKernelRidgeRegressor` chooses how many.

    Equivalent to

        # kernel=Gaussian(lengthscale)
        fit = sklearn.kernel_ridge.KernelRidge(alpha=alpha, kernel="rbf", gamma=1 / (2 * lengthscale**2))
        trend = fit.fit(X, y).dual_coef_.sum() / fit.fit(X, np.ones(len(X))).dual_coef_.sum()
        result = trend + fit.fit(X, y - trend).predict(query)

    Args:
        alpha, kernel, categorical_features, warm_start, random_state, n_jobs, verbose: as in `LocalKernelRidgeRegressor`.
        metric: `None`, `"ard"` or `"auto"`, as there.
        prior: as there.

    Attributes:
        kernel_, alpha_, candidates_, predictor_, encoder_, ids_: as there.
        n_neighbors_: how many rows take part in a prediction: all, or the 400 nearest.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = KernelRidgeRegressor(kernel="gaussian").fit(X, np.sin(6 * X[:, 0]))
        >>> bool(abs(model.predict([[0.5]])[0] - np.sin(3)) < 1e-2)
        True
    """

    _dense = True
    n_neighbors: int | str = field(default="auto", init=False)
    alpha: float | str = field(default="auto", kw_only=False)
    prior: Any = field(default=None, kw_only=True)
