r"""From neighbor indices to the local system of each query.

Offsets are taken relative to the query before any inner product, so that cancellation in
$|o_i - o_j|^2 = |o_i|^2 + |o_j|^2 - 2\,o_i\cdot o_j$ is relative to the radius of the neighborhood, not to the origin;
relative to the mean of the members if the query is far outside of them.
Pairs that are close even by that measure are computed again by difference: they decide the conditioning of the cell. The
difference tensor `(q, M, M, E)` is never built.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._chunking import chunk_bytes, ranges, rows_per_chunk
from ..distances import CLOSE, safe_sqrt, squared_distances
from . import trust
from .options import SolveOptions

THIN_RING = 1e-4  # rounding of a radius, relative to the width of the ring, from which on a float32 ring is not trusted
# A query is outside when the mean of the offsets has more than this share of their mean square.
OUTSIDE = 2 / 3


class LocalProblem(NamedTuple):
    """Queries with their neighbors: points as given, or embedded."""

    query: Tensor  # (Q, D)
    centers: Tensor  # (N, D)
    values: Tensor  # (N, C)
    ridge: Tensor  # (), (N,), (Q, 1) or (Q, M)
    indices: Tensor  # (Q, M), or (Q, M + 1) with fade

    def used_rows(self) -> LocalProblem:
        """With only the centers that `indices` names, where that may save work: min(N, Q M) rows are embedded."""
        if self.indices.numel() >= len(self.centers):
            return self
        used, positions = torch.unique(self.indices, return_inverse=True)
        ridge = self.ridge.index_select(0, used) if self.ridge.ndim == 1 else self.ridge
        centers, values = self.centers.index_select(0, used), self.values.index_select(0, used)
        return LocalProblem(self.query, centers, values, ridge, positions)

    def rows(self, which: Tensor) -> LocalProblem:
        """Some of the queries."""
        ridge = self.ridge.index_select(0, which) if self.ridge.ndim == 2 else self.ridge
        query, indices = self.query.index_select(0, which), self.indices.index_select(0, which)
        return self._replace(query=query, indices=indices, ridge=ridge).used_rows()

    def chunk(self, rows: slice) -> LocalProblem:
        """Consecutive queries of an embedded problem."""
        ridge = self.ridge if self.ridge.ndim == 0 else self.ridge[rows]
        return self._replace(query=self.query[rows], ridge=ridge, indices=self.indices[rows])

    def members(self, options: SolveOptions) -> Tensor:
        """The neighbors that are solved on, `(Q, M)`."""
        return self.indices[:, :-1] if options.fade else self.indices


class Neighborhoods(NamedTuple):
    """`q` neighborhoods of `M` centers each, in the embedded space."""

    offsets: Tensor  # (q, M, E), or (q, M + 1, E) with fade: the last row only sets the radius
    cross_squared: Tensor  # (q, M) or (q, M + 1): squared distances to the query, by difference
    taper: Tensor | None  # (q, M), with fade only
    points: Tensor  # as the offsets, but where they are
    scale: Tensor | None = None  # (q,), with normalize only: offsets and distances were divided by it

    @property
    def members(self) -> Tensor:
        return self.offsets if self.taper is None else self.offsets[:, :-1]  # (q, M, E)

    @property
    def member_squared(self) -> Tensor:
        return self.cross_squared if self.taper is None else self.cross_squared[:, :-1]  # (q, M)


class LocalSystem(NamedTuple):
    r"""$A u = p$ with $A = S(K+\Lambda)S + I - S^2$ and $p = S k$; without fade $S = I$."""

    matrix: Tensor  # (q, M, M)
    rhs: Tensor  # (q, M)
    cross: Tensor  # (q, M): k
    gram: Tensor | None  # (q, M, M): K, kept with fade only, where A is not K plus a diagonal
    taper: Tensor | None  # (q, M): the diagonal of S
    outer: Tensor | None  # (q, M): what turns u into the weights on the values, and 1 into the trend
    taper_resolved: Tensor | None  # (q,) bool
    size: Tensor  # (q,): the root of the largest row sum of K


def gather(problem: LocalProblem, options: SolveOptions) -> Neighborhoods:
    query, members = problem.query, problem.centers[problem.indices]
    if options.log_scale is not None:
        lengthscale = options.log_scale.exp().to(query.dtype)
        members, query = members / lengthscale, query / lengthscale
    points, offsets = members, members - query.unsqueeze(1)  # (q, M, E)
    cross_squared = offsets.square().sum(-1)  # (q, M)
    scale = None
    if options.normalize:
        mean_square = (cross_squared[:, :-1] if options.fade else cross_squared).mean(-1)
        # A query on top of all its neighbors has nothing to normalize.
        scale = torch.where(mean_square > 0, mean_square, 1.0).sqrt()  # (q,)
        offsets = offsets / scale[:, None, None]
        cross_squared = offsets.square().sum(-1)
    taper = smooth_taper(safe_sqrt(cross_squared)) if options.fade else None
    return Neighborhoods(offsets, cross_squared, taper, points, scale)


def recentered(neighborhoods: Neighborhoods) -> tuple[Tensor, Tensor]:
    """Members `(q, M, E)` and their squared lengths `(q, M)`, about their mean where the query lies outside of them.

    Differences between members are what they were; a query far away no longer sets the scale of their rounding.
    """
    members, squared = neighborhoods.members, neighborhoods.member_squared
    mean = members.detach().mean(1)  # (q, E)
    outside = mean.square().sum(-1) > OUTSIDE * squared.detach().mean(-1)  # (q,)
    if is_host(members) and not bool(outside.any()):
        return members, squared
    members = members - torch.where(outside.unsqueeze(-1), mean, 0.0).unsqueeze(1)
    return members, members.square().sum(-1)


def is_host(tensor: Tensor) -> bool:
    """Whether to look at numbers costs nothing; an accelerator would have to be waited for."""
    return tensor.device.type == "cpu"


def pair_squared(members: Tensor, squared: Tensor) -> Tensor:
    """Squared distances between the members, zero on the diagonal exactly."""
    if not is_host(members):
        # All of them by difference: which pairs are close is known on the device only.
        return torch.cdist(members, members, compute_mode="donot_use_mm_for_euclid_dist").square_()
    sums = squared.unsqueeze(-1) + squared.unsqueeze(-2)  # (q, M, M)
    pairs = torch.baddbmm(sums, members, members.mT, alpha=-2)
    pairs.diagonal(dim1=-2, dim2=-1).zero_()
    recompute_close_pairs(pairs, sums, members)
    return pairs


def recompute_close_pairs(pairs: Tensor, sums: Tensor, members: Tensor) -> None:
    """Replace, in place, what the inner-product form cannot resolve by distances computed by difference."""
    margin = torch.sub(pairs.detach(), sums.detach(), alpha=CLOSE)  # (q, M, M): negative for close pairs
    margin.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    # Most cells have none: one vectorised pass tells, before the slow listing of pairs.
    cells = (margin.flatten(1).amin(1) < 0).nonzero().squeeze(1)
    if len(cells) == 0:
        return
    which, row, column = (margin[cells] < 0).triu_(1).nonzero(as_tuple=True)
    cell = cells[which]
    budget = rows_per_chunk(3 * members.shape[-1] * members.element_size(), chunk_bytes(members.device))
    for chunk in ranges(len(cell), budget):
        c, i, j = cell[chunk], row[chunk], column[chunk]
        exact = (members[c, i] - members[c, j]).square().sum(-1)
        pairs[c, i, j] = exact
        pairs[c, j, i] = exact


def assemble(neighborhoods: Neighborhoods, ridge: Tensor, options: SolveOptions) -> LocalSystem:
    pairs = _pairs(neighborhoods) if options.plain_steps else pair_squared(*recentered(neighborhoods))
    gram = options.kernel.of_squared(pairs)  # (q, M, M)
    cross = options.kernel.of_squared(neighborhoods.member_squared)  # (q, M)
    taper = neighborhoods.taper
    if taper is None:
        matrix = torch.diagonal_scatter(gram, gram.diagonal(dim1=-2, dim2=-1) + ridge, dim1=-2, dim2=-1)
        return LocalSystem(matrix, cross, cross, None, None, None, None, trust.size_of(gram))
    tapered = taper.unsqueeze(-1) * gram * taper.unsqueeze(-2)
    # With phi(0) = 1 the diagonal of S(K + Lambda)S + I - S^2 is 1 + s^2 lambda.
    diagonal = (1 + taper.square() * ridge).expand_as(taper)
    matrix = torch.diagonal_scatter(tapered, diagonal, dim1=-2, dim2=-1)
    resolved = taper_is_resolved(neighborhoods.cross_squared.detach().sqrt())
    outer = outer_taper(taper, options)
    return LocalSystem(matrix, taper * cross, cross, gram, taper, outer, resolved, trust.size_of(gram))


def _pairs(neighborhoods: Neighborhoods) -> Tensor:
    """As `pair_squared`, with derivatives. Of the points: offsets would make it depend on the query, by rounding alone."""
    points = neighborhoods.points if neighborhoods.taper is None else neighborhoods.points[:, :-1]
    squared = squared_distances(points, points)
    return squared if neighborhoods.scale is None else squared / neighborhoods.scale.square()[:, None, None]


def taper_is_resolved(distance: Tensor) -> Tensor:
    """Whether `smooth_taper` of `(q, M + 1)` distances is: a ring as thin as their rounding is not. `(q,)` bool.

    In float64 always: no larger ridge could widen a ring.
    """
    if distance.dtype == torch.float64:
        return torch.ones_like(distance[:, 0], dtype=torch.bool)
    radius, inner = distance[:, -1], distance[:, _inner_rank(distance)]
    return torch.finfo(distance.dtype).eps * radius <= THIN_RING * (radius - inner)


def outer_taper(taper: Tensor | None, options: SolveOptions) -> Tensor | None:
    """The taper of the weights and of the trend."""
    if taper is None or not options.trend:
        return taper
    # If every member is on the border nothing is left to solve: the limit of the trend is the plain mean.
    return torch.where((taper == 0).all(-1, keepdim=True), 1.0, taper)


def _inner_rank(distance: Tensor) -> int:
    return math.ceil(3 * (distance.shape[-1] - 1) / 4) - 1


def smooth_taper(distance: Tensor) -> Tensor:
    r"""$s_j = h((d_j - r)/(R - r))$ for `(q, M + 1)` distances, nearest first; `(q, M)`.

    $R$ is the last distance and $r = d_{\lceil 3M/4\rceil}$; $h$ falls from 1 at 0 to 0 at 1 with two continuous
    derivatives. If $R = r$ it is the indicator of $d_j < R$.
    """
    rank = _inner_rank(distance)
    radius, inner = distance[:, -1:], distance[:, rank : rank + 1]
    width = radius - inner
    open_ring = width > 0
    t = ((distance[:, :-1] - inner) / torch.where(open_ring, width, 1.0)).clamp(0, 1)
    falling = 1 - t.pow(3) * (10 - 15 * t + 6 * t.square())
    return torch.where(open_ring, falling, (distance[:, :-1] < radius).to(distance.dtype))
