"""Which dtype a problem is solved in.

Half precision is solved in float32. Under autocast the inputs of different precision that meet here
(features in half, centers in float32) are brought to float32, as autocast does for its own
precision-sensitive operations, and autocast is off inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.float16, torch.bfloat16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` outside autocast, its half-precision tensors cast to float32 if autocast was on."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device_type = next((value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), "cpu")
        if not (torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)):
            return function(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):
            return function(*map(_widen, args), **{name: _widen(value) for name, value in kwargs.items()})

    return wrapped


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep `function` outside `torch.compile`, as one graph break: what happens inside depends on the data."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        # Decorating with torch.compiler.disable would import the compiler, a second and a half, for everybody.
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return wrapped


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value
