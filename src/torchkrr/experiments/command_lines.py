"""Commands as text: what makes the same numbers again, wherever files lie."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

FILES = ("--dataset", "--weights")  # said by their names alone


def command_line(name: str, options: Mapping[str, Any], settings: Iterable[str] = ()) -> str:
    """`torchkrr` with a command, its options, and what was given by `--set`.

    Options that are `None` or false are left out, true ones are flags; among several values `None` is all.

    Example:
        >>> command_line("transfer", {"--dataset": "/data/my photos", "--size": None, "--budgets": (100, None)}, ["a=1"])
        "torchkrr transfer --dataset 'my photos' --budgets 100,all --set a=1"
    """
    parts = [f"torchkrr {name}"]
    for option, value in options.items():
        if value is True:
            parts.append(option)
        elif value is not None and value is not False:
            parts.append(f"{option} {shlex.quote(_said(option, value))}")
    return " ".join([*parts, *(f"--set {shlex.quote(setting)}" for setting in settings)])


def _said(option: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join("all" if part is None else str(part) for part in value)
    return os.path.basename(str(value).rstrip("/")) if option in FILES else str(value)
