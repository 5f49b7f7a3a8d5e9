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

from .cells import CellOptions, LocalSystem, assemble, gather
from .factor import Factor, cholesky, is_resolved, unwhiten, whiten


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
    resolved: Tensor  # (q,) bool
    factor: Factor
    system: LocalSystem
    trend: TrendPart | None


def solve(
    query: Tensor,
    centers: Tensor,
    indices: Tensor,
    ridge: Tensor,
    options: CellOptions,
    *,
    resolved: Tensor | None = None,
) -> Solution:
    """Solve the cells of `query`; cells outside the mask `resolved` are replaced by harmless ones."""
    system = assemble(gather(query, centers, indices, options), ridge, options)
    matrix = system.matrix
    if resolved is not None and not bool(resolved.all()):
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(resolved[:, None, None], matrix, identity)
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
        image = (system.gram @ weights.unsqueeze(-1)).squeeze(-1) + ridge * weights
        power_squared = 1 + (weights * (image - 2 * system.cross)).sum(-1)
    trusted = is_resolved(factor, norm)
    if system.taper_resolved is not None:
        trusted = trusted & system.taper_resolved
    return Solution(inner, weights, power_squared, trusted, factor, system, trend)


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


def path(
    query: Tensor,
    centers: Tensor,
    local_values: Tensor,
    indices: Tensor,
    ridge: Tensor,
    options: CellOptions,
    *,
    resolved: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Means `(q, M, C)` and squared powers `(q, M)` for every $m \le M$, and which cells are resolved.

    The leading blocks of a Cholesky factor are the factors of the leading blocks, so partial sums of $l_j V_j$ and $l_j^2$
    are the means and powers of the first $m$ neighbors.
    """
    solution = solve(query, centers, indices, ridge, options, resolved=resolved)
    cross = whiten(solution.factor, solution.system.rhs.unsqueeze(-1))  # (q, M, 1): l
    values = whiten(solution.factor, local_values)  # (q, M, C): V
    means = (cross * values).cumsum(1)
    power_squared = 1 - cross.square().cumsum(1).squeeze(-1)
    if options.trend:
        ones = whiten(solution.factor, torch.ones_like(cross))  # (q, M, 1): v
        missing = 1 - (cross * ones).cumsum(1)
        total = ones.square().cumsum(1)
        means = means + missing * (ones * values).cumsum(1) / total
        power_squared = power_squared + (missing.square() / total).squeeze(-1)
    return means, power_squared, solution.resolved
