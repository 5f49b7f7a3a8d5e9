"""Estimators in scikit-learn's vocabulary, for tables of numbers and categories, features of networks and embedded text."""

import importlib

from ..errors import MissingExtraError
from ..storage import load

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

__all__ = [
    "Explanation",
    "Interval",
    "KernelRidgeRegressor",
    "LocalKernelRidgeClassifier",
    "LocalKernelRidgeRegressor",
    "load",
]
ESTIMATORS = (LocalKernelRidgeRegressor, KernelRidgeRegressor, LocalKernelRidgeClassifier)
