"""`--set NAME=VALUE`: any field of a configuration that has no option of its own."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .kinds import Wrong

TRUTH = {"true": True, "false": False}


class Setting(NamedTuple):
    name: str
    value: Any
    text: str  # as it was given


def setting_of(experiment: str, own: Sequence[str]) -> Callable[[str], Setting]:
    """Reads fields of the `Config` of that module by the types of their defaults; those in `own` have other options.

    Example:
        >>> setting_of("lander_config", ["seed"])("hidden=32")
        Setting(name='hidden', value=32, text='hidden=32')
    """

    def read(text: str) -> Setting:
        config = importlib.import_module(f"..experiments.{experiment}", __package__).Config  # late: --help needs no torch
        fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(config)}
        name, separator, value = text.partition("=")
        if not separator or name not in fields or name in own:
            others = ", ".join(field for field in fields if field not in own)
            raise Wrong(f"takes NAME=VALUE with a name among {others}, got {text!r}")
        default = fields[name]
        try:
            return Setting(name, TRUTH[value.lower()] if isinstance(default, bool) else type(default)(value), text)
        except (KeyError, ValueError):
            raise Wrong(f"{name} takes a value such as {default!r}, got {value!r}") from None

    return read
