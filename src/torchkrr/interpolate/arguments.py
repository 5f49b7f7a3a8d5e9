"""The arguments of scipy's `RBFInterpolator`: arrays to tensors, names to kernels, and what is wrong with them."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from .._checks import check_finite, check_positive, nearest_name
from .._tensors import is_plain
from ..core.tails import num_monomials
from ..errors import InputError, InputTypeError, ShapeError
from ..kernels import Kernel

KERNELS: dict[str, type[Kernel]] = {
    "thin_plate_spline": kernels.ThinPlateSpline,
    "linear": kernels.Linear,
    "cubic": kernels.Cubic,
    "quintic": kernels.Quintic,
    "multiquadric": kernels.Multiquadric,
    "inverse_multiquadric": kernels.InverseMultiquadric,
    "inverse_quadratic": kernels.InverseQuadratic,
    "gaussian": kernels.Gaussian,
}
POWERS = {"thin_plate_spline": 2, "linear": 1, "cubic": 3, "quintic": 5}  # of the kernels that a scale only multiplies


class Data(NamedTuple):
    """The data sites and what was measured there."""

    y: Tensor  # (N, D)
    d: Tensor  # (N, C): real, or real and imaginary parts by turns
    shape: tuple[int, ...]  # of one value
    is_complex: bool
    is_torch: bool  # tensors came, and tensors are given back


def read_data(y: Any, d: Any) -> Data:
    """In float64, or for tensors in the wider of their dtypes."""
    is_torch = isinstance(y, Tensor) or isinstance(d, Tensor)
    y, d = _tensor("y", y), _tensor("d", d)
    is_complex = d.is_complex()
    if y.is_complex():
        raise InputTypeError("`y` are places, and must be real; only `d` may be complex.")
    d = d if d.ndim else d.reshape(1)
    dtype = _floating(torch.promote_types(y.dtype, d.real.dtype if is_complex else d.dtype)) if is_torch else torch.float64
    if y.ndim != 2:
        raise ShapeError(f"`y` must be a 2-dimensional array. It has shape {tuple(y.shape)}; one row is one data site.")
    if y.shape[1] == 0:
        raise ShapeError("`y` has no columns. Give at least one coordinate.")
    if d.shape[0] != y.shape[0]:
        raise ShapeError(f"Expected the first axis of `d` to have length {y.shape[0]}, got shape {tuple(d.shape)}.")
    if y.device != d.device:
        raise InputError(f"`y` is on {y.device} but `d` is on {d.device}. Move one of them.")
    shape = tuple(d.shape[1:])
    d = d.to(torch.complex64 if dtype == torch.float32 else torch.complex128) if is_complex else d.to(dtype)
    d = torch.view_as_real(d.resolve_conj()) if is_complex else d
    y, d = y.to(dtype), d.reshape(len(y), math.prod(shape) * (1 + is_complex))
    check_finite("`y`", y)
    check_finite("`d`", d)
    return Data(y, d, shape, is_complex, is_torch)


def read_smoothing(smoothing: Any, like: Tensor) -> float | Tensor:
    """A number, a tensor `()`, or one number for each data site `(N,)`."""
    found = _tensor("smoothing", smoothing)
    if found.shape not in ((), (len(like),)):
        raise ShapeError(f"Expected `smoothing` to be a number or to have shape ({len(like)},), got {tuple(found.shape)}.")
    check_finite("`smoothing`", found)
    if is_plain(found) and bool((found.detach() < 0).any()):
        raise InputError(f"`smoothing` must not be negative, got {float(found.detach().min())}.")
    if found.device != like.device:
        raise InputError(f"`smoothing` is on {found.device} but the data are on {like.device}. Move one of them.")
    return float(found) if found.ndim == 0 and is_plain(found) and not found.requires_grad else found


def read_kernel(kernel: Any) -> str:
    name = kernel.lower() if isinstance(kernel, str) else ""
    if name not in KERNELS:
        near = nearest_name(name, tuple(KERNELS)) if name else None
        remedy = f" Did you mean {near!r}?" if near else ""
        raise InputError(f"`kernel` must be one of {', '.join(map(repr, KERNELS))}, got {kernel!r}.{remedy}")
    return name


def read_epsilon(epsilon: Any, kernel: str) -> float | Tensor:
    if epsilon is None:
        if kernel not in POWERS:
            scale_free = ", ".join(map(repr, POWERS))
            raise InputError(
                f"`epsilon` must be specified for {kernel!r}: only {scale_free} do without. One over the distance of "
                "neighboring data sites is a start; larger values make narrower functions."
            )
        return 1.0
    if not isinstance(epsilon, (numbers.Real, np.ndarray, Tensor)) or isinstance(epsilon, bool):
        raise InputTypeError(f"`epsilon` must be a positive number, got {epsilon!r}.")
    found = epsilon if isinstance(epsilon, Tensor) else torch.as_tensor(epsilon, dtype=torch.float64)
    if found.numel() != 1:
        raise ShapeError(f"`epsilon` must be one number, got shape {tuple(found.shape)}.")
    check_positive("`epsilon`", found)
    return found if found.requires_grad or not is_plain(found) else float(found)


def read_degree(degree: Any, kernel: str) -> int:
    least = KERNELS[kernel].order - 1
    if degree is None:
        return max(least, 0)
    if isinstance(degree, bool) or not isinstance(degree, (int, float, np.number)) or int(degree) != degree:
        raise InputTypeError(f"`degree` must be a whole number from -1 on, got {degree!r}.")
    found = int(degree)
    if found < -1:
        raise InputError(f"`degree` must be at least -1, which is no polynomial at all, got {degree}.")
    if -1 < found < least:
        warnings.warn(
            f"`degree` should not be below {least} for {kernel!r}, except for -1: the system may have no solution or "
            f"several, and smoothing may do the opposite of what its name says. Got {degree}.",
            UserWarning,
            stacklevel=3,
        )
    return found


def read_neighbors(neighbors: Any, count: int) -> int | None:
    """`None` is all."""
    if neighbors is None:
        return None
    if isinstance(neighbors, bool) or not isinstance(neighbors, (int, float, np.number)) or not neighbors >= 1:
        raise InputError(f"`neighbors` must be None or a number from 1 on, got {neighbors!r}.")
    return count if neighbors >= count else int(neighbors)


def check_enough(count: int, features: int, degree: int) -> None:
    least = max(1, num_monomials(features, degree) if degree >= 0 else 0)
    if count < least:
        raise InputError(
            f"At least {least} data points are required for `degree` {degree} in {features} dimensions, got {count}. "
            "Give more data points or neighbors, or a lower degree."
        )


def read_queries(x: Any, data: Data) -> Tensor:
    found = _tensor("x", x)
    if found.is_complex():
        raise InputTypeError("`x` are places, and must be real.")
    if found.ndim != 2:
        raise ShapeError(f"`x` must be a 2-dimensional array. It has shape {tuple(found.shape)}; one row is one place.")
    if found.shape[1] != data.y.shape[1]:
        raise ShapeError(
            f"Expected the second axis of `x` to have length {data.y.shape[1]}, got shape {tuple(found.shape)}."
        )
    if found.device != data.y.device:
        raise InputError(f"`x` is on {found.device} but the data are on {data.y.device}. Move one of them.")
    found = found.to(data.y.dtype)
    check_finite("`x`", found)
    return found


def conflict(data: Data, smoothing: float | Tensor) -> tuple[int, int] | None:
    """Two rows with one place, different values and no smoothing: nothing interpolates both."""
    y, d = data.y.detach(), data.d.detach()
    if not is_plain(y, d) or (not isinstance(smoothing, Tensor) and smoothing > 0):
        return None
    # Equal rows have equal sums, rounded step by step in the same way; only rows with equal sums are compared.
    factors = torch.linspace(1.0, 2.0, y.shape[1], dtype=torch.float64).sqrt()
    sums = torch.zeros(len(y), dtype=y.dtype, device=y.device)
    for column, factor in zip(y.unbind(1), factors.tolist(), strict=True):
        sums = sums + column * factor
    sums, order = sums.sort(stable=True)
    first, second = order[:-1], order[1:]
    close = (sums[1:] == sums[:-1]).nonzero().squeeze(1)
    first, second = first[close], second[close]
    clash = (y[first] == y[second]).all(1) & (d[first] != d[second]).any(1)
    if isinstance(smoothing, Tensor):
        free = (smoothing.detach() == 0).expand(len(y))
        clash &= free[first] & free[second]
    pairs = clash.nonzero().squeeze(1)
    return (int(first[pairs[0]]), int(second[pairs[0]])) if len(pairs) else None


def _tensor(name: str, array: Any) -> Tensor:
    """As it is, or an array in float64 or complex128 that shares its memory where it can."""
    if isinstance(array, Tensor):
        return array
    try:
        found = np.asarray(array)
        wide = np.complex128 if np.iscomplexobj(found) else np.float64
        found = np.asarray(found, dtype=wide, order="C")
    except (TypeError, ValueError):
        raise InputTypeError(f"`{name}` must be an array of numbers, got {type(array).__name__}.") from None
    with warnings.catch_warnings():
        # A file that is mapped for reading is never written to here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(found)


def _floating(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32 if dtype.is_floating_point else torch.float64
