"""Packages that only the experiments need."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from .._extras import install_command
from ..errors import MissingExtraError


def needed(module: str, what: str, *, extra: str = "vision") -> ModuleType:
    """An optional package, or an error that says what needs it and which extra brings it.

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
        raise MissingExtraError(f"{what} needs {package}, which is not installed: {install_command(extra)}.") from None


def all_needed(modules: Sequence[str], what: str, *, extra: str = "vision") -> None:
    """First of all, so that the extra which is named is enough for the rest."""
    for module in modules:
        needed(module, what, extra=extra)
