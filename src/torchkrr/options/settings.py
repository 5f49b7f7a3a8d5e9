"""`--set NAME=VALUE`: any field of a configuration that has no option of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..errors import InputError

TRUTH = {"true": True, "false": False}


def parse_settings(given: Sequence[str], config: type[Any], own: Sequence[str]) -> dict[str, Any]:
    """Fields of the dataclass `config` by the types of their defaults; those in `own` have other options.

    Example:
        >>> Config = dataclasses.make_dataclass("Config", [("rate", float, 0.1), ("seed", int, 0)])
        >>> parse_settings(["rate=0.5"], Config, ["seed"])
        {'rate': 0.5}
    """
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(config)}
    found: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in fields or name in own:
            others = ", ".join(field for field in fields if field not in own)
            raise InputError(f"--set takes NAME=VALUE with a name among {others}, got {text!r}.")
        default = fields[name]
        try:
            found[name] = TRUTH[value.lower()] if isinstance(default, bool) else type(default)(value)
        except (KeyError, ValueError):
            raise InputError(f"--set {name} takes a value such as {default!r}, got {value!r}.") from None
    return found
