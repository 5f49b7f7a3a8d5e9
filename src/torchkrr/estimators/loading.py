"""Fitted estimators back from their files."""

from __future__ import annotations

import os
from typing import Any

from ..errors import FileError
from .base import KernelRidgeBase
from .classifier import LocalKernelRidgeClassifier
from .regressors import KernelRidgeRegressor, LocalKernelRidgeRegressor
from .storage import read_model, refuse_head

CLASSES: dict[str, type[KernelRidgeBase]] = {
    kind.__name__: kind for kind in (LocalKernelRidgeRegressor, KernelRidgeRegressor, LocalKernelRidgeClassifier)
}


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
    stored = read_model(path)
    refuse_head(path, stored)
    if stored.kind not in CLASSES:
        raise FileError(
            f"{path} holds an estimator of the class {stored.kind}, which is not one of {', '.join(CLASSES)}. "
            "A class of your own has its own load(path)."
        )
    return CLASSES[stored.kind]._from_stored(path, stored)
