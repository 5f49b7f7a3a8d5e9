r"""Conditionally positive definite kernels: they need a polynomial trend.

A kernel of order $m$ has $c^\top k(x, x)\,c > 0$ for all coefficients $c \ne 0$ that annihilate the polynomials of degree
below $m$ at the points $x$. With a trend of degree $m - 1$ or more its systems have one solution; with less, an error says
so.

Their signs are those that make them positive in this sense. None decays: far from the centers a prediction follows the trend
and the growth of the kernel. The power function has the unit of the kernel, and is not bounded by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Kernel, SmoothKernel


class Linear(Kernel):
    r"""$\varphi(d) = -d$, of order 1: in one dimension, piecewise linear interpolation.

    Example:
        >>> Linear()(torch.tensor([[0.0]]), torch.tensor([[3.0]]))
        tensor([[-3.]])
    """

    order = 1
    at_zero = 0.0

    def profile(self, distance: Tensor) -> Tensor:
        return -distance

    def unit(self, radius: Tensor) -> Tensor:
        return radius

    def slope(self, distance: Tensor) -> Tensor:
        return -torch.ones_like(distance)


class ThinPlateSpline(Kernel):
    r"""$\varphi(d) = d^2 \log d$, of order 2: in two dimensions, the interpolant of least bending energy.

    With a linear trend and no ridge the lengthscale does not matter.

    Example:
        >>> ThinPlateSpline()(torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0]]))
        tensor([[0.0000, 2.7726]])
    """

    order = 2
    at_zero = 0.0

    def profile(self, distance: Tensor) -> Tensor:
        return distance.square() * _log(distance)

    def unit(self, radius: Tensor) -> Tensor:
        return radius.square()

    def slope(self, distance: Tensor) -> Tensor:
        return distance * (1 + 2 * _log(distance))

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        # Infinite at zero, where the slope is zero: the difference of the points, which it multiplies, is zero as well.
        return torch.where(distance > 0, 1 + 2 * _log(distance), 0.0)


class Cubic(SmoothKernel):
    r"""$\varphi(d) = d^3$, of order 2: in one dimension, the natural cubic spline.

    Example:
        >>> Cubic()(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
        tensor([[8.]])
    """

    order = 2
    at_zero = 0.0

    def profile(self, distance: Tensor) -> Tensor:
        return distance.pow(3)

    def unit(self, radius: Tensor) -> Tensor:
        return radius.pow(3)

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return 3 * distance


class Quintic(SmoothKernel):
    r"""$\varphi(d) = -d^5$, of order 3: in one dimension, the natural quintic spline.

    Example:
        >>> Quintic()(torch.tensor([[0.0]]), torch.tensor([[2.0]]))
        tensor([[-32.]])
    """

    order = 3
    at_zero = 0.0

    def profile(self, distance: Tensor) -> Tensor:
        return -distance.pow(5)

    def unit(self, radius: Tensor) -> Tensor:
        return radius.pow(5)

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -5 * distance.pow(3)


class Multiquadric(SmoothKernel):
    r"""$\varphi(d) = -\sqrt{1 + d^2}$, of order 1: smooth at the centers, and linear far from them.

    Example:
        >>> Multiquadric()(torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0]]))
        tensor([[-1.0000, -1.4142]])
    """

    order = 1
    at_zero = -1.0

    def profile(self, distance: Tensor) -> Tensor:
        return -torch.sqrt(1 + distance.square())

    def unit(self, radius: Tensor) -> Tensor:
        return torch.sqrt(1 + radius.square())

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        return -torch.rsqrt(1 + distance.square())


def _log(distance: Tensor) -> Tensor:
    """The logarithm, and zero at zero with a finite derivative there."""
    return torch.where(distance > 0, distance, 1.0).log()
