"""A profile of a squared distance, with derivatives that are right at zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._state import with_tensors
from .distances import safe_sqrt

if TYPE_CHECKING:
    from .kernels import Kernel


class Radial(torch.autograd.Function):
    r"""$\varphi(\sqrt s)$, whose slope in $s$ is $\varphi'(d)/(2d)$: finite for smooth profiles, even at zero.

    The tensors of the profile are inputs, with their names before them. Inside `torch.func` those of the kernel are not
    the ones to compute with.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(squared: Tensor, kernel: Kernel, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        return with_profile(kernel, names, tensors).profile(squared.sqrt())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        squared, ctx.kernel, ctx.names, *tensors = inputs
        ctx.save_for_backward(squared, *tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        squared, *tensors = ctx.saved_tensors
        distance = safe_sqrt(squared)
        kernel = with_profile(ctx.kernel, ctx.names, tensors)
        needs_squared, _, _, *needs = ctx.needs_input_grad
        grad_squared = grad * kernel.slope_over_distance(distance) / 2 if needs_squared else None
        wanted = [name for name, need in zip(ctx.names, needs, strict=True) if need]
        found = dict(zip(wanted, profile_gradient(kernel, wanted, [distance], [grad]), strict=True))
        return grad_squared, None, None, *map(found.get, ctx.names)


def with_profile(kernel: Kernel, names: Sequence[str], tensors: Sequence[Tensor]) -> Kernel:
    """The kernel with other tensors in its profile, under names as in `profile_tensors`."""
    if not names:
        return kernel
    own = kernel.profile_tensors()
    return with_tensors(kernel, {id(own[name]): tensor for name, tensor in zip(names, tensors, strict=True)})


def profile_gradient(
    kernel: Kernel, names: Sequence[str], distances: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradient of the named tensors of `profile`, given the gradient arriving at its values.

    Only of what `profile` does with them: the distances may have a graph of their own, which leads to the same tensors.
    """
    if not names:
        return []
    own = kernel.profile_tensors()

    def values(*tensors: Tensor) -> tuple[Tensor, ...]:
        changed = with_profile(kernel, names, tensors)
        return tuple(changed.profile(distance) for distance in distances)

    _, pull = torch.func.vjp(values, *(own[name] for name in names))
    return list(pull(tuple(grads)))
