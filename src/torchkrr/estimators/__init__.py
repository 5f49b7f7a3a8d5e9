"""Estimators in scikit-learn's vocabulary, for tables of numbers and categories, features of networks and embedded text."""

import importlib
import os
from typing import Any

from ..errors import MissingExtraError

try:
    importlib.import_module("sklearn")
except ImportError:
    raise MissingExtraError(
        'torchkrr.estimators needs scikit-learn, which is not installed: pip install "torchkrr[sklearn]". '
        "torchkrr.tune does the same for tensors without it."
    ) from None

from .base import Explanation
from .classifier import LocalKernelRidgeClassifier
from .regressor import Interval, KernelRidgeRegressor, LocalKernelRidgeRegressor
from .storage import load_estimator

__all__ = [
    "Explanation",
    "Interval",
    "KernelRidgeRegressor",
    "LocalKernelRidgeClassifier",
    "LocalKernelRidgeRegressor",
    "load",
]


def load(path: str | os.PathLike[str]) -> Any:
    """The estimator that `save` wrote to `path`: it predicts the same, to the last bit. Nothing in the file is executed.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from torchkrr.estimators import KernelRidgeRegressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = KernelRidgeRegressor(0.01, kernel="gaussian", metric=None).fit(X, X[:, 0] ** 2)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.krr"
        >>> model.save(path)
        >>> bool((load(path).predict(X) == model.predict(X)).all())
        True
    """
    return load_estimator(path, (LocalKernelRidgeRegressor, KernelRidgeRegressor, LocalKernelRidgeClassifier))
