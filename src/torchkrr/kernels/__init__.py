"""Kernels: a radial profile on an embedding."""

from .base import Kernel
from .conditional import Cubic, Linear, Multiquadric, Quintic, ThinPlateSpline
from .names import default_kernel
from .positive import (
    Exponential,
    Gaussian,
    InverseMultiquadric,
    InverseQuadratic,
    Matern32,
    Matern52,
    RationalQuadratic,
    Wendland,
)

__all__ = [
    "Cubic",
    "Exponential",
    "Gaussian",
    "InverseMultiquadric",
    "InverseQuadratic",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "Multiquadric",
    "Quintic",
    "RationalQuadratic",
    "ThinPlateSpline",
    "Wendland",
    "default_kernel",
]
