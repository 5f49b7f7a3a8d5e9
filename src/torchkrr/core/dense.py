r"""Dense solves: one Gram matrix, many queries, any leading batch dimensions.

Differentiable by autograd around one hand-written step, the solve with a known factor. Which queries are resolved follows
the rule of `factor`, query by query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._chunking import chunk_bytes, ranges, rows_per_chunk
from ..distances import is_differentiated, squared_distances
from ..kernels import Kernel
from .factor import UNRESOLVED, Factor, cholesky, whiten


class DenseProblem(NamedTuple):
    """Embedded points, values and ridge in one dtype."""

    query: Tensor  # (*, Q, E)
    centers: Tensor  # (*, N, E)
    values: Tensor  # (*, N, C)
    ridge: Tensor  # (), (N,) or (*, N)
    kernel: Kernel
    trend: bool


class DenseSystem(NamedTuple):
    matrix: Tensor  # (*, N, N): K + Lambda, the identity where its factorization fails
    factor: Factor
    trend: Tensor | None  # (*, N, 1): A^-1 1
    total: Tensor | None  # (*, 1, 1): 1 A^-1 1


class DenseResult(NamedTuple):
    result: Tensor
    resolved: Tensor  # bool, broadcasts against `result`


Evaluate = Callable[[DenseProblem], DenseResult]
# Random vectors that estimate the norms of weights. One norm in 300 is larger than its estimate times the margin.
PROBES, MARGIN = 32, 1.5


class _SolveWithFactor(torch.autograd.Function):
    r"""Solve $AX = B$ for symmetric positive definite $A$, given its Cholesky factor.

    With $G$ arriving at $X$: $\bar B = A^{-1}G$ and $\bar A = -\tfrac12(\bar B X^\top + X\bar B^\top)$, so the backward pass
    needs one more solve and no new factorization. It applies this function again, not `cholesky_solve`: the factor carries
    no graph, so second derivatives in the matrix would silently be lost.
    """

    @staticmethod
    def forward(matrix: Tensor, upper: Tensor, rhs: Tensor) -> Tensor:
        return torch.cholesky_solve(rhs, upper, upper=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        matrix, upper, _ = inputs
        ctx.save_for_backward(matrix, upper, output)
        ctx.save_for_forward(matrix, upper, output)

    @staticmethod
    def jvp(ctx: Any, matrix_tangent: Tensor, _: Any, rhs_tangent: Tensor) -> Tensor:
        # A X' = B' - A' X
        _, upper, solution = ctx.saved_tensors
        return torch.cholesky_solve(rhs_tangent - matrix_tangent @ solution, upper, upper=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, upper, solution = ctx.saved_tensors
        grad_rhs = _SolveWithFactor.apply(matrix, upper, grad)
        grad_matrix = None
        if ctx.needs_input_grad[0]:
            product = grad_rhs @ solution.mT
            grad_matrix = (-0.5 * (product + product.mT)).sum_to_size(matrix.shape)
        return grad_matrix, None, grad_rhs


def spd_solve(system: DenseSystem, rhs: Tensor) -> Tensor:
    leading = torch.broadcast_shapes(system.matrix.shape[:-2], rhs.shape[:-2])
    rhs = rhs.expand(*leading, -1, -1)
    upper = system.factor.upper.expand(*leading, -1, -1)
    if not is_differentiated(system.matrix, rhs):
        return _SolveWithFactor.forward(system.matrix, upper, rhs)
    return _SolveWithFactor.apply(system.matrix, upper, rhs)  # type: ignore[no-any-return]


def assemble(problem: DenseProblem) -> DenseSystem:
    gram = problem.kernel.of_squared(squared_distances(problem.centers, problem.centers))  # (*, N, N)
    diagonal = gram.diagonal(dim1=-2, dim2=-1) + problem.ridge
    matrix = torch.diagonal_scatter(gram, diagonal, dim1=-2, dim2=-1)
    factor = cholesky(matrix.detach())
    if not bool(factor.sound.all()):
        # A harmless stand-in keeps the gradients of the cells around it finite; the failed one stays marked.
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(factor.sound[..., None, None], matrix, identity)
        upper = torch.where(factor.sound[..., None, None], factor.upper, identity)
        factor = factor._replace(upper=upper)
    system = DenseSystem(matrix, factor, None, None)
    if not problem.trend:
        return system
    ones = matrix.new_ones(*matrix.shape[:-1], 1)
    trend = spd_solve(system, ones)  # (*, N, 1)
    return system._replace(trend=trend, total=trend.sum(-2, keepdim=True))


def cross_kernel(problem: DenseProblem, query: Tensor) -> Tensor:
    return problem.kernel.of_squared(squared_distances(problem.centers, query))  # (*, N, q)


class DenseWeights(NamedTuple):
    plain: Tensor  # (*, N, q): A^-1 k
    weights: Tensor  # (*, N, q): with the trend, if there is one
    resolved: Tensor  # (*, q) bool


def weights_for(system: DenseSystem, cross: Tensor) -> DenseWeights:
    """Weights for the columns of `cross` `(*, N, q)`."""
    plain = weights = spd_solve(system, cross)
    norm = torch.linalg.vector_norm(plain.detach(), dim=-2)
    if system.trend is not None and system.total is not None:
        weights = plain + system.trend * ((1 - plain.sum(-2, keepdim=True)) / system.total)
        norm = torch.maximum(norm, torch.linalg.vector_norm(weights.detach(), dim=-2))
    return DenseWeights(plain, weights, _resolved_columns(system, norm))


def _resolved_columns(system: DenseSystem, norm: Tensor) -> Tensor:
    """The rule of `factor` for several weight vectors, norms `(*, q)`, that share one factor."""
    factor = system.factor
    return factor.sound[..., None] & (norm.detach() <= factor.largest_norm[..., None])


def project_trend(system: DenseSystem, solved: Tensor) -> tuple[Tensor, Tensor | None]:
    r"""$A^{-1}(B - 1m)$ and the trend $m = 1^\top A^{-1}B / 1^\top A^{-1}1$, from $A^{-1}B$ `(*, N, C)`."""
    if system.trend is None or system.total is None:
        return solved, None
    mean = solved.sum(-2, keepdim=True) / system.total  # (*, 1, C)
    return solved - system.trend * mean, mean


def mean(problem: DenseProblem) -> DenseResult:
    """Predictions `(*, Q, C)`, with C right-hand sides, or Q of them if there are fewer queries than outputs."""
    system = assemble(problem)
    few_queries = problem.query.shape[-2] <= problem.values.shape[-1]
    if few_queries:
        found = weights_for(system, cross_kernel(problem, problem.query))
        return DenseResult(found.weights.mT @ problem.values, found.resolved.unsqueeze(-1))
    coefficients, trend = project_trend(system, spd_solve(system, problem.values))
    judge = None if _surely_resolved(system.factor) else _Judge(system)
    results, masks = [], []
    for chunk in _query_chunks(problem):
        cross = cross_kernel(problem, problem.query[..., chunk, :])  # (*, N, q)
        part = cross.mT @ coefficients
        results.append(part if trend is None else part + trend)
        if judge is not None:
            masks.append(judge.resolved(cross.detach()))
    resolved = torch.cat(masks, dim=-1).unsqueeze(-1) if masks else torch.ones_like(system.factor.sound[..., None, None])
    return DenseResult(torch.cat(results, dim=-2), resolved)


def weights(problem: DenseProblem) -> DenseResult:
    """Cardinal weights `(*, Q, N)`."""
    found = weights_for(assemble(problem), cross_kernel(problem, problem.query))
    return DenseResult(found.weights.mT, found.resolved.unsqueeze(-1))


def power_squared(problem: DenseProblem) -> DenseResult:
    r"""$1 - k^\top A^{-1}k$, plus $(1-b)^2/c$ with a trend; `(*, Q)`."""
    system = assemble(problem)
    results, masks = [], []
    for chunk in _query_chunks(problem):
        cross = cross_kernel(problem, problem.query[..., chunk, :])  # (*, N, q)
        found = weights_for(system, cross)
        explained = (cross * found.plain).sum(-2)
        # The norm of U^-T k is the same number with less rounding; the gradient is that of the formula.
        accurate = whiten(system.factor, cross.detach()).square().sum(-2)
        part = 1 - (explained + (accurate - explained).detach())
        if system.total is not None:
            part = part + (1 - found.plain.sum(-2)).square() / system.total.squeeze(-1)
        results.append(part)
        masks.append(found.resolved)
    return DenseResult(torch.cat(results, dim=-1), torch.cat(masks, dim=-1))


def leave_one_out(problem: DenseProblem) -> DenseResult:
    r"""Predictions `(*, N, C)` at each center from the others: $y_i - [Py]_i/P_{ii}$, $P = A^{-1}$ or its projection."""
    system = assemble(problem)
    identity = torch.eye(system.matrix.shape[-1], dtype=system.matrix.dtype, device=system.matrix.device)
    inverse, _ = project_trend(system, spd_solve(system, identity))  # (*, N, N)
    diagonal = inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # (*, N, 1)
    # Row i of the inverse, divided by its diagonal, is minus the weights that the other centers give to center i.
    norm = ((inverse.detach() / diagonal.detach()).square().sum(-1) - 1).clamp_min(0).sqrt()
    left_out = problem.values - (inverse @ problem.values) / diagonal
    return DenseResult(left_out, _resolved_columns(system, norm).unsqueeze(-1))


def norm_squared(problem: DenseProblem) -> DenseResult:
    r"""$\alpha^\top K\alpha$ per output, `(*, C)`."""
    system = assemble(problem)
    coefficients, trend = project_trend(system, spd_solve(system, problem.values))
    fitted = problem.values - problem.ridge.unsqueeze(-1) * coefficients  # K alpha
    squared = (coefficients * (fitted if trend is None else fitted - trend)).sum(-2)
    # Rounding turns alpha by about epsilon |alpha| / p_min, and where p_min is the ridge this moves the result by
    # epsilon |alpha|^2: repeated centers with different values have large, opposite coefficients.
    rounding = torch.finfo(squared.dtype).eps * coefficients.detach().square().sum(-2)
    # What the trend explains leaves nothing but rounding, which is harmless as long as alpha is no larger than the values.
    floor = torch.finfo(squared.dtype).eps * problem.values.detach().square().sum(-2)
    resolved = system.factor.sound.unsqueeze(-1) & (rounding <= UNRESOLVED[squared.dtype] * squared.detach() + floor)
    return DenseResult(squared, resolved)


class _Judge:
    r"""Which queries are resolved, for a price that does not grow with their number unless it must.

    With $g$ of independent normal entries, $g^\top w = (A^{-1}g)^\top k$ has the variance $\|w\|^2$: a few solves with such
    vectors estimate the norms of all weights. The estimate, with a margin, decides in float32, where being wrong costs a
    solve in float64; there, where it would cost another ridge, the weights of queries in doubt are solved for.
    """

    def __init__(self, system: DenseSystem) -> None:
        self.system = system._replace(matrix=system.matrix.detach())
        rows = system.matrix.shape[-1]
        vectors = torch.randn(rows, PROBES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            self.probes = spd_solve(self.system, vectors.to(system.matrix))  # (*, N, PROBES)

    @torch.no_grad()
    def resolved(self, cross: Tensor) -> Tensor:
        """`(*, q)`, of the columns of `cross` `(*, N, q)`."""
        system = self.system
        norm = MARGIN * (cross.mT @ self.probes).square().mean(-1).sqrt()
        if system.trend is not None and system.total is not None:
            rest = (1 - (cross.mT @ system.trend).squeeze(-1)) / system.total.squeeze(-1)
            norm = norm + torch.linalg.vector_norm(system.trend, dim=-2) * rest.abs()
        found = _resolved_columns(system, norm)
        if cross.dtype is torch.float32 or bool(found.all()):
            return found
        return weights_for(system, cross).resolved


def _surely_resolved(factor: Factor) -> bool:
    # Weights are U^-1 l with |l| <= 1, so their norm is at most about the inverse of the smallest pivot: where even that
    # is harmless, the weights of each query need not be computed to apply the rule.
    return bool((factor.sound & (factor.largest_norm * factor.smallest_pivot.sqrt() >= 1)).all())


def _query_chunks(problem: DenseProblem) -> list[slice]:
    batch = torch.broadcast_shapes(problem.query.shape[:-2], problem.centers.shape[:-2]).numel()
    row_bytes = 4 * batch * problem.centers.shape[-2] * problem.query.element_size()
    return ranges(problem.query.shape[-2], rows_per_chunk(row_bytes, 4 * chunk_bytes(problem.query.device)))
