r"""Hierarchical regression: a coarse dense part, and local parts that vanish on the borders of their cells.

The coarse points divide the space into Voronoi cells. On each cell a local regressor with fixed centers corrects the coarse
one, with a kernel $b(a)k(a, a')b(a')$ whose bump $b$ falls to zero at the border, so that the sum is continuous everywhere.
Coarse points and cells are arguments: they are piecewise constant, so they carry no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._checks import check_finite, check_values
from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from .._tensors import as_double, full_precision, with_a_row, working_dtype
from ..core.local import solve_local
from ..core.options import Kind, OnSingular, SolveOptions, Trend
from ..distances import safe_sqrt
from ..kernels import Kernel
from .ridge import cardinal_weights, kernel_ridge
from .voronoi import Border, Cells, Local, border_of, checked_cells, local_systems, ridge_rows


@full_precision
@with_a_row(5)
def hierarchical_kernel_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    coarse_indices: Tensor,
    cell_members: Tensor,
    query_cells: Tensor,
    center_cells: Tensor,
    *,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    trend: Trend = None,
    on_singular: OnSingular = "warn",
) -> Tensor:
    r"""Kernel ridge regression on coarse points, corrected inside their Voronoi cells.

    With $y^0$ the dense regressor on the coarse points, $\sigma$ the members of the cell of the query $z$ and
    $B = \mathrm{diag}\,b(x^\sigma)$:

    $$ y^0(z) + b(z)\,k(z, x^\sigma)\,B\,\bigl(BKB + \lambda I + I - B^2\bigr)^{-1}(y - y^0)^\sigma, $$

    $b = \min(1, \rho/\tau)$, $\rho = (d_2 - d_1)/(d_1 + d_2)$ from the distances to the two nearest coarse points, and
    $\tau$ the 10 % quantile of $\rho$ over the centers (of the positive ones, if that is zero). Differentiable, twice, in
    the first three arguments, in the parameters of `kernel` and in `ridge`; gradients of the centers go through $b$ and
    through $\tau$. Continuous everywhere.

    Equivalent to

        embedded, coarse = kernel.embed(centers), centers[coarse_indices]

        def ratio(points, cells):
            near, far = (points[:, None] - embedded[coarse_indices[cells]]).norm(dim=-1).unbind(1)
            return (far - near) / (near + far)

        width = ratio(embedded, center_cells).quantile(0.1)
        bumps = (ratio(embedded, center_cells) / width).clamp(max=1)
        at_query = (ratio(kernel.embed(query), query_cells) / width).clamp(max=1)
        points = torch.cat((query, centers))
        fitted = torchkrr.functional.kernel_ridge(points, coarse, values[coarse_indices], kernel=kernel, ridge=ridge)
        rows = []
        for z, cell, b in zip(query, query_cells[:, 0], at_query):
            own = cell_members[cell]
            own = own[center_cells[own, 0] == cell]
            x, B = centers[own], torch.diag(bumps[own])
            matrix = B @ kernel(x, x) @ B + (1 + ridge) * torch.eye(len(own)) - B @ B
            rest = (values - fitted[len(query) :])[own]
            rows.append(b * kernel(z[None], x) @ B @ torch.linalg.solve(matrix, rest))
        result = fitted[: len(query)] + torch.cat(rows)

    Args:
        query: points to predict at.
        centers: points the regressor is built on.
        values: values at the centers.
        coarse_indices: rows of `centers` that are coarse points, for instance by `farthest_points`.
        cell_members: for each coarse point the rows of `centers` of its local regressor. Rows that lie in another cell count
            for nothing: they fill up the lists of smaller cells.
        query_cells: for each query the numbers of its two nearest coarse points (not rows of `centers`), nearest first.
        center_cells: the same for each center. With a single coarse point both have one column.
        kernel: positive definite kernel.
        ridge: non-negative number or 0-d tensor added to the diagonal, or one per center, shape `(N,)`.
        trend: `"constant"` makes the weights of the coarse part sum to one, so that constants are reproduced.
        on_singular: see `local_kernel_ridge`.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; values: `(N, C)`
        - coarse_indices: `(n,)`; cell_members: `(n, M)`; query_cells: `(Q, 2)`; center_cells: `(N, 2)`
        - output: `(Q, C)`

    Example:
        >>> x, y, z = torch.rand(50, 2), torch.rand(50, 1), torch.rand(3, 2)
        >>> coarse = torchkrr.functional.farthest_points(x, 5)
        >>> members = torchkrr.neighbors.nearest(x[coarse], x, 20)
        >>> cells = [torchkrr.neighbors.nearest(points, x[coarse], 2) for points in (z, x)]
        >>> hierarchical_kernel_ridge(z, x, y, coarse, members, *cells, kernel=Exponential()).shape
        torch.Size([3, 1])
    """
    check_values(values)
    cells = checked_cells(query, centers, coarse_indices, cell_members, query_cells, center_cells)
    return solve_hierarchical(query, centers, values, cells, SolveOptions(kernel, ridge, trend, on_singular=on_singular))


@full_precision
@with_a_row(4)
def hierarchical_power_function(
    query: Tensor,
    centers: Tensor,
    coarse_indices: Tensor,
    cell_members: Tensor,
    query_cells: Tensor,
    center_cells: Tensor,
    *,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    trend: Trend = None,
    on_singular: OnSingular = "warn",
) -> Tensor:
    r"""The error indicator of the weights that `hierarchical_kernel_ridge` uses, computed in float64.

    $$ \epsilon^2 = 1 - 2k^\top\omega + \omega^\top(K + \Lambda)\omega, $$

    with $\omega$ the weights of the values of all coarse points and members of the cell. So
    $|f(z) - \hat f(z)| \le \epsilon(z)\,\|f\|$ for values without noise. Costs about $n$ times the members per query.

    Equivalent to

        cells = coarse_indices, cell_members, query_cells, center_cells
        identity = torch.eye(len(centers))
        weights = torchkrr.functional.hierarchical_kernel_ridge(
            query, centers, identity, *cells, kernel=kernel, ridge=ridge
        )
        image = weights @ (kernel(centers, centers) + ridge * identity) - 2 * kernel(query, centers)
        result = (1 + (weights * image).sum(1)).clamp_min(0).sqrt()

    Arguments as in `hierarchical_kernel_ridge`.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`
        - coarse_indices: `(n,)`; cell_members: `(n, M)`; query_cells: `(Q, 2)`; center_cells: `(N, 2)`
        - output: `(Q,)`

    Example:
        >>> x, z = torch.rand(50, 2), torch.tensor([[0.5, 0.5], [1e9, 1e9]])
        >>> coarse = torchkrr.functional.farthest_points(x, 5)
        >>> members = torchkrr.neighbors.nearest(x[coarse], x, 20)
        >>> cells = [torchkrr.neighbors.nearest(points, x[coarse], 2) for points in (z, x)]
        >>> hierarchical_power_function(z, x, coarse, members, *cells, kernel=Exponential())[1]
        tensor(1.)
    """
    cells = checked_cells(query, centers, coarse_indices, cell_members, query_cells, center_cells)
    return power_of_hierarchical(query, centers, cells, SolveOptions(kernel, ridge, trend, on_singular=on_singular))


@full_precision
def solve_hierarchical(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    cells: Cells,
    options: SolveOptions,
    embedded: tuple[Tensor, Tensor] | None = None,
    border: Border | None = None,
) -> Tensor:
    """The mean `(Q, C)`. `embedded` and `border` spare a caller that has them from doing it again."""
    options.check_problem(query, centers, values)
    kernel, ridge = options.kernel, options.ridge
    embedded = _embed(query, centers, kernel) if embedded is None else embedded
    local = local_systems(embedded, cells, border_of(embedded[1], cells) if border is None else border, ridge)
    choices: dict[str, Any] = {"kernel": kernel, "trend": options.trend, "on_singular": options.on_singular}
    # The rest may be small beside the values, and local weights amplify its rounding: it is taken in float64.
    fitted: Tensor = kernel_ridge(
        torch.cat((query, centers.index_select(0, local.used))).double(),
        centers.index_select(0, cells.coarse).double(),
        values.index_select(0, cells.coarse).double(),
        ridge=ridge_rows(ridge, cells.coarse),
        **choices,
    )
    at_query, at_used = fitted.split((len(query), len(local.used)))
    rest = (values.index_select(0, local.used) - at_used) / local.bumps
    correction = _solve_local(query, centers, rest, embedded, local, options)
    result: Tensor = (at_query + local.bump * correction).to(query.dtype)
    if not bool(torch.isfinite(result.detach().sum())):
        check_finite("values", values)
    return result


@full_precision
def weights_of_hierarchical(
    query: Tensor, centers: Tensor, cells: Cells, options: SolveOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights `(Q, n)` of the coarse points and `(Q, W)` of members, and which rows of the centers those are, `(Q, W)`."""
    options.check_problem(query, centers, None)
    kernel, ridge = options.kernel, options.ridge
    embedded = _embed(query, centers, kernel)
    local = local_systems(embedded, cells, border_of(embedded[1], cells), ridge)
    choices: dict[str, Any] = {"kernel": kernel, "trend": options.trend, "on_singular": options.on_singular}
    lifted = cardinal_weights(
        torch.cat((query, centers.index_select(0, local.used))),
        centers.index_select(0, cells.coarse),
        ridge=ridge_rows(ridge, cells.coarse),
        **choices,
    )
    at_query, at_used = lifted.split((len(query), len(local.used)))  # (Q, n), (U, n)
    inner = _solve_local(query, centers, centers[local.used, :0], embedded, local, options, "weights")
    inner = (local.bump * inner / local.bumps[local.members, 0]).to(query.dtype)  # (Q, W)
    spread = inner.new_zeros(len(query), len(local.used)).scatter_add(1, local.members, inner)  # (Q, U)
    return at_query - spread @ at_used, inner, local.used[local.members]


@full_precision
def power_of_hierarchical(query: Tensor, centers: Tensor, cells: Cells, options: SolveOptions) -> Tensor:
    """The power function `(Q,)`, in chunks of queries."""
    options.check_problem(query, centers, None)
    kernel = options.kernel
    wide_query, wide_centers = query.double(), centers.double()
    coarse = wide_centers.index_select(0, cells.coarse)
    ridge = as_double(options.ridge, query.device)
    options = options.but(ridge=ridge)
    number = torch.full((len(centers),), -1, device=query.device)
    number[cells.coarse] = torch.arange(len(coarse), device=query.device)
    rows = []
    row_bytes = 4 * (len(coarse) + cells.members.shape[1]) * cells.members.shape[1] * wide_query.element_size()
    # In the order of the cells: queries of one cell share its members.
    order = cells.of_query[:, 0].argsort(stable=True)
    for chunk in ranges(len(query), rows_per_chunk(row_bytes, SEARCH_BYTES)):
        part = cells._replace(of_query=cells.of_query[order[chunk]])
        z = wide_query[order[chunk]]
        outer, inner, members = weights_of_hierarchical(z, wide_centers, part, options)
        x = wide_centers[members]  # (q, W, D)
        image = outer @ kernel(coarse, coarse) + ridge_rows(ridge, cells.coarse) * outer - 2 * kernel(z, coarse)
        squared = 1 + (outer * image).sum(-1)
        both = 2 * (outer.unsqueeze(-2) @ kernel(coarse, x)).squeeze(-2)  # (q, W)
        # A member that is a coarse point has two weights on one value.
        twice = torch.where(number[members] >= 0, outer.gather(1, number[members].clamp_min(0)), 0.0)
        own = (inner.unsqueeze(-2) @ kernel(x, x)).squeeze(-2) + ridge_rows(ridge, members) * (inner + 2 * twice)
        rows.append(squared + (inner * (both + own - 2 * kernel(z.unsqueeze(-2), x).squeeze(-2))).sum(-1))
    power = safe_sqrt(torch.cat(rows).clamp_min(0))
    found: Tensor = torch.zeros_like(power).index_copy(0, order, power).to(query.dtype)
    return found


def _solve_local(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    embedded: tuple[Tensor, Tensor],
    local: Local,
    options: SolveOptions,
    kind: Kind = "mean",
) -> Tensor:
    # B (BKB + (1 + lambda) I - B^2)^-1 = (K + R)^-1 B^-1, R the ridge (1 + lambda) / b^2 - 1 of each center: the solver
    # there is, for values divided by their bumps.
    first, _ = solve_local(
        query,
        centers.index_select(0, local.used),
        values.to(embedded[0].dtype),
        local.members,
        options.but(ridge=local.ridge, trend=None),
        kind,
        embedded=(embedded[0], embedded[1].index_select(0, local.used)),
        least_norm=math.sqrt(local.members.shape[1]),  # as for coefficients that are kept
    )
    return first


def _embed(query: Tensor, centers: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    check_finite("centers", centers)
    dtype = working_dtype(query.dtype)
    return kernel.embed(query.to(dtype)), kernel.embed(centers.to(dtype))
