r"""Weights, predictions, power functions and paths of local systems.

With $A = U^\top U$, $l = U^{-\top} p$ and, for a trend, $v = U^{-\top} t$, $b = l\cdot v$, $c = v\cdot v$:

$$ u = U^{-1}\bigl(l + \mu v\bigr),\quad \mu = (1-b)/c \ (0\text{ without trend}),\qquad w = S u, $$

and the prediction is $w^\top y$. Plain torch throughout: differentiable by autograd, which is how second derivatives are
obtained; `backward` has the first ones by hand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import trust
from .cells import LocalProblem, LocalSystem, assemble, gather
from .factor import Factor, cholesky, unwhiten, whiten
from .options import SolveOptions
from .trust import Evidence


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
    trend: TrendPart | None


def solve(problem: LocalProblem, options: SolveOptions, *, sound: Tensor | None = None) -> Solution:
    """Solve embedded cells; those outside the mask `sound` are replaced by harmless ones."""
    system = assemble(gather(problem, options), problem.ridge, options)
    matrix = system.matrix
    if sound is not None:
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(sound[:, None, None], matrix, identity)
    factor = cholesky(matrix)
    whitened = whiten(factor, system.rhs.unsqueeze(-1)).squeeze(-1)  # (q, M): l
    inner = unwhiten(factor, whitened.unsqueeze(-1)).squeeze(-1)  # (q, M): u without trend
    norm = torch.linalg.vector_norm(inner.detach(), dim=-1)
    power_squared = 1 - whitened.square().sum(-1)
    trend = None
    if options.trend:
        ones = system.outer if system.outer is not None else torch.ones_like(inner)
        white_ones = whiten(factor, ones.unsqueeze(-1)).squeeze(-1)  # (q, M): v
        total = white_ones.square().sum(-1)  # (q,): c
        missing = 1 - (whitened * white_ones).sum(-1)  # (q,): 1 - b
        trend = TrendPart(unwhiten(factor, white_ones.unsqueeze(-1)).squeeze(-1), total, missing / total)
        inner = inner + trend.gap.unsqueeze(-1) * trend.direction
        norm = torch.maximum(norm, torch.linalg.vector_norm(inner.detach(), dim=-1))
        power_squared = power_squared + missing.square() / total
    weights = inner if system.outer is None else system.outer * inner
    if system.gram is not None:
        # Faded weights do not minimize the quadratic form, so it is evaluated as it stands.
        image = (system.gram @ weights.unsqueeze(-1)).squeeze(-1) + problem.ridge * weights
        power_squared = 1 + (weights * (image - 2 * system.cross)).sum(-1)
    return Solution(inner, weights, power_squared, norm, factor, system, trend)


@torch.no_grad()
def resolved(solution: Solution, local_values: Tensor, ridge: Tensor, options: SolveOptions) -> Tensor:
    """Which cells follow the rules of `trust`, `(q,)` bool; values `(q, M, C)`, ridge `()`, `(q, 1)` or `(q, M)`."""
    factor, system, limits = solution.factor, solution.system, options.limits
    rows = system.matrix.shape[-1]
    ratio = inverse = None
    if limits.mean < torch.inf and local_values.shape[-1]:
        columns = local_values if system.outer is None else system.outer.unsqueeze(-1) * local_values
        lengths = torch.linalg.vector_norm(adjoint(solution, columns)[0], dim=-2)  # (q, C)
        ratio = trust.worst_ratio(lengths, trust.value_sizes(local_values, solution.trend is not None, options.value_scale))
    if trust.needs_inverse(limits):
        vectors = trust.probes(system.matrix)
        solved = unwhiten(factor, whiten(factor, vectors.expand(len(solution.norm), -1, -1)))
        inverse = trust.inverse_norm(solved, vectors)
    spread = trust.spread_of(solution.norm, solution.inner, -1)
    norm = solution.norm.clamp_min(options.least_norm)
    evidence = Evidence(system.size, norm, spread, ridge_of(ridge, norm), ratio, inverse)
    good = factor.sound & trust.judge(evidence, rows, limits)
    return good & system.taper_resolved if system.taper_resolved is not None and limits.any else good


def ridge_of(ridge: Tensor, like: Tensor) -> Tensor:
    """The smallest ridge of each cell `(q,)`."""
    return (ridge if ridge.ndim == 0 else ridge.detach().amin(-1)).detach().expand_as(like)


def predict(weights: Tensor, local_values: Tensor) -> Tensor:
    return (weights.unsqueeze(-2) @ local_values).squeeze(-2)  # (q, C)


def adjoint(solution: Solution, rhs: Tensor) -> tuple[Tensor, Tensor]:
    r"""$A^{-1}B$ for `rhs` `(q, M, C)`, and the `(q, C)` multiples of $A^{-1}t$ taken off it.

    With a trend the result is projected so that $t^\top$ of it is zero; without, the multiples are empty.
    """
    solved = unwhiten(solution.factor, whiten(solution.factor, rhs))
    if solution.trend is None:
        return solved, solved.new_empty(len(solved), 0)
    outer = solution.system.outer
    sums = (solved if outer is None else outer.unsqueeze(-1) * solved).sum(-2)  # (q, C): t A^-1 B
    multiples = sums / solution.trend.total.unsqueeze(-1)
    return solved - solution.trend.direction.unsqueeze(-1) * multiples.unsqueeze(-2), multiples


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
