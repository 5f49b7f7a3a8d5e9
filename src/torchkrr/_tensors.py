"""Precision, gradients and transforms of the tensors of a call.

Half precision is solved in float32. Under autocast, inputs of different precision (features in half, centers in float32)
are cast to float32, as autocast does for its own precision-sensitive operations, and autocast is off inside.

Plain tensors are computed with at once, by compiled code and with decisions that look at numbers. Inside `torch.func` and in
forward mode a tensor is more than its numbers, and inside `torch.compile`, `torch.export` and on fake or meta tensors it has
none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd.forward_ad import unpack_dual

from .errors import BackendError

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.float16, torch.bfloat16)
State = Literal["plain", "transformed", "symbolic"]


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


def as_double(number: float | Tensor, device: torch.device) -> Tensor:
    """A ridge in float64, with its graph: 1e-9 has no place in float32 beside a diagonal of one."""
    return torch.as_tensor(number, dtype=torch.float64, device=device)


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` outside autocast, its half-precision tensors cast to float32 if autocast was on."""

    def widen(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        device_type = next((value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), "cpu")
        if not (torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)):
            return function(*args, **kwargs)
        with torch.autocast(device_type, enabled=False):
            return function(*map(widen, args), **{name: widen(value) for name, value in kwargs.items()})

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


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd is watching; where it is not, `Function.apply` would cost more than many a small problem."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def has_tangent(*tensors: Tensor) -> bool:
    """Whether forward mode is watching."""
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors)


def any_requires_grad(*tensors: Tensor) -> bool:
    """Whether autograd is watching, in either mode."""
    return needs_gradient(*tensors) or has_tangent(*tensors)


def is_transformed(*tensors: Tensor) -> bool:
    """Whether reverse mode may be watching: autograd, or `torch.func`, whose tensors do not all tell that they need it."""
    if needs_gradient(*tensors):
        return True
    return torch._C._are_functorch_transforms_active() and not has_tangent(*tensors)


def state_of(*tensors: Tensor) -> State:
    # While compiling, and in the mode of fake tensors, results have shapes only, whatever the tensors.
    if torch.compiler.is_compiling() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return "symbolic"
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise BackendError(
            "torch.jit.trace cannot follow torchkrr: neighbors and solvers depend on the numbers, which it would record as "
            "constants. Use torch.export.export, or torch.compile."
        )
    state: State = "plain"
    for tensor in tensors:
        if tensor.is_meta or isinstance(tensor, FakeTensor):
            return "symbolic"
        try:
            tensor.data_ptr()
            if unpack_dual(tensor).tangent is not None:
                state = "transformed"
        except RuntimeError:  # inside torch.func
            state = "transformed"
    return state


def is_plain(*tensors: Tensor) -> bool:
    """Whether numbers are all there is to them, so that they may be looked at."""
    return state_of(*tensors) == "plain"


class WithoutDerivative(torch.autograd.Function):
    """Base of steps without a derivative; subclasses define `forward` and `vmap`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None


def with_a_row(*per_query: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function of `(query, centers, ...)`, or a method, take no queries: it sees one, whose row is dropped.

    `per_query` are the positions of other arguments with a row of indices for each query.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> R:
            at = next((i for i, value in enumerate(args) if isinstance(value, Tensor)), None)
            if at is None or args[at].ndim != 2 or len(args[at]):
                return function(*args, **kwargs)
            given = list(args)
            given[at] = torch.cat((args[at], args[at + 1][:1].detach().to(args[at])))
            for place in per_query:
                indices = given[place]
                if isinstance(indices, Tensor) and indices.ndim == 2:
                    given[place] = torch.arange(indices.shape[1], device=indices.device).unsqueeze(0)
            result: Any = function(*given, **kwargs)
            return result[:0] if isinstance(result, Tensor) else type(result)(part[:0] for part in result)  # type: ignore[return-value]

        return wrapped

    return decorate
