"""Small tables with a function behind them."""

import numpy as np


def smooth_table(count=120, features=3, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(count, features))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + noise * rng.normal(size=count)
    return X, y


def two_classes(count=160, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2))
    return X, np.where(X[:, 0] * X[:, 1] + 0.2 * rng.normal(size=count) > 0, "same", "other")
