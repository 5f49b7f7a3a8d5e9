"""Packages that only the experiments need."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import MissingExtraError


def needed(module: str, what: str) -> ModuleType:
    """An optional package, or an error that says what needs it and how to get it.

    Example:
        >>> needed("math", "Counting").floor(1.5)
        1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise MissingExtraError(f'{what} needs {package}, which is not installed: pip install "torchkrr[vision]".') from None
