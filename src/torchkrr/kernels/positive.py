"""Positive definite kernels: usable with any trend, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._checks import check_choice, check_integer, check_positive, check_scalar
from .._state import register_setting, shown
from ..errors import InputError
from ..transforms import Transform
from .base import Kernel, SmoothKernel


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


class Matern32(SmoothKernel):
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


class Matern52(SmoothKernel):
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


class Gaussian(SmoothKernel):
    r"""$\varphi(d) = e^{-d^2/2}$: infinitely smooth (RBF); its Gram matrices are badly conditioned.

    Example:
        >>> Gaussian()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.6065]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return torch.exp(-0.5 * distance.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -torch.exp(-0.5 * distance.square())


class RationalQuadratic(SmoothKernel):
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


class InverseMultiquadric(SmoothKernel):
    r"""$\varphi(d) = (1 + d^2)^{-1/2}$: smooth, with slowly decaying influence.

    Example:
        >>> InverseMultiquadric()(torch.tensor([[0.0]]), torch.tensor([[1.0]]))
        tensor([[0.7071]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return torch.rsqrt(1 + distance.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -torch.rsqrt(1 + distance.square()).pow(3)


class InverseQuadratic(SmoothKernel):
    r"""$\varphi(d) = 1/(1 + d^2)$: smooth, with influence that decays faster than that of `InverseMultiquadric`.

    Example:
        >>> InverseQuadratic()(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
        tensor([[0.2000]])
    """

    def profile(self, distance: Tensor) -> Tensor:
        return 1 / (1 + distance.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -2 / (1 + distance.square()).square()


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
