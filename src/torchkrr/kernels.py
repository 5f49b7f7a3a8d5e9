r"""Kernels: a radial profile on an embedding.

$$ k(a, b) = \varphi\bigl(|e(a) - e(b)|\bigr), \qquad e(x) = S(x) / \ell $$

`embed` is $e$: the normalizing map $S$ (`input_transform`), then the lengthscale $\ell$. `profile` is $\varphi$, with
$\varphi(0) = 1$. Everything else in the library sees only embedded points and a profile, so a kernel of your own is a
subclass with one method:

    class Cauchy(Kernel):
        def profile(self, distance):
            return 1 / (1 + distance.square())

Its slope is then found by autograd. Tensors that `profile` computes with must be registered, as Parameters or buffers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._checks import (
    check_alike,
    check_broadcastable,
    check_choice,
    check_floating,
    check_integer,
    check_points,
    check_positive,
    check_same_features,
    check_scalar,
    check_tensor,
    nearest_name,
)
from ._state import add_dimension, keep_double, register_setting, resize_buffers, shown, with_tensors, without_graph
from ._tensors import full_precision, has_tangent, is_transformed, needs_gradient
from .distances import safe_sqrt, squared_distances
from .errors import BackendError, InputError, InputTypeError, ShapeError
from .transforms import StandardMean, Transform

__all__ = [
    "Exponential",
    "Gaussian",
    "InverseMultiquadric",
    "Kernel",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "Wendland",
    "default_kernel",
]
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
        r"""$\varphi(d)$, elementwise, with $\varphi(0) = 1$."""
        raise NotImplementedError

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


class _SmoothKernel(Kernel):
    r"""A profile that is even and smooth at zero, so that $\varphi'(d)/d$ has a limit there."""

    def slope(self, distance: Tensor) -> Tensor:
        return distance * self.slope_over_distance(distance)


class Exponential(Kernel):
    r"""$\varphi(d) = e^{-d}$: the paper's kernel and the default (Matern 1/2).

    Example:
        >>> Exponential(2.0)(torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]]))
        tensor([[1.0000, 0.3679]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return torch.exp(-distance)

    def slope(self, distance: Tensor) -> Tensor:
        return -torch.exp(-distance)


class Matern32(_SmoothKernel):
    r"""$\varphi(d) = (1 + \sqrt3 d)\,e^{-\sqrt3 d}$: once differentiable sample functions.

    Example:
        >>> Matern32()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.4834]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        scaled = math.sqrt(3) * distance
        return (1 + scaled) * torch.exp(-scaled)

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -3 * torch.exp(-math.sqrt(3) * distance)


class Matern52(_SmoothKernel):
    r"""$\varphi(d) = (1 + \sqrt5 d + \tfrac53 d^2)\,e^{-\sqrt5 d}$: twice differentiable sample functions.

    Example:
        >>> Matern52()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.5240]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        scaled = math.sqrt(5) * distance
        return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        scaled = math.sqrt(5) * distance
        return -5 / 3 * (1 + scaled) * torch.exp(-scaled)


class Gaussian(_SmoothKernel):
    r"""$\varphi(d) = e^{-d^2/2}$: infinitely smooth (RBF); its Gram matrices are badly conditioned.

    Example:
        >>> Gaussian()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.6065]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return torch.exp(-0.5 * distance.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -torch.exp(-0.5 * distance.square())


class RationalQuadratic(_SmoothKernel):
    r"""$\varphi(d) = (1 + \tfrac{d^2}{2\alpha})^{-\alpha}$: a mixture of Gaussians of many lengthscales.

    Args:
        alpha: positive; large values approach the Gaussian.
        learn_alpha: make it a Parameter (its logarithm is stored, so it stays positive).

    Example:
        >>> RationalQuadratic()(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
        tensor([[0.3333]])
    """

    settings = ("log_lengthscale", "log_alpha")
    log_alpha: Tensor

    def __init__(
        self,
        lengthscale: float | Sequence[float] | Tensor = 1.0,
        *,
        alpha: float | Tensor = 1.0,
        learn_alpha: bool = False,
        learn_lengthscale: bool = False,
        input_transform: Transform | None = None,
    ) -> None:
        super().__init__(lengthscale, learn_lengthscale=learn_lengthscale, input_transform=input_transform)
        check_positive("alpha", alpha)
        check_scalar("alpha", alpha)
        register_setting(self, "log_alpha", torch.as_tensor(alpha, dtype=torch.float64).log(), learn=learn_alpha)

    @property
    def alpha(self) -> Tensor:
        """Alpha, positive, in float64, `(1,)`."""
        return self.log_alpha.double().exp()

    def profile(self, distance: Tensor) -> Tensor:
        alpha = self._alpha_for(distance)
        return torch.exp(-alpha * torch.log1p(distance.square() / (2 * alpha)))

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        alpha = self._alpha_for(distance)
        return -torch.exp(-(alpha + 1) * torch.log1p(distance.square() / (2 * alpha)))

    def _alpha_for(self, distance: Tensor) -> Tensor:
        """Alpha as a 0-d tensor, so that one distance stays one."""
        return self.alpha.to(dtype=distance.dtype, device=distance.device).squeeze(-1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={shown(self.alpha)}"


class InverseMultiquadric(_SmoothKernel):
    r"""$\varphi(d) = (1 + d^2)^{-1/2}$: smooth, with slowly decaying influence.

    Example:
        >>> InverseMultiquadric()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.7071]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return torch.rsqrt(1 + distance.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -torch.rsqrt(1 + distance.square()).pow(3)


class Wendland(Kernel):
    r"""Compactly supported polynomials: zero from $d = 1$ on, positive definite up to `dimension` features.

    With $r = (1-d)_+$ and $n = \lfloor\text{dimension}/2\rfloor + \text{smoothness} + 1$:

    | smoothness | $\varphi(d)$ |
    |---|---|
    | 0 | $r^{n}$ |
    | 1 | $r^{n+1}\,((n+1)d + 1)$ |
    | 2 | $r^{n+2}\,((n^2+4n+3)d^2 + (3n+6)d + 3)/3$ |
    | 3 | $r^{n+3}\,((n^3+9n^2+23n+15)d^3 + (6n^2+36n+45)d^2 + (15n+45)d + 15)/15$ |

    Args:
        dimension: the largest number of embedded features it may see; more is an error, because positive
            definiteness is lost.
        smoothness: 0 to 3; the kernel is $2\cdot$`smoothness` times differentiable.

    Example:
        >>> Wendland(dimension=3)(torch.tensor([[0.0]]), torch.tensor([[0.5], [1.0]]))
        tensor([[0.1875, 0.0000]])
    """

    def __init__(
        self,
        lengthscale: float | Sequence[float] | Tensor = 1.0,
        *,
        dimension: int,
        smoothness: int = 1,
        learn_lengthscale: bool = False,
        input_transform: Transform | None = None,
    ) -> None:
        super().__init__(lengthscale, learn_lengthscale=learn_lengthscale, input_transform=input_transform)
        check_choice("smoothness", smoothness, (0, 1, 2, 3))
        check_positive("dimension", dimension)
        check_integer("dimension", dimension)
        self.dimension = dimension
        self.smoothness = smoothness
        self.exponent = dimension // 2 + smoothness + 1

    def embed(self, x: Tensor) -> Tensor:
        embedded = super().embed(x)
        if embedded.shape[-1] > self.dimension:
            raise InputError(
                f"Wendland(dimension={self.dimension}) is not positive definite in {embedded.shape[-1]} embedded features. "
                f"Construct it with dimension={embedded.shape[-1]}, or reduce the features with an input_transform."
            )
        return embedded

    def profile(self, distance: Tensor) -> Tensor:
        n, d = self.exponent, distance
        support = (1 - d).clamp_min(0).pow(n + self.smoothness)
        if self.smoothness == 0:
            return support
        if self.smoothness == 1:
            return support * ((n + 1) * d + 1)
        if self.smoothness == 2:
            return support * (((n**2 + 4 * n + 3) * d + (3 * n + 6)) * d + 3) / 3
        cubic, square, linear = n**3 + 9 * n**2 + 23 * n + 15, 6 * n**2 + 36 * n + 45, 15 * n + 45
        return support * (((cubic * d + square) * d + linear) * d + 15) / 15

    def slope(self, distance: Tensor) -> Tensor:
        if self.smoothness == 0:
            inside = -self.exponent * (1 - distance).clamp_min(0).pow(self.exponent - 1)
            return torch.where(distance < 1, inside, 0.0)  # with exponent 1 the power is one outside too
        return distance * self.slope_over_distance(distance)

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        if self.smoothness == 0:
            return super().slope_over_distance(distance)
        n, d = self.exponent, distance
        support = (1 - d).clamp_min(0).pow(n + self.smoothness - 1)
        if self.smoothness == 1:
            return -(n + 1) * (n + 2) * support
        if self.smoothness == 2:
            return -(n + 3) * (n + 4) / 3 * support * ((n + 1) * d + 1)
        return -(n + 5) * (n + 6) / 15 * support * (((n**2 + 4 * n + 3) * d + (3 * n + 6)) * d + 3)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dimension={self.dimension}, smoothness={self.smoothness}"


def name_of_kernel(kernel: Kernel) -> str:
    """A text from which `kernel_from_name` makes a kernel with the same profile."""
    if type(kernel) not in BY_NAME.values():
        raise BackendError(
            f"{type(kernel).__name__} is no kernel of torchkrr, so torch.compile and torch.export cannot keep it by name. "
            "Leave the layer out of the compiled part, with torch.compiler.disable."
        )
    shape = f":{kernel.dimension}:{kernel.smoothness}" if isinstance(kernel, Wendland) else ""
    return f"{type(kernel).__name__}{shape}"


def kernel_from_name(text: str, tensors: Sequence[Tensor]) -> Kernel:
    """The kernel of lengthscale one whose profile computes with `tensors`; its points are embedded already."""
    name, *shape = text.split(":")
    settings = dict(zip(("dimension", "smoothness"), map(int, shape), strict=False))
    kernel: Kernel = BY_NAME[name](**settings)
    return with_profile(kernel, tuple(kernel.profile_tensors()), tensors)


def check_kernel(kernel: Any) -> None:
    if not isinstance(kernel, Kernel):
        got = f"the class {kernel.__name__}" if isinstance(kernel, type) else type(kernel).__name__
        raise InputTypeError(f"kernel must be a kernel such as torchkrr.kernels.Exponential(), got {got}.")


def default_kernel(centers: Tensor, name: str = "exponential") -> Kernel:
    """The kernel with this name on `StandardMean`, fitted on the centers; the paper's, if no name is given.

    Example:
        >>> default_kernel(torch.randn(20, 3)).embed(torch.randn(4, 3)).shape
        torch.Size([4, 3])
        >>> type(default_kernel(torch.randn(20, 3), "matern32")).__name__
        'Matern32'
    """
    return kernel_class(name)(input_transform=StandardMean().fit(centers.detach()))


def kernel_class(name: str) -> type[Kernel]:
    """The kernel that a user calls by this name."""
    if name not in PLAIN_NAMES:
        near = nearest_name(name, tuple(PLAIN_NAMES))
        remedy = f"Did you mean {near!r}?" if near else "Or give a kernel such as torchkrr.kernels.Exponential()."
        raise InputError(f"kernel must be one of {', '.join(map(repr, PLAIN_NAMES))}, got {name!r}. {remedy}")
    return PLAIN_NAMES[name]


BY_NAME: dict[str, Any] = {
    kernel.__name__: kernel
    for kernel in (Exponential, Matern32, Matern52, Gaussian, RationalQuadratic, InverseMultiquadric, Wendland)
}
PLAIN_NAMES: dict[str, type[Kernel]] = {  # such as "rational_quadratic"; Wendland needs a dimension
    re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower(): kernel for name, kernel in BY_NAME.items() if kernel is not Wendland
}
