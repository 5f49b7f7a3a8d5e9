"""A profile of a squared distance, with derivatives that are right at zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .distances import safe_sqrt


class Profile(Protocol):
    """The part of a kernel that is used here."""

    def profile(self, distance: Tensor) -> Tensor: ...

    def slope_over_distance(self, distance: Tensor) -> Tensor: ...


class Radial(torch.autograd.Function):
    r"""$\varphi(\sqrt s)$, whose slope in $s$ is $\varphi'(d)/(2d)$: finite for smooth profiles, even at zero."""

    @staticmethod
    def forward(squared: Tensor, kernel: Profile, *learned: Tensor) -> Tensor:
        return kernel.profile(squared.sqrt())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        squared, ctx.kernel, *learned = inputs
        ctx.save_for_backward(squared, *learned)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        squared, *learned = ctx.saved_tensors
        distance = safe_sqrt(squared)
        grad_squared = grad * ctx.kernel.slope_over_distance(distance) / 2 if ctx.needs_input_grad[0] else None
        return grad_squared, None, *profile_gradient(ctx.kernel, learned, [distance], [grad])


def profile_gradient(
    kernel: Profile, learned: Sequence[Tensor], distances: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradient of the tensors learned in `profile`, given the gradient arriving at its values."""
    if not learned:
        return []
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        values = [kernel.profile(distance) for distance in distances]
    return list(torch.autograd.grad(values, learned, grads, create_graph=create_graph, allow_unused=True))
