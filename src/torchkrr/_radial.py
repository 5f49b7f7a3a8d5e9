"""A profile of a squared distance, with derivatives that are right at zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._state import with_tensors
from .distances import has_tangent, is_transformed, needs_gradient, safe_sqrt

PARAMETRIZED_LENGTHSCALE = "parametrizations.log_lengthscale."  # see torch.nn.utils.parametrize


class Profile(nn.Module):
    """The part of a kernel that is a function of distance."""

    def profile(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def of_squared(self, squared: Tensor) -> Tensor:
        r"""$\varphi(\sqrt s)$ with derivatives that are right at zero, to second order."""
        tensors = self.profile_tensors()
        if not is_transformed(squared, *tensors.values()):
            # In forward mode the infinite slope of the root at zero would meet a tangent of zero.
            return self.profile(safe_sqrt(squared) if has_tangent(squared) else squared.sqrt())
        return Radial.apply(squared, self, tuple(tensors), *tensors.values())  # type: ignore[no-any-return]

    def profile_tensors(self) -> dict[str, Tensor]:
        """The tensors that `profile` computes with, by name: all but the lengthscale and those of the input transform."""
        own = {**self._parameters, **self._buffers, "log_lengthscale": None}
        found = {name: tensor for name, tensor in own.items() if tensor is not None}
        for name, child in self._modules.items():
            if child is not None and name != "input_transform":
                found |= dict(child.named_parameters(name)) | dict(child.named_buffers(name))
        return {name: tensor for name, tensor in found.items() if not name.startswith(PARAMETRIZED_LENGTHSCALE)}

    def learned_in_profile(self) -> list[Tensor]:
        """Those of them that need a gradient now."""
        return [tensor for tensor in self.profile_tensors().values() if needs_gradient(tensor)]


class Radial(torch.autograd.Function):
    r"""$\varphi(\sqrt s)$, whose slope in $s$ is $\varphi'(d)/(2d)$: finite for smooth profiles, even at zero.

    The tensors of the profile are inputs, after their names: inside `torch.func` those of the kernel are not the ones to
    compute with.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(squared: Tensor, kernel: Profile, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        return with_profile(kernel, names, tensors).profile(squared.sqrt())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        squared, ctx.kernel, ctx.names, *tensors = inputs
        ctx.save_for_backward(squared, *tensors)
        ctx.save_for_forward(squared, *tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: Any, __: Any, *tangents: Tensor | None) -> Tensor:
        squared, *tensors = ctx.saved_tensors
        distance = safe_sqrt(squared)
        kernel = with_profile(ctx.kernel, ctx.names, tensors)
        result = torch.zeros_like(squared)
        if tangent is not None:
            result = result + tangent * kernel.slope_over_distance(distance) / 2
        moved = [(name, tensor, t) for name, tensor, t in zip(ctx.names, tensors, tangents, strict=True) if t is not None]
        if moved:
            names, points, directions = zip(*moved, strict=True)
            along = torch.func.jvp(lambda *new: with_profile(kernel, names, new).profile(distance), points, directions)[1]
            result = result + along
        return result

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


def with_profile(kernel: Profile, names: Sequence[str], tensors: Sequence[Tensor]) -> Profile:
    """The kernel with other tensors in its profile, under names as in `profile_tensors`."""
    if not names:
        return kernel
    own = kernel.profile_tensors()
    return with_tensors(kernel, {id(own[name]): tensor for name, tensor in zip(names, tensors, strict=True)})


def profile_gradient(
    kernel: Profile, names: Sequence[str], distances: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradient of the named tensors of `profile`, given the gradient arriving at its values.

    Through `profile` alone: the distances may have a graph of their own that leads to the same tensors.
    """
    if not names:
        return []
    own = kernel.profile_tensors()

    def values(*tensors: Tensor) -> tuple[Tensor, ...]:
        changed = with_profile(kernel, names, tensors)
        return tuple(changed.profile(distance) for distance in distances)

    _, pull = torch.func.vjp(values, *(own[name] for name in names))  # type: ignore[misc]
    return list(pull(tuple(grads)))
