"""Input validation that several files share, and its wording.

Each message says what was expected, what came, and what to do about it.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ._tensors import is_plain, working_dtype
from .errors import InputError, InputTypeError, ShapeError

FINITE_BLOCK = 1 << 22  # entries looked at together
NUMBERED = (
    "Number the classes, and give each an output: classes, labels = numpy.unique(values, return_inverse=True), then "
    "torch.nn.functional.one_hot(torch.as_tensor(labels)).to(dtype), with the dtype of the centers."
)
Trend = Literal["constant", "linear"] | int | None
DEGREES = {"constant": 0, "linear": 1}  # of the trends with names
INDEX_DTYPES = (torch.int64, torch.int32)
SEARCH_AGAIN = "Search the neighbors again for these centers."


def check_tensor(name: str, tensor: Any) -> None:
    if isinstance(tensor, Tensor):
        return
    received, remedy = type(tensor).__name__, f"Convert it first, for instance with torch.as_tensor({name})."
    if hasattr(tensor, "to_numpy") or isinstance(tensor, (str, list, tuple, np.ndarray)):
        first = np.asarray(tensor, dtype=object).ravel()[:1].tolist()
        if first and isinstance(first[0], str):
            received += f" with the text {first[0]!r}"
            remedy = NUMBERED if name == "values" else "Turn text into numbers first, such as a column for each category."
    raise InputTypeError(f"{name} must be a torch.Tensor, got {received}. {remedy}")


def check_floating(name: str, tensor: Tensor, *, remedy: str | None = None) -> None:
    if not tensor.is_floating_point():
        remedy = remedy or f"Convert it, for instance with {name}.float()."
        raise InputTypeError(f"{name} must have a floating dtype, got {tensor.dtype}. {remedy}")


def check_nonempty(name: str, tensor: Tensor) -> None:
    if tensor.numel() == 0:
        raise ShapeError(f"{name} is empty (shape {tuple(tensor.shape)}). Give at least one row with at least one feature.")


def check_points(name: str, tensor: Any, *, batched: bool = False, maybe_empty: bool = False) -> None:
    """Floating points of shape (N, D), or (*, N, D) if `batched`; at least one row, unless `maybe_empty`."""
    check_tensor(name, tensor)
    check_floating(name, tensor)
    one_row, flat = f"For instance, {name}[None, :] makes one row of it.", f"For instance, flatten {name} to two dimensions."
    _check_matrix(name, tensor, batched, "rows, features", one_row if tensor.ndim == 1 else flat)
    if not maybe_empty or tensor.shape[-1] == 0:
        check_nonempty(name, tensor)


def check_values(values: Any, *, batched: bool = False, maybe_empty: bool = False) -> None:
    """Floating values of shape (N, C), or (*, N, C) if `batched`; at least one row, unless `maybe_empty`."""
    check_tensor("values", values)
    labels = (
        "For class labels use torchkrr.nn.LocalKernelRidge.from_labels, or torch.nn.functional.one_hot(labels).to(dtype) "
        "with the dtype of the centers; for numbers use values.to(dtype), and values[:, None] for one output per center."
    )
    check_floating("values", values, remedy=labels)
    one_column, flat = labels, "Flatten it first."
    _check_matrix("values", values, batched, "N, C", one_column if values.ndim == 1 else flat)
    if not maybe_empty or values.shape[-1] == 0:
        check_nonempty("values", values)


def _check_matrix(name: str, tensor: Tensor, batched: bool, dimensions: str, remedy: str) -> None:
    if tensor.ndim < 2 or (not batched and tensor.ndim > 2):
        expected = f"(*, {dimensions})" if batched else f"({dimensions})"
        raise ShapeError(f"{name} must have shape {expected}, got {tuple(tensor.shape)}. {remedy}")


def check_alike(**tensors: Tensor) -> None:
    """All tensors share one dtype and one device."""
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.dtype != first.dtype:
            raise InputTypeError(
                f"{', '.join(tensors)} must share one dtype, but {first_name} is {first.dtype} and "
                f"{name} is {tensor.dtype}. Convert one of them, for instance {name}.to({first_name}.dtype)."
            )
        if tensor.device != first.device:
            raise InputError(
                f"{', '.join(tensors)} must be on one device, but {first_name} is on {first.device} and "
                f"{name} is on {tensor.device}. Move one of them, for instance {name}.to({first_name}.device)."
            )


def check_same_features(first_name: str, first: Tensor, second_name: str, second: Tensor) -> None:
    if first.shape[-1] != second.shape[-1]:
        raise ShapeError(
            f"{first_name} has {first.shape[-1]} features but {second_name} has {second.shape[-1]}. "
            "Both must come from the same feature space, for instance the same backbone stage."
        )


def check_same_rows(first_name: str, first: Tensor, second_name: str, second: Tensor) -> None:
    if first.shape[-2] != second.shape[-2]:
        raise ShapeError(
            f"{first_name} has {first.shape[-2]} rows but {second_name} has {second.shape[-2]}. "
            f"Each row of {first_name} needs its row of {second_name}."
        )


def check_broadcastable(**tensors: Tensor) -> None:
    """The leading dimensions (all but the last two) broadcast."""
    if all(tensor.ndim <= 2 for tensor in tensors.values()):
        return
    leading = {name: tensor.shape[:-2] for name, tensor in tensors.items()}
    try:
        torch.broadcast_shapes(*leading.values())
    except RuntimeError:
        got = ", ".join(f"{name} has {tuple(shape)}" for name, shape in leading.items())
        raise ShapeError(f"The leading dimensions must broadcast, but {got}. Expand or unsqueeze one of them.") from None


def check_finite(name: str, tensor: Tensor) -> None:
    if not is_plain(tensor):
        return
    # The sum is one pass without a temporary; only a suspicious sum pays for the full test.
    if math.isfinite(tensor.detach().sum().item()):
        return
    # In blocks: half precision may overflow in any sum, and the tensor may be a file larger than memory.
    tensor = torch.atleast_1d(tensor.detach())
    rows = max(1, FINITE_BLOCK * len(tensor) // tensor.numel())
    blocks = tensor.split(rows)
    counts = [int((~torch.isfinite(block)).sum()) for block in blocks]
    if any(counts):
        number = next(number for number, count in enumerate(counts) if count)
        row, *rest = (~torch.isfinite(blocks[number])).nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite, but {sum(counts)} of {tensor.numel()} entries are NaN or infinite "
            f"(the first at {(number * rows + row, *rest)}). Remove or impute those rows."
        )


def check_integer(name: str, value: Any) -> None:
    if type(value) is int:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):  # numpy's integers are welcome
        raise InputTypeError(f"{name} must be an int, got {value!r}.")


def check_num_neighbors(num_neighbors: Any, num_available: int, *, what: str = "the number of centers") -> None:
    remedy = " Lower num_neighbors, or use KernelRidge, which solves on every center."
    check_count("num_neighbors", num_neighbors, num_available, what=what, remedy=remedy)


def check_count(
    name: str, count: Any, most: int, *, least: int = 1, what: str = "the number of points", remedy: str = ""
) -> None:
    check_integer(name, count)
    if not least <= count <= most:
        raise InputError(f"{name} must lie between {least} and {what} ({most}), got {count}.{remedy}")


def check_at_least_one(name: str, count: Any) -> None:
    check_integer(name, count)
    if count < 1:
        raise InputError(f"{name} must be at least 1, got {count}.")


def check_indices(name: str, indices: Any, num_rows: int | None, centers: Tensor, *, what: str = "centers") -> None:
    """Integer indices of shape (Q, M) with entries in [0, N); any number of rows if `num_rows` is None."""
    rows = "" if num_rows is None else f" with one row for each of the {num_rows} queries"
    check_index_tensor(name, indices, centers, (num_rows, None), f"(Q, M){rows}")
    if indices.shape[1] == 0:
        raise ShapeError(f"{name} has no columns. Give at least one neighbor per query.")
    check_index_range(name, indices, len(centers), what=what)


def check_index_list(name: str, indices: Any, centers: Tensor) -> None:
    """Integer indices of shape (n,), not empty, with entries in [0, N)."""
    check_index_tensor(name, indices, centers, (None,), "(n,) with at least one row of the centers", maybe_empty=False)
    check_index_range(name, indices, len(centers))


def check_index_rows(name: str, indices: Any, num_rows: int, of: str, centers: Tensor) -> None:
    """Integer indices with one row for each of the `num_rows` things named `of`, and entries in [0, N)."""
    expected = f"({num_rows}, M), one row for each {of}"
    check_index_tensor(name, indices, centers, (num_rows, None), expected, maybe_empty=False)
    check_index_range(name, indices, len(centers))


def check_index_tensor(
    name: str, indices: Any, centers: Tensor, shape: Sequence[int | None], expected: str, *, maybe_empty: bool = True
) -> None:
    """Integers on the device of the centers; `None` in the shape is any number."""
    check_tensor(name, indices)
    if indices.device != centers.device:
        raise InputError(
            f"{name} must be on the device of the centers, {centers.device}, but is on {indices.device}. "
            f"Move it with {name}.to(centers.device)."
        )
    if indices.dtype not in INDEX_DTYPES:
        raise InputTypeError(f"{name} must have dtype torch.int64, got {indices.dtype}. Use {name}.long().")
    fits = indices.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, indices.shape, strict=True))
    if not fits or not (maybe_empty or indices.numel()):
        raise ShapeError(f"{name} must have shape {expected}, got {tuple(indices.shape)}.")


def check_index_range(
    name: str, indices: Tensor, num_centers: int, *, what: str = "centers", then: str = SEARCH_AGAIN
) -> None:
    if not indices.numel() or not is_plain(indices):
        return
    low, high = map(int, torch.aminmax(indices))
    if low < 0 or high >= num_centers:
        raise InputError(
            f"{name} must lie between 0 and {num_centers - 1} (there are {num_centers} {what}), "
            f"got values from {low} to {high}. {then}"
        )


def check_ridge(ridge: Any, num_centers: int | None = None) -> None:
    """A non-negative number or 0-d tensor, or one per center if `num_centers` is given."""
    if isinstance(ridge, Tensor):
        check_floating("ridge", ridge)
        if ridge.ndim != 0 and (num_centers is None or tuple(ridge.shape) != (num_centers,)):
            expected = "a number or a 0-d tensor" + (f", or have shape ({num_centers},)" if num_centers else "")
            raise ShapeError(f"ridge must be {expected}, got shape {tuple(ridge.shape)}.")
    elif not isinstance(ridge, (int, float, np.float32, np.float16, np.integer)) or isinstance(ridge, bool):
        raise InputTypeError(f"ridge must be a number or a tensor, got {type(ridge).__name__}.")
    smallest, largest = _extremes(ridge)
    if not (smallest >= 0 and largest < math.inf):
        wrong = smallest if not smallest >= 0 else largest
        raise InputError(f"ridge must be finite and not negative, got {wrong}. A typical value is 1e-9.")


def _extremes(value: Any) -> tuple[float, float]:
    """The smallest and the largest number in `value`, or ones where numbers cannot be read."""
    if isinstance(value, Tensor) and not is_plain(value):
        return 1.0, 1.0
    low, high = torch.aminmax(value.detach()) if isinstance(value, Tensor) else (value, value)
    return float(low), float(high)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def degree_of(trend: Trend) -> int:
    """The degree of a trend that has been checked, -1 for none."""
    if trend is None:
        return -1
    return DEGREES[trend] if isinstance(trend, str) else trend


def check_trend(trend: Any, kernel: Any = None) -> None:
    """None, a name or a degree; one that the kernel, if given, can do with."""
    named = trend is None or (isinstance(trend, str) and trend in DEGREES)
    if not named and (isinstance(trend, bool) or not isinstance(trend, numbers.Integral) or trend < 0):
        names = ", ".join(map(repr, (None, *DEGREES)))
        raise InputError(f"trend must be one of {names}, or the degree of a polynomial (0, 1, 2, ...), got {trend!r}.")
    if kernel is not None and kernel.order > degree_of(trend) + 1:
        needed = kernel.order - 1
        name = {degree: repr(name) for name, degree in DEGREES.items()}.get(needed, str(needed))
        raise InputError(
            f"{type(kernel).__name__} is conditionally positive definite of order {kernel.order}: it needs a trend of "
            f"degree {needed} or more, got trend={trend!r}. Use trend={name}."
        )


def check_device(device: Any) -> None:
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:  # a build of torch without CUDA asserts
        raise InputError(f"device must be one that torch can use here, such as cpu, got {device!r}.") from error


def check_positive(name: str, value: Any) -> None:
    """A positive finite number, or a tensor of them."""
    if isinstance(value, Tensor):
        positive = value.numel() > 0
    else:
        positive = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not positive:
        raise InputTypeError(f"{name} must be a positive number, got {value!r}.")
    lowest, highest = _extremes(value)
    if not (lowest > 0 and highest < math.inf):
        raise InputError(f"{name} must be positive and finite, got {highest if lowest > 0 else lowest}.")


def check_scalar(name: str, value: Any) -> None:
    """A number or a 0-d tensor."""
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(f"{name} must be a number or a 0-d tensor, got shape {tuple(value.shape)}.")


def check_searchable(name: str, points: Tensor, *, among_themselves: bool = True) -> None:
    """Finite, and squared distances are numbers: not infinite, and not zero between different points.

    Queries may be as small as they like, since they are not compared among themselves.
    """
    low, high = torch.aminmax(points.detach())
    largest = max(-float(low), float(high))
    if not largest < math.inf:  # NaN is both smallest and largest
        check_finite(name, points)
    limits = torch.finfo(working_dtype(points.dtype))
    smallest = limits.tiny**0.5 if among_themselves and largest else -1.0
    if not smallest < largest < (limits.max / points.shape[1]) ** 0.5 / 4:
        raise InputError(
            f"{name} have entries up to {largest:.1e}, whose squares {limits.dtype} cannot hold. "
            "Scale the features, for instance with Standardize, or use float64."
        )


def nearest_name(name: str, known: Sequence[str], *, alike: float = 0.5) -> str | None:
    """The known name most like this one, whichever letters are capitals, if one is like it at all.

    Example:
        >>> nearest_name("bmi", ["age", "BMI", "bmj"])
        'BMI'
    """
    plain = [one.strip().casefold() for one in known]
    near = difflib.get_close_matches(name.strip().casefold(), plain, 1, cutoff=alike)
    return known[plain.index(near[0])] if near else None
