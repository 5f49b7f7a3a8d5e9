"""Kernels by their names: those that users write, and those that compiled and exported programs keep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._checks import nearest_name
from ..errors import BackendError, InputError, InputTypeError
from ..transforms import StandardMean
from .base import Kernel, with_profile
from .conditional import Cubic, Linear, Multiquadric, Quintic, ThinPlateSpline
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


def check_definite(kernel: Any) -> None:
    """A kernel that needs no trend."""
    check_kernel(kernel)
    if kernel.order > 0:
        raise InputError(
            f"{type(kernel).__name__} is only conditionally positive definite: it needs a polynomial trend, and "
            "there is none here. Use a kernel such as torchkrr.kernels.Matern32(); functions with a trend take this one."
        )


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
    for kernel in (
        *(Exponential, Matern32, Matern52, Gaussian, RationalQuadratic, InverseMultiquadric, Wendland, InverseQuadratic),
        *(ThinPlateSpline, Linear, Cubic, Quintic, Multiquadric),
    )
}
PLAIN_NAMES: dict[str, type[Kernel]] = {  # such as "rational_quadratic"; Wendland needs a dimension
    re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower(): kernel for name, kernel in BY_NAME.items() if kernel is not Wendland
}
