r"""Kernels: a radial profile on an embedding.

$$ k(a, b) = \varphi\bigl(|e(a) - e(b)|\bigr), \qquad e(x) = S(x) / \ell $$

`embed` is $e$: the normalizing map $S$ (`input_transform`), then the lengthscale $\ell$. `profile` is $\varphi$, with
$\varphi(0) = 1$ where it is positive definite. Everything else in the library sees only embedded points and a profile, so a
kernel of your own is a subclass with one method:

    class Cauchy(Kernel):
        def profile(self, distance):
            return 1 / (1 + distance.square())

Its slope is then found by autograd. Tensors that `profile` computes with must be registered, as Parameters or buffers.

A kernel of `order` zero is positive definite. One of order $m$ is conditionally positive definite: $c^\top k(x, x)\,c > 0$
only for coefficients $c$ that annihilate all polynomials of degree below $m$, so that it needs a trend of degree $m - 1$ or
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import (
    check_alike,
    check_broadcastable,
    check_floating,
    check_points,
    check_positive,
    check_same_features,
    check_tensor,
)
from .._state import add_dimension, keep_double, register_setting, resize_buffers, shown, with_tensors, without_graph
from .._tensors import full_precision, has_tangent, is_transformed, needs_gradient
from ..distances import safe_sqrt, squared_distances
from ..errors import InputTypeError, ShapeError
from ..transforms import Transform

PARAMETRIZED_LENGTHSCALE = "parametrizations.log_lengthscale."  # see torch.nn.utils.parametrize


class Kernel(nn.Module):
    r"""Base of all kernels: $k(a, b) = \varphi(|e(a) - e(b)|)$ with $e(x) = S(x)/\ell$.

    Args:
        lengthscale: positive number, or one per embedded feature (a sequence or 1-D tensor). A tensor that requires
            grad keeps its graph.
        learn_lengthscale: make it a Parameter, in torch's default dtype. Its logarithm is what is stored and learned, so it
            stays positive.
        input_transform: the normalizing map $S$, fitted by the caller; part of the `state_dict`.

    Shape:
        - call: `(*, A, D)` and `(*, B, D)` to `(*, A, B)`
        - embed: `(*, D)` to `(*, E)`; profile: any shape to the same
    """

    settings: tuple[str, ...] = ("log_lengthscale",)  # its tensors, each fixed or learned
    order: int = 0  # conditionally positive definite of this order; 0 is positive definite
    at_zero: float = 1.0  # the profile at distance zero
    log_lengthscale: Tensor

    def __init__(
        self,
        lengthscale: float | Sequence[float] | Tensor = 1.0,
        *,
        learn_lengthscale: bool = False,
        input_transform: Transform | None = None,
    ) -> None:
        super().__init__()
        if input_transform is not None and not isinstance(input_transform, nn.Module):
            raise InputTypeError(
                f"input_transform must be a transform such as StandardMean().fit(x), got {type(input_transform).__name__}."
            )
        try:
            scale = torch.as_tensor(lengthscale, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise InputTypeError(f"lengthscale must be a positive number or one per feature, got {lengthscale!r}.") from None
        if scale.ndim > 1 or scale.numel() == 0:
            raise ShapeError(f"lengthscale must be a number or one per feature, got shape {tuple(scale.shape)}.")
        check_positive("lengthscale", scale)
        register_setting(self, "log_lengthscale", scale.log(), learn=learn_lengthscale)
        self.input_transform = input_transform

    @property
    def lengthscale(self) -> Tensor:
        """The lengthscale, positive, in float64: one for all, `(1,)`, or one per embedded feature, `(E,)`."""
        return self.log_lengthscale.double().exp()

    @full_precision
    def embed(self, x: Tensor) -> Tensor:
        r"""$e(x) = S(x)/\ell$, in the dtype of `x`."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            check_tensor("x", x)
            check_floating("x", x)
        embedded = x if self.input_transform is None else self.input_transform(x)
        if self.log_lengthscale.numel() > 1:
            check_same_features("x after the input transform", embedded, "lengthscale", self.log_lengthscale)
        return embedded / self.lengthscale.to(dtype=embedded.dtype, device=embedded.device)

    def profile(self, distance: Tensor) -> Tensor:
        r"""$\varphi(d)$, elementwise; $\varphi(0)$ is `at_zero`, one unless a subclass says otherwise."""
        raise NotImplementedError

    def unit(self, radius: Tensor) -> Tensor:
        """How large the kernel is among points this far apart: what a ridge and rounding errors are measured by."""
        return torch.ones_like(radius)

    def slope(self, distance: Tensor) -> Tensor:
        r"""$\varphi'(d)$; at zero its limit from the right."""
        value, pull = torch.func.vjp(self.profile, distance)  # type: ignore[misc]
        (slope,) = pull(torch.ones_like(value))
        return slope  # type: ignore[no-any-return]

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        r"""$\varphi'(d)/d$; at zero its limit if that is finite, else 0 (the symmetric subgradient).

        The default gives 0 at zero for every profile. A smooth profile should override it: only second derivatives
        at coinciding points depend on it.
        """
        apart = distance > 0
        return torch.where(apart, self.slope(distance) / torch.where(apart, distance, 1.0), 0.0)

    @full_precision
    def of_squared(self, squared: Tensor) -> Tensor:
        r"""$\varphi(\sqrt s)$ with derivatives that are right at zero, to second order."""
        tensors = self.profile_tensors()
        if not is_transformed(squared, *tensors.values()):
            # In forward mode the infinite slope of the root at zero would meet a tangent of zero.
            return self.profile(safe_sqrt(squared) if has_tangent(squared) else squared.sqrt())
        return _Radial.apply(squared, self, tuple(tensors), *tensors.values())  # type: ignore[no-any-return]

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

    @full_precision
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """The kernel matrix of every row of `a` with every row of `b`."""
        check_points("a", a, batched=True, maybe_empty=True)
        check_points("b", b, batched=True, maybe_empty=True)
        check_alike(a=a, b=b)
        check_same_features("a", a, "b", b)
        check_broadcastable(a=a, b=b)
        return self.of_squared(squared_distances(self.embed(a), self.embed(b)))

    def extra_repr(self) -> str:
        scale = self.lengthscale
        text = shown(scale) if scale.numel() == 1 else f"({len(scale)} features)"
        return f"lengthscale={text}" + (", learned" if isinstance(self.log_lengthscale, nn.Parameter) else "")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        add_dimension(self.settings, state_dict, prefix)
        resize_buffers(self, self.settings, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return without_graph(self)

    def _apply(self, fn: Any, recurse: bool = True) -> Kernel:
        return super()._apply(keep_double(self, fn), recurse)  # type: ignore[no-any-return]


class _Radial(torch.autograd.Function):
    r"""$\varphi(\sqrt s)$, whose slope in $s$ is $\varphi'(d)/(2d)$: finite for smooth profiles, even at zero.

    The tensors of the profile are inputs, after their names: inside `torch.func` those of the kernel are not the ones to
    compute with.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(squared: Tensor, kernel: Kernel, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
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


class SmoothKernel(Kernel):
    r"""A profile that is even and smooth at zero, so that $\varphi'(d)/d$ has a limit there."""

    def slope(self, distance: Tensor) -> Tensor:
        return distance * self.slope_over_distance(distance)
