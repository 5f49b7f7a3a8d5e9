"""Cells that are singular in their dtype: no crash, no silence.

Float32 cells that are unresolved (see `factor`) are embedded, formed and solved again in float64 with the same ridge: the
posed problem, not another. Only cells unresolved in float64 are solved with a larger ridge, the smallest of a geometric
ladder that resolves them, and one warning per call says how many and how much. `on_singular="raise"` makes that an error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .._checks import check_finite
from .._native import Backend
from .._precision import working_dtype
from ..errors import RidgeRaisedWarning, SolveError
from ..kernels import Kernel
from . import fused
from .cells import CellOptions
from .local import Kind, local_solve

LADDER_FACTOR = 10.0


def solve_cells(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    kernel: Kernel,
    ridge: Tensor,
    trend: bool,
    fade: bool,
    normalize: bool,
    on_singular: str,
    kind: Kind,
    backend: Backend = "auto",
    cache: Any = None,
    embedded: tuple[Tensor, Tensor] | None = None,
    names: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The two outputs of `kind` (see `local`), every cell solved by the policy of this file.

    `ridge` is a scalar, one per center `(N,)`, or one per neighbor `(Q, M)`; `embedded`, if given, are query and centers
    embedded in the working dtype; `cache` needs them, and rows of the centers that mean the same in every call; `names`
    are the numbers of the queries in messages.
    """
    dtype = working_dtype(query.dtype)
    options = CellOptions(kernel, trend, fade, normalize, backend)
    scale = None
    if embedded is None:
        scale = fused.scale_for((query, centers, values, ridge), options) if query.dtype == dtype else None
        if scale is None:
            given = centers
            centers, values, ridge, indices = _used_rows(centers, values, ridge, indices)
            if not math.isfinite(centers.detach().sum().item()):
                check_finite("centers", given)
            embedded = kernel.embed(query.to(dtype)), kernel.embed(centers.to(dtype))
        else:
            embedded = query, centers
    members = indices[:, :-1] if fade else indices
    cell_ridge = ridge.index_select(0, members.flatten()).view(members.shape) if ridge.ndim == 1 else ridge
    first, power_squared, resolved = local_solve(
        *embedded,
        values.to(dtype),
        indices,
        cell_ridge.to(dtype),
        options._replace(cache=cache, scale=scale),  # cells solved again below are numbered anew, and so without a cache
        kind,
    )
    if bool(resolved.all()):
        return first, power_squared
    rows = (~resolved).nonzero().squeeze(-1)
    names = rows if names is None else names[rows]
    given = centers
    centers, values, ridge, indices = _used_rows(centers, values, ridge, indices.index_select(0, rows))
    if scale is not None and not math.isfinite(centers.detach().sum().item()):  # nobody has looked at them yet
        check_finite("centers", given)
    arguments = (query.index_select(0, rows), centers, values, indices)
    if dtype != torch.float64:
        again = solve_cells(
            *(tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments),
            kernel=kernel,
            ridge=ridge.index_select(0, rows) if ridge.ndim == 2 else ridge,
            trend=trend,
            fade=fade,
            normalize=normalize,
            on_singular=on_singular,
            kind=kind,
            backend=backend,
            names=names,
        )
    else:
        base = cell_ridge if cell_ridge.ndim == 0 else cell_ridge.index_select(0, rows)
        again = _with_raised_ridge(*arguments, base.to(dtype), names, options, on_singular, kind)
    return first.index_copy(0, rows, again[0].to(dtype)), power_squared.index_copy(0, rows, again[1].to(dtype))


def _with_raised_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    indices: Tensor,
    base: Tensor,
    names: Tensor,
    options: CellOptions,
    on_singular: str,
    kind: Kind,
) -> tuple[Tensor, Tensor]:
    if on_singular == "raise":
        raise SolveError(_singular_text(query, centers, indices, base, names, options))
    used, positions = torch.unique(indices, return_inverse=True)
    query, centers = options.kernel.embed(query), options.kernel.embed(centers.index_select(0, used))
    values, indices = values.index_select(0, used), positions
    raised = query.new_zeros(len(query), 1)
    rule: Kind = "coefficients" if kind == "coefficients" else "weights"
    remaining = torch.arange(len(query), device=query.device)
    with torch.no_grad():
        for rung in ladder(query.dtype, float(base.detach().min())):
            ridge = torch.clamp_min(base if base.ndim == 0 else base[remaining], rung)
            part = local_solve(query[remaining], centers, values[:, :0], indices[remaining], ridge, options, rule)
            raised[remaining[part.resolved]] = rung
            remaining = remaining[~part.resolved]
            if len(remaining) == 0:
                break
        else:
            raise SolveError(overflow_text(len(remaining), query.dtype))
    result = local_solve(query, centers, values, indices, torch.maximum(base, raised), options, kind)
    warn_raised(len(query), float(raised.max()), query.dtype)
    return result.first, result.power_squared


def _used_rows(centers: Tensor, values: Tensor, ridge: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Only the rows that `indices` names, where that may save work: min(N, Q M) rows are embedded."""
    if indices.numel() >= len(centers):
        return centers, values, ridge, indices
    used, positions = torch.unique(indices, return_inverse=True)
    ridge = ridge.index_select(0, used) if ridge.ndim == 1 else ridge
    return centers.index_select(0, used), values.index_select(0, used), ridge, positions


def ladder(dtype: torch.dtype, above: float) -> Iterator[float]:
    """Ridges to try: powers of ten from the precision of `dtype` up to one, those above the ridge asked for."""
    rung = torch.finfo(dtype).eps
    while rung < LADDER_FACTOR:
        if rung > above:
            yield rung
        rung *= LADDER_FACTOR


def warn_raised(count: int, largest: float, dtype: torch.dtype) -> None:
    warnings.warn(
        f"{count} {'cell is' if count == 1 else 'cells are'} singular in {_name(dtype)} and solved with a larger ridge, at "
        f"most {largest:.1e}. Usual causes: repeated centers, or a lengthscale far above the size of the neighborhoods. "
        'Pass a larger ridge to choose it yourself, or on_singular="raise" for an error.',
        RidgeRaisedWarning,
        stacklevel=2,
    )


def overflow_text(count: int, dtype: torch.dtype) -> str:
    return (
        f"{count} cells cannot be solved with any ridge in {_name(dtype)}: their distances overflow or are not numbers. "
        "Scale the features, for instance with input_transform=StandardMean().fit(centers)."
    )


def _singular_text(
    query: Tensor, centers: Tensor, indices: Tensor, ridge: Tensor, names: Tensor, options: CellOptions
) -> str:
    local = options.kernel.embed(centers[indices[0]]).detach()
    closest = torch.pdist(local.double()).min().item() if len(local) > 1 else 0.0
    return singular_text(
        f"{len(names)} {'neighborhood has' if len(names) == 1 else 'neighborhoods have'} a Gram matrix",
        f"M={indices.shape[1]}",
        ridge,
        query.dtype,
        f"The first is query {int(names[0])}; its two closest centers are {closest:.3g} apart in the embedded space.",
    )


def singular_text(what: str, size: str, ridge: Tensor, dtype: torch.dtype, where: str) -> str:
    larger = max(1e-5, 100 * float(ridge.detach().max()))
    return (
        f"{what} that cannot be solved in {_name(dtype)} (ridge={float(ridge.detach().max()):.3g}, {size}). {where}\n"
        "Likely causes, most common first:\n"
        "  1. repeated centers: remove them, or keep one of each;\n"
        f"  2. the ridge is below what {_name(dtype)} resolves at this size: try ridge={larger:.0e};\n"
        "  3. the lengthscale is far larger than the neighborhood, so all rows look alike.\n"
        'on_singular="warn" solves these cells with the smallest ridge that works.'
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
