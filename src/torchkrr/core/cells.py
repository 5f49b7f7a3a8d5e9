r"""From neighbor indices to the local system of each query, and its weights, prediction, power function and path.

Offsets are taken relative to the query before any inner product, so that cancellation in
$|o_i - o_j|^2 = |o_i|^2 + |o_j|^2 - 2\,o_i\cdot o_j$ is relative to the radius of the neighborhood, not to the origin;
relative to the mean of the members if the query is far outside of them.
Pairs that are close even by that measure are computed again by difference: they decide the conditioning of the cell. The
difference tensor `(q, M, M, E)` is never built.

With $A = U^\top U$, $l = U^{-\top} p$ and, for a trend, $v = U^{-\top} t$, $b = l\cdot v$, $c = v\cdot v$:

$$ u = U^{-1}\bigl(l + \mu v\bigr),\quad \mu = (1-b)/c \ (0\text{ without trend}),\qquad w = S u, $$

and the prediction is $w^\top y$. Any other trend, and any trend of a kernel that is only conditionally positive definite,
borders the system: `tails`. Plain torch throughout: differentiable by autograd, which is how second derivatives are
obtained; `backward` has the first ones by hand.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._chunking import chunk_bytes, ranges, rows_per_chunk
from ..distances import CLOSE, safe_sqrt, squared_distances
from . import tails, trust
from .factor import Factor, cholesky, unwhiten, whiten
from .options import SolveOptions
from .trust import Evidence

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
    unit: Tensor | None = None  # (q,): how large the kernel is, where that is not one


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
    taper, unit = neighborhoods.taper, unit_of(neighborhoods, options)
    size = trust.size_of(gram) if unit is None else tails.size_of(gram, unit)
    if taper is None:
        matrix = torch.diagonal_scatter(gram, gram.diagonal(dim1=-2, dim2=-1) + ridge, dim1=-2, dim2=-1)
        return LocalSystem(matrix, cross, cross, None, None, None, None, size, unit)
    tapered = taper.unsqueeze(-1) * gram * taper.unsqueeze(-2)
    if unit is None:
        # With phi(0) = 1 the diagonal of S(K + Lambda)S + I - S^2 is 1 + s^2 lambda.
        diagonal = (1 + taper.square() * ridge).expand_as(taper)
    else:
        # A kernel of another size is faded by as much: S(K + Lambda)S + unit (I - S^2).
        level = unit.unsqueeze(-1)
        diagonal = level + taper.square() * (ridge + options.kernel.at_zero - level)
    matrix = torch.diagonal_scatter(tapered, diagonal, dim1=-2, dim2=-1)
    resolved = taper_is_resolved(neighborhoods.cross_squared.detach().sqrt())
    outer = outer_taper(taper, options)
    return LocalSystem(matrix, taper * cross, cross, gram, taper, outer, resolved, size, unit)


def unit_of(neighborhoods: Neighborhoods, options: SolveOptions) -> Tensor | None:
    """The size of a kernel that is only conditionally positive definite, in each neighborhood `(q,)`; `None` is one."""
    if options.kernel.order == 0:
        return None
    squared = neighborhoods.cross_squared
    # With fade it is part of the system, and so has to be continuous and to have derivatives.
    radius = safe_sqrt(squared.detach().amax(-1) if neighborhoods.taper is None else squared[:, -1])
    unit = options.kernel.unit(radius)
    return torch.where(unit > 0, unit, 1.0)


class Border(NamedTuple):
    """The monomials of the trend."""

    members: Tensor  # (q, M, p)
    query: Tensor  # (q, 1, p)
    frame: tails.Frame


def border_of(neighborhoods: Neighborhoods, options: SolveOptions) -> Border:
    members, places, scale = neighborhoods.members, neighborhoods.points, neighborhoods.scale
    places = places if scale is None else places / scale[:, None, None]
    frame = tails.frame_of(members, places, options.precision)
    query = frame.coordinates(torch.zeros_like(members[:, :1]))
    return Border(tails.monomials(frame.coordinates(members), options.degree), tails.monomials(query, options.degree), frame)


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
    if taper is None or options.trend is None:
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


class TrendPart(NamedTuple):
    """What a constant trend adds to a solution."""

    direction: Tensor  # (q, M): A^-1 t
    total: Tensor  # (q,): c = t A^-1 t
    gap: Tensor  # (q,): mu = (1 - b) / c


class Solution(NamedTuple):
    """Everything one factorization of `q` cells gives."""

    inner: Tensor  # (q, M): u
    weights: Tensor  # (q, M): w
    power_squared: Tensor  # (q,): not clamped
    norm: Tensor  # (q,): of u, the larger of those with and without trend
    factor: Factor
    system: LocalSystem
    trend: TrendPart | None  # with a constant on a positive definite kernel
    gap: Tensor  # (q, p): minus the multipliers of the trend; p is zero without
    bordered: tails.Bordered | None = None  # with any other trend


def solve(problem: LocalProblem, options: SolveOptions, *, sound: Tensor | None = None) -> Solution:
    """Solve embedded cells; those outside the mask `sound` are replaced by harmless ones."""
    neighborhoods = gather(problem, options)
    system = assemble(neighborhoods, problem.ridge, options)
    matrix = system.matrix
    if sound is not None:
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(sound[:, None, None], matrix, identity)
    if options.bordered:
        return _solve_bordered(problem, neighborhoods, system._replace(matrix=matrix), options)
    factor = cholesky(matrix)
    whitened = whiten(factor, system.rhs.unsqueeze(-1)).squeeze(-1)  # (q, M): l
    inner = unwhiten(factor, whitened.unsqueeze(-1)).squeeze(-1)  # (q, M): u without trend
    norm = torch.linalg.vector_norm(inner.detach(), dim=-1)
    power_squared = 1 - whitened.square().sum(-1)
    trend, gap = None, inner.new_empty(len(inner), 0)
    if options.trend is not None:
        ones = system.outer if system.outer is not None else torch.ones_like(inner)
        white_ones = whiten(factor, ones.unsqueeze(-1)).squeeze(-1)  # (q, M): v
        total = white_ones.square().sum(-1)  # (q,): c
        missing = 1 - (whitened * white_ones).sum(-1)  # (q,): 1 - b
        trend = TrendPart(unwhiten(factor, white_ones.unsqueeze(-1)).squeeze(-1), total, missing / total)
        gap = trend.gap.unsqueeze(-1)
        inner = inner + gap * trend.direction
        norm = torch.maximum(norm, torch.linalg.vector_norm(inner.detach(), dim=-1))
        power_squared = power_squared + missing.square() / total
    weights = inner if system.outer is None else system.outer * inner
    if system.gram is not None:
        power_squared = _quadratic_form(weights, system, problem.ridge, options)
    return Solution(inner, weights, power_squared, norm, factor, system, trend, gap)


def _quadratic_form(weights: Tensor, system: LocalSystem, ridge: Tensor, options: SolveOptions) -> Tensor:
    """The squared power function of faded weights: they do not minimize it, so it is evaluated as it stands."""
    assert system.gram is not None
    image = (system.gram @ weights.unsqueeze(-1)).squeeze(-1) + ridge * weights
    return options.kernel.at_zero + (weights * (image - 2 * system.cross)).sum(-1)


def _solve_bordered(
    problem: LocalProblem, neighborhoods: Neighborhoods, system: LocalSystem, options: SolveOptions
) -> Solution:
    border, outer, rows = border_of(neighborhoods, options), system.outer, system.rhs.shape[-1]
    sides = border.members if outer is None else outer.unsqueeze(-1) * border.members
    unit = torch.ones_like(system.size) if system.unit is None else system.unit
    bordered = tails.bordered(system.matrix, sides, unit, border.frame.noise)
    rhs = torch.cat((system.rhs, border.query.squeeze(1)), dim=-1)  # (q, M + p)
    solved = bordered.solve(rhs.unsqueeze(-1)).squeeze(-1)
    inner = solved[:, :rows]
    weights = inner if outer is None else outer * inner
    if system.gram is None:
        power_squared = options.kernel.at_zero - (rhs * solved).sum(-1)
    else:
        power_squared = _quadratic_form(weights, system, problem.ridge, options)
    norm = torch.linalg.vector_norm(inner.detach(), dim=-1)
    return Solution(inner, weights, power_squared, norm, bordered.factor, system, None, -solved[:, rows:], bordered)


@torch.no_grad()
def resolved(solution: Solution, local_values: Tensor, ridge: Tensor, options: SolveOptions) -> Tensor:
    """Which cells follow the rules of `trust`, `(q,)` bool; values `(q, M, C)`, ridge `()`, `(q, 1)` or `(q, M)`."""
    factor, system, limits = solution.factor, solution.system, options.limits
    rows = system.matrix.shape[-1]
    ratio = inverse = None
    if limits.mean < torch.inf and local_values.shape[-1]:
        columns = local_values if system.outer is None else system.outer.unsqueeze(-1) * local_values
        lengths = torch.linalg.vector_norm(adjoint(solution, columns)[0], dim=-2)  # (q, C)
        sizes = trust.value_sizes(local_values, options.trend is not None, options.value_scale)
        ratio = trust.worst_ratio(lengths, sizes)
    if trust.needs_inverse(limits):
        vectors = trust.probes(system.matrix)
        solved = _solved(solution, vectors.expand(len(solution.norm), -1, -1))[:, :rows]
        inverse = (trust if solution.bordered is None else tails).inverse_norm(solved, vectors)
    spread = trust.spread_of(solution.norm, solution.inner, -1)
    norm = solution.norm.clamp_min(options.least_norm)
    evidence = Evidence(system.size, norm, spread, ridge_of(ridge, norm), ratio, inverse)
    if system.unit is not None:
        evidence = evidence.in_units(system.unit)
    good = factor.sound & trust.judge(evidence, rows, limits)
    if solution.bordered is not None:
        determined = solution.bordered.determined
        if norm.dtype != torch.float64:
            good = good & determined  # float64 tells whether they are
        elif options.undetermined is not None and not bool(determined.all()):
            options.undetermined.append(int((~determined).sum()))
    return good & system.taper_resolved if system.taper_resolved is not None and limits.any else good


def ridge_of(ridge: Tensor, like: Tensor) -> Tensor:
    """The smallest ridge of each cell `(q,)`."""
    return (ridge if ridge.ndim == 0 else ridge.detach().amin(-1)).detach().expand_as(like)


def predict(weights: Tensor, local_values: Tensor) -> Tensor:
    return (weights.unsqueeze(-2) @ local_values).squeeze(-2)  # (q, C)


def adjoint(solution: Solution, rhs: Tensor) -> tuple[Tensor, Tensor]:
    r"""$A^{-1}B$ for `rhs` `(q, M, C)`, and the `(q, p, C)` multiples of $A^{-1}T$ taken off it.

    With a trend the result is projected so that $T^\top$ of it is zero, and the multiples are the coefficients of its
    polynomial; without, they are empty.
    """
    solved = _solved(solution, rhs)
    if solution.trend is None:
        return solved[:, : rhs.shape[-2]], solved[:, rhs.shape[-2] :]
    outer = solution.system.outer
    sums = (solved if outer is None else outer.unsqueeze(-1) * solved).sum(-2)  # (q, C): t A^-1 B
    multiples = (sums / solution.trend.total.unsqueeze(-1)).unsqueeze(-2)
    return solved - solution.trend.direction.unsqueeze(-1) * multiples, multiples


def _solved(solution: Solution, rhs: Tensor) -> Tensor:
    """$A^{-1}B$, or the solution `(q, M + p, C)` of the bordered system."""
    if solution.bordered is not None:
        return solution.bordered.solve(rhs)
    return unwhiten(solution.factor, whiten(solution.factor, rhs))


class WhitePath(NamedTuple):
    """What is summed up along a path: right-hand sides multiplied by $U^{-\\top}$."""

    cross: Tensor  # (q, M, 1): l
    values: Tensor  # (q, M, C): V
    ones: Tensor | None  # (q, M, 1): v, with a trend


def whiten_path(solution: Solution, local_values: Tensor) -> WhitePath:
    cross = whiten(solution.factor, solution.system.rhs.unsqueeze(-1))
    ones = None if solution.trend is None else whiten(solution.factor, torch.ones_like(cross))
    return WhitePath(cross, whiten(solution.factor, local_values), ones)


def path(white: WhitePath) -> tuple[Tensor, Tensor]:
    r"""Means `(q, M, C)` and squared powers `(q, M)` for every $m \le M$.

    The leading blocks of a Cholesky factor are the factors of the leading blocks, so partial sums of $l_j V_j$ and $l_j^2$
    are the means and powers of the first $m$ neighbors.
    """
    cross, values, ones = white
    means = (cross * values).cumsum(1)
    power_squared = 1 - cross.square().cumsum(1).squeeze(-1)
    if ones is not None:
        missing = 1 - (cross * ones).cumsum(1)
        total = ones.square().cumsum(1)
        means = means + missing * (ones * values).cumsum(1) / total
        power_squared = power_squared + (missing.square() / total).squeeze(-1)
    return means, power_squared


@torch.no_grad()
def path_resolved(
    solution: Solution, white: WhitePath, local_values: Tensor, ridge: Tensor, options: SolveOptions
) -> Tensor:
    r"""Which steps of the paths follow the rules of `trust`, `(q, M)` bool.

    With $Y = U^{-\top}$ the weights of the first $m$ neighbors are $\sum_{j\le m} l_j Y_j$, and likewise for every other
    right-hand side: running sums of the rows of $Y$.
    """
    (cross, values, ones), limits = white, options.limits
    count, rows = solution.inner.shape
    inverse_rows = whiten(solution.factor, torch.eye(rows).to(cross).expand(count, -1, -1))  # (q, M, M): Y
    weights = (cross * inverse_rows).cumsum(1)  # (q, m, M)
    norm = torch.linalg.vector_norm(weights, dim=-1)  # (q, m)
    direction = multiples = None
    if ones is not None:
        direction = (ones * inverse_rows).cumsum(1)
        total = ones.square().cumsum(1)
        weights = weights + (1 - (cross * ones).cumsum(1)) / total * direction
        multiples = (ones * values).cumsum(1) / total  # (q, m, C)
        norm = torch.maximum(norm, torch.linalg.vector_norm(weights, dim=-1))
    ratio = inverse = None
    if limits.mean < torch.inf and values.shape[-1]:
        lengths = []
        for output in range(values.shape[-1]):
            solved = (values[..., output : output + 1] * inverse_rows).cumsum(1)
            if direction is not None and multiples is not None:
                solved = solved - multiples[..., output : output + 1] * direction
            lengths.append(torch.linalg.vector_norm(solved, dim=-1))
        largest, smallest = local_values.cummax(1).values, local_values.cummin(1).values  # (q, m, C)
        sizes = trust.value_sizes(torch.stack((largest, smallest), dim=-2), ones is not None, options.value_scale)
        ratio = trust.worst_ratio(torch.stack(lengths, dim=-1), sizes)
    if trust.needs_inverse(limits):
        signs = whiten(solution.factor, trust.probes(inverse_rows).expand(count, -1, -1))  # (q, M, P)
        parts = [
            torch.linalg.vector_norm((column * inverse_rows).cumsum(1), dim=-1).square()
            / column.square().cumsum(1).squeeze(-1)
            for column in signs.split(1, dim=-1)
        ]
        inverse = torch.stack(parts).amax(0)
    smallest_ridge = ridge_of(ridge, solution.norm).unsqueeze(-1)
    spread = trust.spread_of(norm, weights, -1)
    evidence = Evidence(solution.system.size.unsqueeze(-1), norm, spread, smallest_ridge, ratio, inverse)
    steps = torch.arange(1, rows + 1, device=cross.device)
    return solution.factor.sound.unsqueeze(-1) & trust.judge(evidence, steps, limits)
