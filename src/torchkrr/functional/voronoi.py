r"""The cells of coarse points: who lies where, and the bump that falls to zero at the borders."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import check_alike, check_index_list, check_index_rows, check_indices, check_points, check_same_features
from ..distances import safe_sqrt, squared_distances_to
from ..errors import ShapeError

# The bump reaches 1 where the ratio of distances reaches this quantile over the centers.
QUANTILE = 0.1
TIE = 1e-6  # up to this ratio the two nearest coarse points count as equally near
# Bumps of centers are no smaller, so that nothing is infinite: a ridge of 1e16 silences a center as well.
LEAST_BUMP = 1e-8
ABSENT = LEAST_BUMP**-2


class Cells(NamedTuple):
    """The Voronoi cells of the coarse points."""

    coarse: Tensor  # (n,) rows of the centers
    members: Tensor  # (n, W) rows of the centers; rows that lie in another cell only fill up
    of_query: Tensor  # (Q, 2): the two nearest coarse points, by number; (Q, 1) if there is only one
    of_centers: Tensor  # (N, 2) or (N, 1), likewise


class Border(NamedTuple):
    """Where the cells end."""

    bumps: Tensor  # (N,): b at the centers
    width: Tensor  # (): tau


class Local(NamedTuple):
    """The local systems behind each query."""

    used: Tensor  # (U,) rows of the centers
    members: Tensor  # (Q, W) positions in `used`
    ridge: Tensor  # (Q, W)
    bumps: Tensor  # (U, 1): b at the centers in use
    bump: Tensor  # (Q, 1): b at the query


def border_of(centers: Tensor, cells: Cells) -> Border:
    """Bumps at the embedded centers, and the width of the border."""
    if cells.of_centers.shape[1] == 1:
        return Border(centers.new_ones(len(centers)), centers.new_ones(()))
    ratio = _ratio(centers, centers, cells.coarse[cells.of_centers])
    width = _quantile(ratio)
    if float(width.detach()) <= TIE:
        apart = ratio[ratio > TIE]
        width = _quantile(apart) if len(apart) else torch.ones_like(width)
    return Border((ratio / width).clamp(max=1), width)


def local_systems(embedded: tuple[Tensor, Tensor], cells: Cells, border: Border, ridge: float | Tensor) -> Local:
    """The systems of embedded queries, no wider than the largest of their cells."""
    cell = cells.of_query[:, :1]  # (Q, 1)
    members = cells.members[cell.squeeze(1)]  # (Q, W)
    columns = (cells.of_centers[members, 0] == cell).any(0).nonzero()
    members = members[:, : int(columns.amax()) + 1 if len(columns) else 1]
    used, positions = torch.unique(members, return_inverse=True)
    bumps = border.bumps.clamp_min(LEAST_BUMP)[used].unsqueeze(1)
    bump = bump_at(*embedded, cells, border.width)
    return Local(used, positions, member_ridge(members, cell, cells, border, ridge), bumps, bump)


def member_ridge(members: Tensor, cell: Tensor, cells: Cells, border: Border, ridge: float | Tensor) -> Tensor:
    r"""$(1 + \lambda)/b^2 - 1$ for the `members` `(Q, W)` of the numbered cells `(Q, 1)`; huge for those of other cells."""
    squared = border.bumps.double().clamp_min(LEAST_BUMP).square()[members]
    ridge = ridge_rows(torch.as_tensor(ridge, dtype=torch.float64, device=members.device), members)
    return torch.where(cells.of_centers[members, 0] == cell, (ridge + (1 - squared)) / squared, ABSENT)


def bump_at(query: Tensor, centers: Tensor, cells: Cells, width: Tensor) -> Tensor:
    """The bump `(Q, 1)` at embedded queries."""
    if cells.of_query.shape[1] == 1:
        return query.new_ones(len(query), 1)
    return (_ratio(query, centers, cells.coarse[cells.of_query]) / width).clamp(max=1).unsqueeze(1)


def ridge_rows(ridge: Any, rows: Tensor) -> Any:
    return ridge[rows] if isinstance(ridge, Tensor) and ridge.ndim else ridge


def checked_cells(
    query: Any, centers: Any, coarse_indices: Any, cell_members: Any, query_cells: Any, center_cells: Any
) -> Cells:
    check_points("query", query, maybe_empty=True)
    check_points("centers", centers)
    check_alike(query=query, centers=centers)
    check_same_features("query", query, "centers", centers)
    check_index_list("coarse_indices", coarse_indices, centers)
    check_index_rows("cell_members", cell_members, len(coarse_indices), "coarse point", centers)
    check_indices("query_cells", query_cells, len(query), coarse_indices, what="coarse points")
    check_indices("center_cells", center_cells, None, coarse_indices, what="coarse points")
    columns = min(2, len(coarse_indices))
    for name, found, rows in (("query_cells", query_cells, len(query)), ("center_cells", center_cells, len(centers))):
        if tuple(found.shape) != (rows, columns):
            raise ShapeError(
                f"{name} must have shape ({rows}, {columns}), the two nearest of {len(coarse_indices)} coarse points "
                f"(or the only one), got {tuple(found.shape)}. Search them with neighbors.nearest."
            )
    return Cells(coarse_indices.long(), cell_members.long(), query_cells.long(), center_cells.long())


def _ratio(points: Tensor, centers: Tensor, nearest: Tensor) -> Tensor:
    r"""$(d_2 - d_1)/(d_1 + d_2)$ for the two rows of the centers that `nearest` `(P, 2)` names; 0 if both are at zero."""
    near, far = safe_sqrt(squared_distances_to(points, centers, nearest)).unbind(1)
    total = near + far
    apart = total > 0
    return torch.where(apart, (far - near).clamp_min(0) / torch.where(apart, total, 1.0), 0.0)


def _quantile(numbers: Tensor) -> Tensor:
    # As torch.quantile, which takes no more than 16 million numbers.
    place = QUANTILE * (len(numbers) - 1)
    low = int(place)
    ordered = numbers.sort().values
    return torch.lerp(ordered[low], ordered[min(low + 1, len(numbers) - 1)], place - low)
