"""Kernels by name, with their formulas."""

from __future__ import annotations

import math

import numpy as np
import torch

from torchkrr import kernels

WENDLAND = [(dimension, smoothness) for dimension in (1, 2, 3, 5, 8) for smoothness in (0, 1, 2, 3)]


ANY_DIMENSION = {
    "Exponential": kernels.Exponential,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "Gaussian": kernels.Gaussian,
    "RationalQuadratic": lambda *arguments, **choices: kernels.RationalQuadratic(*arguments, alpha=0.7, **choices),
    "InverseMultiquadric": kernels.InverseMultiquadric,
    "InverseQuadratic": kernels.InverseQuadratic,
}
# Each with the largest number of features it takes.
WENDLAND_KERNELS = {
    f"Wendland{dimension}{smoothness}": (
        dimension,
        lambda *arguments, _d=dimension, _s=smoothness, **choices: kernels.Wendland(
            *arguments, dimension=_d, smoothness=_s, **choices
        ),
    )
    for dimension, smoothness in WENDLAND
}
RADIAL = {**ANY_DIMENSION, **{name: make for name, (_, make) in WENDLAND_KERNELS.items()}}  # for distances, without points
KERNELS = {  # for points of up to three features
    **ANY_DIMENSION,
    **{name: make for name, (dimension, make) in WENDLAND_KERNELS.items() if dimension >= 3},
}


# Conditionally positive definite, each with its order.
CONDITIONAL = {
    "Linear": (1, kernels.Linear),
    "ThinPlateSpline": (2, kernels.ThinPlateSpline),
    "Cubic": (2, kernels.Cubic),
    "Quintic": (3, kernels.Quintic),
    "Multiquadric": (1, kernels.Multiquadric),
}


PROFILES = {
    "Exponential": lambda d: np.exp(-d),
    "Matern32": lambda d: (1 + math.sqrt(3) * d) * np.exp(-math.sqrt(3) * d),
    "Matern52": lambda d: (1 + math.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-math.sqrt(5) * d),
    "Gaussian": lambda d: np.exp(-(d**2) / 2),
    "RationalQuadratic": lambda d: (1 + d**2 / 1.4) ** -0.7,
    "InverseMultiquadric": lambda d: 1 / np.sqrt(1 + d**2),
    "InverseQuadratic": lambda d: 1 / (1 + d**2),
    # Wendland's own table; r = (1 - d)_+.
    "Wendland30": lambda d: np.maximum(1 - d, 0) ** 2,
    "Wendland31": lambda d: np.maximum(1 - d, 0) ** 4 * (4 * d + 1),
    "Wendland32": lambda d: np.maximum(1 - d, 0) ** 6 * (35 * d**2 + 18 * d + 3) / 3,
    "Wendland33": lambda d: np.maximum(1 - d, 0) ** 8 * (32 * d**3 + 25 * d**2 + 8 * d + 1),
    "Wendland50": lambda d: np.maximum(1 - d, 0) ** 3,
    "Wendland51": lambda d: np.maximum(1 - d, 0) ** 5 * (5 * d + 1),
    "Wendland52": lambda d: np.maximum(1 - d, 0) ** 7 * (16 * d**2 + 7 * d + 1),
}


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), **tolerance)
