"""How the words given to options are read; what cannot be read is wrong usage."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

Wrong = argparse.ArgumentTypeError
# Those of `models.features`, which imports torch, as --help must not.
POOLINGS = ("mean", "max", "class_token", "flatten")


def count(text: str) -> int:
    """
    Example:
        >>> count("12")
        12
    """
    if not text.isdecimal() or int(text) < 1:
        raise Wrong(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def threads(text: str) -> int:
    found, most = count(text), 16 * max(4, os.cpu_count() or 1)
    if found > most:  # far more than cores would be slow, and too many end the process
        raise Wrong(f"must be at most {most} on this machine, got {text!r}")
    return found


def not_negative(text: str) -> float:
    found = _number(text)
    if not 0 <= found < math.inf:
        raise Wrong(f"must be a number that is not negative, got {text!r}")
    return found


def folds(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise Wrong(f"must be a whole number of at least 2, such as 5, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    if not text.isdecimal():
        raise Wrong(f"must be a whole number that is not negative, got {text!r}")
    return int(text)


def seed(text: str) -> int:
    if natural(text) >= 2**32:
        raise Wrong(f"must be less than 2^32, got {text!r}")
    return int(text)


def names(text: str) -> list[str]:
    """
    Example:
        >>> names("age, sex")
        ['age', 'sex']
    """
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise Wrong(f"must be different names, separated by commas, got {text!r}")
    return found


def share(text: str) -> float:
    found = _number(text)
    if not 0 < found < 1:
        raise Wrong(f"must lie between 0 and 1, such as 0.9, got {text!r}")
    return found


def delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii():
        raise Wrong(f"must be one character or tab, got {text!r}")
    return text


def auto_or(kind: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """`auto`, or what `kind` reads; errors call it `what`."""

    def read(text: str) -> Any:
        try:
            return text if text == "auto" else kind(text)
        except (Wrong, ValueError):
            raise Wrong(f"must be auto or {what}, got {text!r}") from None

    return read


def _number(text: str) -> float:
    """Not a number if it is none, so that no comparison holds."""
    try:
        return float(text)
    except ValueError:
        return math.nan
