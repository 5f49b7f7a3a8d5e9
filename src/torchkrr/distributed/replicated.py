"""Tensors that every rank has a copy of, such as a lengthscale: their gradient is the sum over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._state import with_tensors
from .._tensors import needs_gradient
from ..kernels import Kernel
from ..nn.base import tensors_of
from .wire import Wire


def replicated(
    kernel: Kernel, ridge: float | Tensor, wire: Wire, share: float
) -> tuple[Kernel, float | Tensor, list[Tensor]]:
    """A kernel and a ridge to compute with, whose gradients reach the given ones summed over ranks, times `share`.

    Also their tensors that have a gradient: a rank without queries must let them take part, since the sum is collective.
    """
    learned = [t for t in (*tensors_of(kernel), *([ridge] if isinstance(ridge, Tensor) else [])) if needs_gradient(t)]
    if not learned:
        return kernel, ridge, []
    shared = _Replicated.apply(wire, share, *learned)
    place = {id(tensor): copy for tensor, copy in zip(learned, shared, strict=True)}
    return with_tensors(kernel, place), place.get(id(ridge), ridge), list(shared)


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wire: Wire, share: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.wire, ctx.share = wire, share
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Summed.apply(ctx.wire, *(ctx.share * grad for grad in grads))


class _Summed(torch.autograd.Function):
    """The sum over ranks, on every rank; it is its own transpose."""

    @staticmethod
    def forward(ctx: Any, wire: Wire, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.wire = wire
        together = wire.sum(torch.cat([tensor.flatten().double() for tensor in tensors]), "kernel gradients")
        parts = together.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Summed.apply(ctx.wire, *grads)
