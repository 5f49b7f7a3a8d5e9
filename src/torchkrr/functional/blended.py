r"""Blended local regression: a partition of unity over nearby anchors, continuous everywhere.

Each anchor keeps its own centers for good, so that its local regressor $P_a$ is one smooth function of the query; nearby
anchors share a prediction by weights that vanish before an anchor leaves the list. Anchors, their centers and the nearest
anchors of each query are arguments: they are piecewise constant, so they carry no gradient.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from .._checks import (
    check_finite,
    check_floating,
    check_index_list,
    check_index_rows,
    check_indices,
    check_tensor,
    check_values,
)
from .._tensors import full_precision, with_a_row, working_dtype
from ..core.local import solve_local
from ..core.options import DenseOptions, Kind, SolveOptions, with_options_of
from ..distances import safe_sqrt, squared_distances_to
from ..errors import ShapeError
from ..kernels import Kernel
from .ridge import cardinal_weights


class Blend(NamedTuple):
    """Which local regressors make up each prediction."""

    anchors: Tensor  # (Q, K + 1) rows of the centers, the last only for the radius; (Q, K) if `last_sets_radius` is off
    members: Tensor  # (Q, K, M) rows of the centers each of the K anchors keeps
    last_sets_radius: bool


@with_options_of(cardinal_weights)
@full_precision
@with_a_row(5)
def blended_kernel_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    anchor_indices: Tensor,
    anchor_neighbors: Tensor,
    nearest_anchors: Tensor,
    *,
    kernel: Kernel,
    last_sets_radius: bool = True,
    **options: Unpack[DenseOptions],
) -> Tensor:
    r"""Local kernel ridge regressors of nearby anchors, blended: $\sum_a w_a(z)\,P_{\sigma_a}(z)$.

    $P_\sigma(z) = k(z, x^\sigma)\bigl(k(x^\sigma, x^\sigma)+\lambda I\bigr)^{-1}y^\sigma$ is the regressor on the centers
    $\sigma_a$ that anchor $a$ keeps, and $w_a$ are the `blending_weights` of the distances to the anchors. With every center
    an anchor and a small ridge it interpolates. Differentiable, twice, in the first three arguments, in the parameters of
    `kernel` and in `ridge`; continuous but where all anchors of the list are equally far.

    Equivalent to

        functional = torchkrr.functional
        rows = []
        for z, near in zip(query, nearest_anchors):
            offsets = kernel.embed(centers[anchor_indices[near]]) - kernel.embed(z)
            weights = functional.blending_weights(offsets.square().sum(-1)[None])[0]
            for weight, own in zip(weights, anchor_neighbors[near[:-1]]):
                local = functional.kernel_ridge(z[None], centers[own], values[own], kernel=kernel, ridge=ridge)
                rows.append(weight * local)
        result = torch.cat(rows).reshape(len(query), -1, values.shape[1]).sum(1)

    Args:
        query: points to predict at.
        centers: points the regressor is built on.
        values: values at the centers.
        anchor_indices: rows of `centers` that are anchors.
        anchor_neighbors: for each anchor the rows of `centers` it keeps, for instance its nearest.
        nearest_anchors: for each query the numbers of its K + 1 nearest anchors (not rows of `centers`), nearest first.
        kernel: positive definite kernel.
        last_sets_radius: the last column of `nearest_anchors` only sets the radius. If there are no more than K anchors
            pass them all and switch this off: the radius is then twice the last distance.
        ridge, trend, on_singular: as in `local_kernel_ridge`, for each local regressor.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; values: `(N, C)`
        - anchor_indices: `(A,)`; anchor_neighbors: `(A, M)`; nearest_anchors: `(Q, K + 1)`
        - output: `(Q, C)`

    Example:
        >>> x, y, z = torch.rand(50, 2), torch.rand(50, 1), torch.rand(3, 2)
        >>> own, near = torchkrr.neighbors.nearest(x, x, 8), torchkrr.neighbors.nearest(z, x, 5)
        >>> blended_kernel_ridge(z, x, y, torch.arange(50), own, near, kernel=Exponential()).shape
        torch.Size([3, 1])
    """
    check_values(values)
    solve_options = SolveOptions(kernel, **options)
    solve_options.check_problem(query, centers, values)
    blend = _checked_blend(query, centers, anchor_indices, anchor_neighbors, nearest_anchors, last_sets_radius)
    return solve_blended(query, centers, values, blend, solve_options)[0]


@with_options_of(cardinal_weights)
@full_precision
@with_a_row(4)
def blended_power_function(
    query: Tensor,
    centers: Tensor,
    anchor_indices: Tensor,
    anchor_neighbors: Tensor,
    nearest_anchors: Tensor,
    *,
    kernel: Kernel,
    last_sets_radius: bool = True,
    **options: Unpack[DenseOptions],
) -> Tensor:
    r"""The error indicator $\sum_a w_a(z)\,\epsilon_a(z)$, with $\epsilon_a$ the power function of each local regressor.

    By the triangle inequality $|f(z) - \sum_a w_a P_{\sigma_a}f(z)| \le \sum_a w_a\epsilon_a(z)\,\|f\|$: an upper bound of
    the power function of the blended weights, not that function itself.

    Equivalent to

        functional = torchkrr.functional
        rows = []
        for z, near in zip(query, nearest_anchors):
            offsets = kernel.embed(centers[anchor_indices[near]]) - kernel.embed(z)
            weights = functional.blending_weights(offsets.square().sum(-1)[None])[0]
            for weight, own in zip(weights, anchor_neighbors[near[:-1]]):
                rows.append(weight * functional.power_function(z[None], centers[own], kernel=kernel, ridge=ridge))
        result = torch.cat(rows).reshape(len(query), -1).sum(1)

    Arguments as in `blended_kernel_ridge`.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`
        - anchor_indices: `(A,)`; anchor_neighbors: `(A, M)`; nearest_anchors: `(Q, K + 1)`
        - output: `(Q,)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> own = torchkrr.neighbors.nearest(x, x, 2)
        >>> near = torchkrr.neighbors.nearest(x, x, 2)
        >>> blended_power_function(x, x, torch.arange(3), own, near, kernel=Exponential(), ridge=0.0)
        tensor([0., 0., 0.])
    """
    solve_options = SolveOptions(kernel, **options)
    solve_options.check_problem(query, centers, None)
    blend = _checked_blend(query, centers, anchor_indices, anchor_neighbors, nearest_anchors, last_sets_radius)
    return solve_blended(query, centers, None, blend, solve_options)[1]


def blending_weights(squared_distances: Tensor, *, last_sets_radius: bool = True) -> Tensor:
    r"""The share of each anchor in a prediction (Franke and Little), from squared distances, nearest first.

    $$ w_a \propto \Bigl(\frac{(R - d_a)_+}{R\,d_a}\Bigr)^2, $$

    with $R$ the last distance, or twice that. At $d_a = 0$ that anchor alone counts; several at zero share equally. If all
    are equally far, all weights are equal. Squared distances, because the weights are smooth in those where $d_a = 0$.

    Equivalent to

        distances = squared_distances.sqrt()
        radius, inner = distances[:, -1:], distances[:, :-1]
        weights = ((radius - inner) / (radius * inner)).square()
        result = weights / weights.sum(1, keepdim=True)

    Args:
        squared_distances: from each query to its anchors, nearest first.
        last_sets_radius: the last column only sets the radius and gets no weight; else the radius is twice its distance.

    Shape:
        - squared_distances: `(Q, K + 1)`, or `(Q, K)` if `last_sets_radius` is off
        - output: `(Q, K)`, rows sum to one

    Example:
        >>> blending_weights(torch.tensor([[1.0, 4.0, 9.0], [0.0, 4.0, 9.0]]))
        tensor([[0.9412, 0.0588],
                [1.0000, 0.0000]])
    """
    check_tensor("squared_distances", squared_distances)
    check_floating("squared_distances", squared_distances)
    if squared_distances.ndim != 2 or squared_distances.shape[1] < 1 + last_sets_radius:
        columns = "(Q, K + 1), the last column for the radius," if last_sets_radius else "(Q, K)"
        raise ShapeError(f"squared_distances must have shape {columns} got {tuple(squared_distances.shape)}.")
    distances = safe_sqrt(squared_distances)
    radius = distances[:, -1:]
    if last_sets_radius:
        squared_distances, distances = squared_distances[:, :-1], distances[:, :-1]
    else:
        radius = 2 * radius
    # As ratios to the nearest anchor nothing overflows; it is a common factor, so its choice does not matter.
    first = squared_distances.detach().argmin(1, keepdim=True)
    nearest_squared, nearest = squared_distances.gather(1, first), distances.gather(1, first)
    room = radius - nearest  # (Q, 1)
    inside = torch.where(room > 0, (radius - distances).clamp_min(0) / torch.where(room > 0, room, 1.0), 1.0)
    apart = squared_distances > 0
    closeness = torch.where(apart, nearest_squared / torch.where(apart, squared_distances, 1.0), 1.0)
    shares = inside.square() * closeness
    return shares / shares.sum(1, keepdim=True)


@full_precision
def solve_blended(
    query: Tensor,
    centers: Tensor,
    values: Tensor | None,
    blend: Blend,
    options: SolveOptions,
    kind: Kind = "mean",
    embedded: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean `(Q, C)` or the weights `(Q, K * M)`, and the bound on the power function: what functions and module share.

    `embedded` spares a caller that has embedded query and centers from doing it again.
    """
    values = options.check_problem(query, centers, values)
    if embedded is None:
        check_finite("centers", centers)
        dtype = working_dtype(query.dtype)
        embedded = options.kernel.embed(query.to(dtype)), options.kernel.embed(centers.to(dtype))
    squared = squared_distances_to(*embedded, blend.anchors)  # (Q, K + 1)
    weights = blending_weights(squared, last_sets_radius=blend.last_sets_radius)  # (Q, K)
    (count, shared), width = weights.shape, blend.members.shape[-1]
    owners = torch.arange(count, device=query.device).repeat_interleave(shared)  # (Q K,)
    first, power_squared = solve_local(
        query.index_select(0, owners),
        centers,
        values,
        blend.members.reshape(-1, width),
        options,
        kind,
        embedded=(embedded[0].index_select(0, owners), embedded[1]),
        names=owners,
        least_norm=math.sqrt(width),  # as for coefficients that are kept: both must raise the ridge of the same cells
    )
    shares = weights.unsqueeze(-1)  # (Q, K, 1)
    power = (safe_sqrt(power_squared.clamp_min(0)).view(count, shared) * weights).sum(1)
    parts = first.view(count, shared, -1) * shares
    result = parts.flatten(1) if kind == "weights" else parts.sum(1)
    if not bool(torch.isfinite(result.detach().sum())):
        check_finite("values", values)
    return result.to(query.dtype), power.to(query.dtype)


def _checked_blend(
    query: Any, centers: Any, anchor_indices: Any, anchor_neighbors: Any, nearest_anchors: Any, last_sets_radius: bool
) -> Blend:
    check_index_list("anchor_indices", anchor_indices, centers)
    check_index_rows("anchor_neighbors", anchor_neighbors, len(anchor_indices), "anchor", centers)
    check_indices("nearest_anchors", nearest_anchors, len(query), anchor_indices, what="anchors")
    if last_sets_radius and nearest_anchors.shape[1] < 2:
        raise ShapeError(
            "nearest_anchors needs at least two columns, got 1: the last one only sets the radius. Search one anchor more, "
            "or pass last_sets_radius=False if there is no other."
        )
    near = nearest_anchors.long()
    used = near[:, :-1] if last_sets_radius else near
    return Blend(anchor_indices.long()[near], anchor_neighbors.long()[used], last_sets_radius)
