"""What torch is doing with the tensors of a call: computing, transforming, or only looking at shapes.

Plain tensors are computed with at once, by compiled code and with decisions that look at numbers. Inside `torch.func` and in
forward mode a tensor is more than its numbers, and inside `torch.compile`, `torch.export` and on fake or meta tensors it has
none.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd.forward_ad import unpack_dual

from .errors import BackendError

State = Literal["plain", "transformed", "symbolic"]


def _no_numbers() -> bool:
    """Whether results have shapes only, whatever the tensors: while compiling, and in the mode of fake tensors."""
    return torch.compiler.is_compiling() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def state_of(*tensors: Tensor) -> State:
    if _no_numbers():
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
    """Base of steps that nothing is differentiated through; `forward` and `vmap` are theirs."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None
