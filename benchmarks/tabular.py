"""Regressors for tables, each through its public API: fit, and predict means and one standard deviation per row.

Every peer that needs a validation part (early stopping, choice of parameters, the spread of its errors) gets a tenth of the
training rows for it. Inputs are standardized with the statistics of the training part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.optional import require

Array = NDArray[np.float64]
VALIDATION = 0.1


class Prediction(NamedTuple):
    mean: Array  # (Q,)
    std: Array  # (Q,)
    lower: Array | None = None  # (Q,) each, of intervals that hold nine in ten, where the method has its own
    upper: Array | None = None


Method = Callable[[Array, Array, Array], Prediction]


def torchkrr_default(x: Array, y: Array, query: Array) -> Prediction:
    estimators: Any = require("torchkrr.estimators")
    model = estimators.LocalKernelRidgeRegressor(random_state=0).fit(x.astype(np.float32), y)
    query = query.astype(np.float32)
    return Prediction(*(found.astype(float) for found in model.predict_with_interval(query, coverage=0.9)))


def lightgbm(x: Array, y: Array, query: Array) -> Prediction:
    library: Any = require("lightgbm")
    train, check = held_out(len(x))
    model = library.LGBMRegressor(n_estimators=5000, learning_rate=0.05, num_leaves=63, random_state=0, verbose=-1, n_jobs=2)
    stop = library.early_stopping(50, verbose=False)
    model.fit(x[train], y[train], eval_set=[(x[check], y[check])], callbacks=[stop])
    return with_spread(model.predict, x[check], y[check], query)


def xgboost(x: Array, y: Array, query: Array) -> Prediction:
    library: Any = require("xgboost")
    train, check = held_out(len(x))
    model = library.XGBRegressor(
        n_estimators=5000, learning_rate=0.05, max_depth=6, early_stopping_rounds=50, random_state=0, n_jobs=2
    )
    model.fit(x[train], y[train], eval_set=[(x[check], y[check])], verbose=False)
    return with_spread(model.predict, x[check], y[check], query)


def xrfm(x: Array, y: Array, query: Array) -> Prediction:
    library: Any = require("xrfm")
    train, check = held_out(len(x))
    model = library.xRFM(device="cpu", tuning_metric="mse", verbose=False)
    x, query = x.astype(np.float32), query.astype(np.float32)
    model.fit(x[train], y[train].astype(np.float32), x[check], y[check].astype(np.float32))
    return with_spread(lambda rows: np.asarray(model.predict(rows)).reshape(-1), x[check], y[check], query)


def gaussian_process(x: Array, y: Array, query: Array) -> Prediction:
    """One lengthscale per feature and the noise by maximum likelihood; up to 2000 rows."""
    gp: Any = require("sklearn.gaussian_process")
    kernels: Any = require("sklearn.gaussian_process.kernels")
    kernel = kernels.ConstantKernel() * kernels.Matern(np.ones(x.shape[1]), nu=2.5) + kernels.WhiteKernel(0.01)
    model = gp.GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x, y)
    return Prediction(*model.predict(query, return_std=True))


def kernel_ridge(x: Array, y: Array, query: Array) -> Prediction:
    """Laplacian and Gaussian kernels, width and alpha by five-fold cross-validation; up to 2000 rows."""
    ridge: Any = require("sklearn.kernel_ridge")
    search: Any = require("sklearn.model_selection")
    widths = (1 / x.shape[1]) * np.logspace(-2, 1, 7)
    grid = {"kernel": ["laplacian", "rbf"], "gamma": widths, "alpha": np.logspace(-5, 0, 6)}
    chosen = search.GridSearchCV(ridge.KernelRidge(), grid, scoring="neg_mean_squared_error", cv=5).fit(x, y)
    return Prediction(chosen.predict(query), np.full(len(query), float(np.sqrt(-chosen.best_score_))))


def nearest_neighbors(x: Array, y: Array, query: Array) -> Prediction:
    """The number of neighbors by five-fold cross-validation."""
    neighbors: Any = require("sklearn.neighbors")
    search: Any = require("sklearn.model_selection")
    grid = {"n_neighbors": [3, 5, 10, 20], "weights": ["uniform", "distance"]}
    chosen = search.GridSearchCV(neighbors.KNeighborsRegressor(), grid, scoring="neg_mean_squared_error", cv=5).fit(x, y)
    return Prediction(chosen.predict(query), np.full(len(query), float(np.sqrt(-chosen.best_score_))))


METHODS: dict[str, Method] = {
    "torchkrr": torchkrr_default,
    "LightGBM": lightgbm,
    "XGBoost": xgboost,
    "xRFM": xrfm,
    "GaussianProcessRegressor": gaussian_process,
    "KernelRidge": kernel_ridge,
    "KNeighborsRegressor": nearest_neighbors,
}
# Cubic in the rows, or worse. xRFM had not ended after 1000 seconds on the 36,000 rows of kin40k, on two cores.
LARGEST = {"GaussianProcessRegressor": 2000, "KernelRidge": 2000, "xRFM": 20_000}


def held_out(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.random.default_rng(0).permutation(count)
    size = max(1, round(VALIDATION * count))
    return order[size:], order[:size]


def with_spread(predict: Callable[[Array], Array], x: Array, y: Array, query: Array) -> Prediction:
    """The same standard deviation everywhere: that of the errors on rows held out."""
    spread = float(np.sqrt(np.mean((predict(x) - y) ** 2)))
    mean = np.asarray(predict(query), dtype=float)
    return Prediction(mean, np.full(len(mean), spread))
