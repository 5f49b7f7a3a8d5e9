r"""Dense problems: one Gram matrix, many queries, any leading batch dimensions. `solve_dense` is the one entrance.

Differentiable by autograd around one hand-written step, the solve with a known factor. What cannot be trusted in the dtype
of the data is solved again in float64, and what is singular even there with a larger ridge, query by query (`trust`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._chunking import chunk_bytes, ranges, rows_per_chunk
from .._tensors import any_requires_grad, as_double, needs_gradient, working_dtype
from ..distances import squared_distances
from ..kernels import Kernel
from . import tails, trust
from .factor import Factor, SolveWithFactor, cholesky, whiten
from .options import SolveOptions
from .trust import Evidence, Limits

DenseKind = Literal["mean", "weights", "power", "leave_one_out", "norm"]
# Random vectors that estimate the norms of weights. One norm in 300 is larger than its estimate times the margin.
PROBES, MARGIN = 32, 1.5


class DenseProblem(NamedTuple):
    """Embedded points, values and ridge in one dtype."""

    query: Tensor  # (*, Q, E)
    centers: Tensor  # (*, N, E)
    values: Tensor  # (*, N, C)
    ridge: Tensor  # (), (N,) or (*, N)
    options: SolveOptions

    @property
    def smallest_ridge(self) -> Tensor:
        """`()` or `(*, 1)`."""
        ridge = self.ridge.detach()
        return ridge if ridge.ndim == 0 else ridge.amin(-1, keepdim=True)


class DenseSystem(NamedTuple):
    matrix: Tensor  # (*, N, N): K + Lambda, the identity where its factorization fails
    factor: Factor
    size: Tensor  # (*,): the root of the largest row sum of K
    trend: Tensor | None  # (*, N, 1): A^-1 1
    total: Tensor | None  # (*, 1, 1): 1 A^-1 1
    tail: DenseTail | None = None  # of a bordered system: then right-hand sides and solutions have N + p rows


class DenseTail(NamedTuple):
    """What a polynomial trend adds to a system."""

    system: tails.Bordered
    frame: tails.Frame


class DenseResult(NamedTuple):
    result: Tensor
    resolved: Tensor  # bool, broadcasts against `result`


def solve_dense(kind: DenseKind, query: Tensor, centers: Tensor, values: Tensor, options: SolveOptions) -> Tensor:
    """The result of `kind` in the working dtype, every part of it solved as it can be trusted."""
    dtype, kernel, evaluate = working_dtype(values.dtype), options.kernel, EVALUATE[kind]
    ridge = as_double(options.ridge, query.device)
    differentiated = needs_gradient(query, centers, values, ridge, *kernel.parameters())

    def pose(dtype: torch.dtype, limits: Limits) -> DenseProblem:
        points = kernel.embed(query.to(dtype)), kernel.embed(centers.to(dtype))
        return DenseProblem(*points, values.to(dtype), ridge.to(dtype), replace(options, limits=limits))

    undetermined: list[int] = []
    options = replace(options, undetermined=undetermined, precision=torch.finfo(values.dtype).eps)

    if query.shape[-2] == 0:  # nothing to judge
        return evaluate(pose(dtype, trust.NO_LIMITS)).result
    result, resolved = evaluate(pose(dtype, trust.limits(dtype, kind, differentiated=differentiated)))
    if bool(resolved.all()):
        trust.undetermined_tails(undetermined, options.if_undetermined)
        return result

    def solve(problem: DenseProblem) -> Tensor:
        nonlocal result, resolved
        again = evaluate(problem)
        result = torch.where(resolved | ~again.resolved, result, again.result.to(dtype))
        resolved = resolved | again.resolved
        return resolved

    problem = pose(torch.float64, trust.limits(torch.float64, kind, differentiated=differentiated))
    if dtype != torch.float64:
        trust.solved_again(int((~resolved).sum()))
        solve(problem)
    if not bool(resolved.all()):
        count = int((~resolved).sum())
        who = "1 prediction needs" if count == 1 else f"{count} predictions need"
        _raise_ridge(problem, resolved, solve, f"{who} a Gram matrix")
    trust.undetermined_tails(undetermined, options.if_undetermined)
    return result


@torch.no_grad()
def raised_ridge(kind: DenseKind, problem: DenseProblem) -> Tensor:
    """The least ridge that resolves each float64 problem, `(*, 1)`; zero if it is resolved as it is."""
    undetermined: list[int] = []
    limits = trust.limits(torch.float64, kind)
    problem = problem._replace(options=replace(problem.options, limits=limits, undetermined=undetermined))

    def resolved(problem: DenseProblem) -> Tensor:
        good = EVALUATE[kind](problem).resolved
        width = 1 if kind in ("power", "norm") else 2
        return good.flatten(good.ndim - width).all(-1, keepdim=True)

    good = resolved(problem)
    trust.undetermined_tails(undetermined, problem.options.if_undetermined)
    raised = torch.zeros_like(good, dtype=torch.float64)

    def solve(problem: DenseProblem) -> Tensor:
        nonlocal good, raised
        reached = problem.ridge.amin() if problem.options.kernel.order == 0 else problem.smallest_ridge
        raised = torch.where(good, raised, reached)
        good = good | resolved(problem)
        return good

    if not bool(good.all()):
        _raise_ridge(problem, good, solve)
    return raised


def _raise_ridge(
    problem: DenseProblem,
    resolved: Tensor,
    solve: Callable[[DenseProblem], Tensor],
    what: str = "A Gram matrix",
) -> None:
    """Call `solve`, which returns what is resolved by then, with larger ridges, if the options allow it."""
    if problem.options.on_singular == "raise":
        raise trust.singular_error(what, f"N={problem.centers.shape[-2]}", problem.ridge)
    unit = unit_of(problem)

    def solve_with(rung: float) -> Tensor:
        ridge = problem.ridge.clamp_min(rung) if unit is None else torch.maximum(problem.ridge, rung * unit)
        return solve(problem._replace(ridge=ridge))

    trust.raise_ridge(solve_with, resolved, problem.ridge if unit is None else problem.ridge / unit)


def unit_of(problem: DenseProblem) -> Tensor | None:
    """The size of a kernel that is only conditionally positive definite, `(*, 1)`; `None` is one."""
    kernel, centers = problem.options.kernel, problem.centers.detach()
    if kernel.order == 0:
        return None
    radius = torch.linalg.vector_norm(centers - centers.mean(-2, keepdim=True), dim=-1).amax(-1, keepdim=True)
    unit = kernel.unit(radius).detach()
    return torch.where(unit > 0, unit, 1.0)


def spd_solve(system: DenseSystem, rhs: Tensor) -> Tensor:
    if system.tail is not None:
        return system.tail.system.solve(rhs)
    leading = torch.broadcast_shapes(system.matrix.shape[:-2], rhs.shape[:-2])
    rhs = rhs.expand(*leading, -1, -1)
    upper = system.factor.upper.expand(*leading, -1, -1)
    if not any_requires_grad(system.matrix, rhs):
        return SolveWithFactor.forward(system.matrix, upper, rhs)
    return SolveWithFactor.apply(system.matrix.expand(*leading, -1, -1), upper, rhs)  # type: ignore[no-any-return]


def assemble(problem: DenseProblem) -> DenseSystem:
    gram = problem.options.kernel.of_squared(squared_distances(problem.centers, problem.centers))  # (*, N, N)
    if problem.options.bordered:
        return bordered(problem, gram)
    system = factored(gram, problem.ridge)
    # A harmless stand-in keeps the gradients of the problems around it finite; the failed one stays marked.
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    sound = system.factor.sound[..., None, None]
    factor = system.factor._replace(upper=torch.where(sound, system.factor.upper, identity))
    system = system._replace(matrix=torch.where(sound, system.matrix, identity), factor=factor)
    return with_trend(system) if problem.options.trend is not None else system


def bordered(problem: DenseProblem, gram: Tensor) -> DenseSystem:
    """The system of a kernel matrix `(*, N, N)` with a polynomial trend."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1) + problem.ridge
    matrix = torch.diagonal_scatter(gram, diagonal, dim1=-2, dim2=-1)
    frame = tails.frame_of(problem.centers, precision=problem.options.precision)
    border = tails.monomials(frame.coordinates(problem.centers), problem.options.degree)
    unit = unit_of(problem)
    unit = gram.new_ones(gram.shape[:-2]) if unit is None else unit.squeeze(-1)
    system = tails.bordered(matrix, border.expand(*gram.shape[:-2], -1, -1), unit, frame.noise)
    sound, known = system.sound, problem.options.undetermined
    if gram.dtype != torch.float64:
        sound = sound & system.determined
    elif known is not None and not bool(system.determined.all()):
        known.append(int((~system.determined).sum()))
    return DenseSystem(
        matrix, system.factor._replace(sound=sound), tails.size_of(gram, unit), None, None, DenseTail(system, frame)
    )


def factored(gram: Tensor, ridge: Tensor) -> DenseSystem:
    """The system of a kernel matrix `(*, N, N)`, without a trend; ridge `()`, `(N,)` or `(*, N)`."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1) + ridge
    matrix = torch.diagonal_scatter(gram, diagonal, dim1=-2, dim2=-1)
    return DenseSystem(matrix, cholesky(matrix.detach()), trust.size_of(gram), None, None)


def with_trend(system: DenseSystem) -> DenseSystem:
    trend = spd_solve(system, system.matrix.new_ones(*system.matrix.shape[:-1], 1))  # (*, N, 1)
    return system._replace(trend=trend, total=trend.sum(-2, keepdim=True))


def crosses(problem: DenseProblem, system: DenseSystem) -> Iterator[Tensor]:
    """As `cross_kernel`, of some queries after others."""
    batch = torch.broadcast_shapes(problem.query.shape[:-2], problem.centers.shape[:-2]).numel()
    row_bytes = 4 * batch * problem.centers.shape[-2] * problem.query.element_size()
    size = rows_per_chunk(row_bytes, 4 * chunk_bytes(problem.query.device))
    for chunk in ranges(problem.query.shape[-2], size) or [slice(0, 0)]:
        yield cross_kernel(problem, system, problem.query[..., chunk, :])


def cross_kernel(problem: DenseProblem, system: DenseSystem, query: Tensor) -> Tensor:
    """The kernel `(*, N, q)` of the centers with queries; of a bordered system `(*, N + p, q)`, with their monomials."""
    cross = problem.options.kernel.of_squared(squared_distances(problem.centers, query))
    if system.tail is None:
        return cross
    at = tails.monomials(system.tail.frame.coordinates(query), problem.options.degree).mT  # (*, p, q)
    return torch.cat((cross, at.expand(*cross.shape[:-2], -1, -1)), dim=-2)


def of_centers(system: DenseSystem, solved: Tensor) -> Tensor:
    """The rows `(*, N, C)` of a solution that belong to the centers."""
    return solved if system.tail is None else solved[..., : system.matrix.shape[-1], :]


class DenseWeights(NamedTuple):
    plain: Tensor  # (*, N, q): A^-1 k; of a bordered system (*, N + p, q)
    weights: Tensor  # (*, N, q): with the trend, if there is one
    norm: Tensor  # (*, q): the larger of both
    spread: Tensor  # (*, q): as in `trust`


def weights_for(system: DenseSystem, cross: Tensor) -> DenseWeights:
    """Weights for the columns of `cross` `(*, N, q)`."""
    plain = spd_solve(system, cross)
    weights = of_centers(system, plain)
    norm = torch.linalg.vector_norm(weights.detach(), dim=-2)
    if system.trend is not None and system.total is not None:
        weights = plain + system.trend * ((1 - plain.sum(-2, keepdim=True)) / system.total)
        norm = torch.maximum(norm, torch.linalg.vector_norm(weights.detach(), dim=-2))
    return DenseWeights(plain, weights, norm, trust.spread_of(norm, weights, -2))


def project_trend(system: DenseSystem, solved: Tensor) -> tuple[Tensor, Tensor | None]:
    r"""$A^{-1}(B - 1m)$ and the trend $m = 1^\top A^{-1}B / 1^\top A^{-1}1$, from $A^{-1}B$ `(*, N, C)`."""
    if system.trend is None or system.total is None:
        return solved, None
    mean = solved.sum(-2, keepdim=True) / system.total  # (*, 1, C)
    return solved - system.trend * mean, mean


class _Judge:
    r"""Which queries are resolved, for a price that does not grow with their number unless it must.

    With $g$ of independent normal entries, $g^\top w = (A^{-1}g)^\top k$ has the variance $\|w\|^2$: a few solves with such
    vectors estimate the norms of all weights. The estimate, with a margin, decides in float32, where being wrong costs a
    solve in float64; there, where it would cost another ridge, the weights of queries in doubt are solved for. Without
    limits nothing is judged, and no step depends on the numbers.
    """

    @torch.no_grad()
    def __init__(self, problem: DenseProblem, system: DenseSystem, coefficients: Tensor | None = None) -> None:
        self.problem, self.system = problem, system._replace(matrix=system.matrix.detach())
        self.sound, self.limits = system.factor.sound.unsqueeze(-1), problem.options.limits
        self.ratio = None
        if not self.limits.any:
            return
        rows = system.matrix.shape[-1]
        vectors = torch.randn(rows, PROBES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        vectors = vectors.to(system.matrix)
        self.probes = spd_solve(self.system, vectors)  # (*, N, PROBES)
        rule = trust.inverse_norm if system.tail is None else tails.inverse_norm
        self.inverse = rule(of_centers(system, self.probes), vectors).unsqueeze(-1)  # (*, 1)
        if coefficients is not None and coefficients.shape[-1]:
            lengths = torch.linalg.vector_norm(of_centers(system, coefficients).detach(), dim=-2)  # (*, C)
            sizes = trust.value_sizes(problem.values.detach(), problem.options.trend is not None)
            self.ratio = trust.worst_ratio(lengths, sizes).unsqueeze(-1)

    def trusts(self, norm: Tensor, spread: Tensor, ratio: Tensor | None = None) -> Tensor:
        """`(*, q)` for norms and spreads of weights `(*, q)`."""
        if not self.limits.any:
            return self.sound.expand_as(norm)
        ratio, size = self.ratio if ratio is None else ratio, self.system.size.unsqueeze(-1)
        evidence = Evidence(size, norm, spread, self.problem.smallest_ridge, ratio, self.inverse)
        if self.system.tail is not None:
            evidence = evidence.in_units(self.system.tail.system.unit.unsqueeze(-1))
        return self.sound & trust.judge(evidence, self.system.matrix.shape[-1], self.limits)

    @torch.no_grad()
    def resolved(self, cross: Tensor) -> Tensor:
        """`(*, q)`, of the columns of `cross` `(*, N, q)`."""
        if not self.limits.any:
            return self.sound.expand(*cross.shape[:-2], cross.shape[-1])
        system = self.system
        norm = MARGIN * (cross.mT @ self.probes).square().mean(-1).sqrt()
        if system.trend is not None and system.total is not None:
            rest = (1 - (cross.mT @ system.trend).squeeze(-1)) / system.total.squeeze(-1)
            norm = norm + torch.linalg.vector_norm(system.trend, dim=-2) * rest.abs()
        good = self.trusts(norm, torch.full_like(norm, math.sqrt(system.matrix.shape[-1])))
        if cross.dtype is torch.float32 or bool(good.all()):
            return good
        exact = weights_for(system, cross)
        return self.trusts(exact.norm, exact.spread)


def mean(problem: DenseProblem) -> DenseResult:
    """Predictions `(*, Q, C)`, with C right-hand sides, or Q of them if there are fewer queries than outputs."""
    system = assemble(problem)
    coefficients, trend = project_trend(system, spd_solve(system, problem.values))
    judge = _Judge(problem, system, coefficients)
    parts = [
        (mean_for(cross, coefficients, trend), judge.resolved(cross.detach()).unsqueeze(-1))
        for cross in crosses(problem, system)
    ]
    return DenseResult(*(torch.cat(column, dim=-2) for column in zip(*parts, strict=True)))


def mean_for(cross: Tensor, coefficients: Tensor, trend: Tensor | None) -> Tensor:
    part = cross.mT @ coefficients
    return part if trend is None else part + trend


def weights(problem: DenseProblem) -> DenseResult:
    """Cardinal weights `(*, Q, N)`."""
    system = assemble(problem)
    found = weights_for(system, cross_kernel(problem, system, problem.query))
    resolved = _Judge(problem, system).trusts(found.norm, found.spread)
    return DenseResult(found.weights.mT, resolved.unsqueeze(-1))


def power_squared(problem: DenseProblem) -> DenseResult:
    r"""$1 - k^\top A^{-1}k$, plus $(1-b)^2/c$ with a trend; `(*, Q)`."""
    system = assemble(problem)
    judge, parts = _Judge(problem, system), []
    for cross in crosses(problem, system):
        found = weights_for(system, cross)
        parts.append((power_for(problem.options.kernel, system, cross, found), judge.trusts(found.norm, found.spread)))
    return DenseResult(*(torch.cat(column, dim=-1) for column in zip(*parts, strict=True)))


def power_for(kernel: Kernel, system: DenseSystem, cross: Tensor, found: DenseWeights) -> Tensor:
    """Squared power function `(*, q)` for the columns of `cross` `(*, N, q)` and the weights found for them."""
    explained = (cross * found.plain).sum(-2)
    if system.tail is not None:
        return kernel.at_zero - explained
    # The norm of U^-T k is the same number with less rounding; the gradient is that of the formula.
    accurate = whiten(system.factor, cross.detach()).square().sum(-2)
    power = 1 - (explained + (accurate - explained).detach())
    if system.total is None:
        return power
    return power + (1 - found.plain.sum(-2)).square() / system.total.squeeze(-1)


class DenseLeftOut(NamedTuple):
    residuals: Tensor  # (*, N, C): of each center, predicted from the others
    coefficients: Tensor  # (*, N, C): P y
    diagonal: Tensor  # (*, N): of P; one over it is the variance of a center that is left out, with its ridge


def inverse_of(system: DenseSystem) -> Tensor:
    """`(*, N, N)`, without a constant trend, but projected for any other."""
    if any_requires_grad(system.matrix):
        identity = torch.eye(system.matrix.shape[-1], dtype=system.matrix.dtype, device=system.matrix.device)
        return of_centers(system, spd_solve(system, identity))
    if system.tail is not None:
        return system.tail.system.complement_inverse()
    return torch.cholesky_inverse(system.factor.upper, upper=True)  # a third of the price


def left_out_of(system: DenseSystem, values: Tensor, inverse: Tensor) -> DenseLeftOut:
    r"""Leave-one-out of values `(*, N, C)`: $r_i = [Py]_i/P_{ii}$, $P$ the inverse or its projection."""
    diagonal = inverse.diagonal(dim1=-2, dim2=-1)
    if system.trend is not None and system.total is not None:
        diagonal = diagonal - (system.trend.square() / system.total).squeeze(-1)
    # Not the inverse times the values: columns of two close rows have large entries, and their errors would not cancel.
    coefficients, _ = project_trend(system, of_centers(system, spd_solve(system, values)))
    return DenseLeftOut(coefficients / diagonal.unsqueeze(-1), coefficients, diagonal)


def leave_one_out(problem: DenseProblem) -> DenseResult:
    """Predictions `(*, N, C)` at each center from the others."""
    system = assemble(problem)
    inverse = inverse_of(system)
    residuals, coefficients, diagonal = left_out_of(system, problem.values, inverse)
    needed = None if system.tail is None else system.tail.system.needed()
    with torch.no_grad():
        inverse, _ = project_trend(system, inverse)
        lengths = torch.linalg.vector_norm(inverse, dim=-2)  # (*, N): |P_i|, each as it was solved for
        norm = lengths / diagonal
        # Column i of the inverse, divided by its diagonal, is one, and minus the weights that the others give to center i.
        spread = trust.spread_of(lengths, inverse, -2)
        solved = torch.linalg.vector_norm(coefficients, dim=-2, keepdim=True) + residuals.abs() * lengths.unsqueeze(-1)
        sizes = trust.value_sizes(problem.values, problem.options.trend is not None).unsqueeze(-2)  # (*, 1, C)
        resolved = _Judge(problem, system).trusts(norm, spread, trust.worst_ratio(solved, sizes))
    result = DenseResult(problem.values - residuals, resolved.unsqueeze(-1))
    return result if needed is None else _with_refits(problem, result, needed)


def _with_refits(problem: DenseProblem, result: DenseResult, needed: Tensor) -> DenseResult:
    """With the predictions of the `needed` `(*, N)`: what the others determine of the polynomial is another problem."""
    *leading, rows, _ = result.result.shape
    batch = torch.Size(leading)
    centers, values = problem.centers.expand(*batch, -1, -1), problem.values.expand(*batch, -1, -1)
    ridge = problem.ridge if problem.ridge.ndim == 0 else problem.ridge.expand(*batch, rows)
    means, resolved = result.result.clone(), result.resolved.expand(*batch, rows, 1).clone()
    for *at, row in needed.expand(*batch, rows).nonzero().tolist():
        rest = torch.arange(rows, device=centers.device) != row
        place = tuple(at)
        own = ridge if ridge.ndim == 0 else ridge[place][rest]
        again = mean(
            DenseProblem(centers[place][row : row + 1], centers[place][rest], values[place][rest], own, problem.options)
        )
        means[(*place, row)], resolved[(*place, row)] = again.result[0], again.resolved[0]
    return DenseResult(means, resolved)


def norm_squared(problem: DenseProblem) -> DenseResult:
    r"""$\alpha^\top K\alpha$ per output, `(*, C)`."""
    system = assemble(problem)
    solved = spd_solve(system, problem.values)
    coefficients, trend = project_trend(system, of_centers(system, solved))
    if system.tail is not None:
        trend = system.tail.system.border @ solved[..., coefficients.shape[-2] :, :]
    fitted = problem.values - problem.ridge.unsqueeze(-1) * coefficients  # K alpha
    squared = (coefficients * (fitted if trend is None else fitted - trend)).sum(-2)
    with torch.no_grad():
        u = trust.roundoff(squared.dtype)
        rounding = u * system.size.unsqueeze(-1) * coefficients.square().sum(-2)
        # What the trend explains leaves nothing but rounding, harmless as long as alpha is no larger than the values.
        floor = 2 * u * problem.values.square().sum(-2)
        resolved = system.factor.sound.unsqueeze(-1) & (rounding <= trust.TRUSTED.mean * squared + floor)
        if problem.options.limits.system < math.inf:
            ones = torch.ones_like(system.size).unsqueeze(-1)
            resolved = resolved & _Judge(problem, system).trusts(ones, ones)
    return DenseResult(squared, resolved)


EVALUATE: dict[DenseKind, Callable[[DenseProblem], DenseResult]] = {
    "mean": mean,
    "weights": weights,
    "power": power_squared,
    "leave_one_out": leave_one_out,
    "norm": norm_squared,
}


@torch.no_grad()
def serves_any_query(system: DenseSystem) -> Tensor:
    """Whether float64 systems can be trusted with queries not yet known, `(*,)` bool."""
    vectors = trust.probes(system.matrix)
    solved = of_centers(system, spd_solve(system, vectors))
    if system.tail is None:
        inverse = trust.inverse_norm(solved, vectors)
    else:
        inverse = tails.inverse_norm(solved, vectors) * system.tail.system.unit
    return system.factor.sound & trust.serves_any_query(system.size, system.matrix.shape[-1], inverse)


class DenseRegressor:
    """One Gram matrix, factored once and kept for queries not yet known.

    In float64 whatever the dtype of the points, and with the least ridge that resolves the system for any values.
    """

    @torch.no_grad()
    def __init__(self, centers: Tensor, values: Tensor, options: SolveOptions) -> None:
        points, ridge = options.kernel.embed(centers.double()), as_double(options.ridge, centers.device)
        undetermined: list[int] = []
        options = replace(options, undetermined=undetermined, precision=torch.finfo(centers.dtype).eps)
        self.problem = DenseProblem(points[:0], points, values.double(), ridge, options)
        system = assemble(self.problem)

        def solve(problem: DenseProblem) -> Tensor:
            nonlocal system
            self.problem, system = problem, assemble(problem)
            return serves_any_query(system)

        resolved = serves_any_query(system)
        if not bool(resolved):
            _raise_ridge(self.problem, resolved, solve)
        trust.undetermined_tails(undetermined, options.if_undetermined)
        # Only the shape is asked for from here on; a bordered system has its matrix beside this.
        self.system = system._replace(matrix=system.factor.upper)
        self.coefficients, self.constant = project_trend(self.system, spd_solve(self.system, self.problem.values))

    @torch.no_grad()
    def predict(self, query: Tensor) -> Tensor:
        """`(Q, D)` to `(Q, C)`."""
        return self.evaluate(query)

    def forget_factor(self) -> None:
        """Keep what `predict` and `evaluate` need, which does not grow with the square of N."""
        system, tail = self.system, self.system.tail
        nothing = self.coefficients[:0]
        if tail is not None:
            kept = tail.system._replace(matrix=nothing, border=nothing, upper=nothing, basis=nothing, back=nothing)
            tail = tail._replace(system=kept)
        factor = system.factor._replace(upper=nothing)
        self.system = system._replace(matrix=nothing, factor=factor, tail=tail)

    def evaluate(self, query: Tensor) -> Tensor:
        """As `predict`, with derivatives in the query."""
        return torch.cat([mean_for(cross, self.coefficients, self.constant) for cross in self._crosses(query)])

    @torch.no_grad()
    def predict_with_power(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions `(Q, C)` and the squared power function `(Q,)`."""
        parts = [
            (
                mean_for(cross, self.coefficients, self.constant),
                power_for(self.problem.options.kernel, self.system, cross, weights_for(self.system, cross)),
            )
            for cross in self._crosses(query)
        ]
        means, powers = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(powers)

    @torch.no_grad()
    def weights(self, query: Tensor) -> Tensor:
        """`(Q, N)`."""
        return torch.cat([weights_for(self.system, cross).weights.mT for cross in self._crosses(query)])

    @torch.no_grad()
    def inverse(self, last: int | None = None) -> Tensor:
        """The inverse `(N, N)`, projected if there is a trend; or its block of the `last` centers, `(last, last)`.

        The last block of the inverse comes from the last block of the Cholesky factor: it costs the cube of its own size.
        """
        start = 0 if last is None else self.system.factor.upper.shape[-1] - last
        inverse = torch.cholesky_inverse(self.system.factor.upper[start:, start:], upper=True)
        if self.system.trend is not None and self.system.total is not None:
            trend = self.system.trend[start:]
            inverse = inverse - trend @ (trend / self.system.total).mT
        return inverse

    def _crosses(self, query: Tensor) -> Iterator[Tensor]:
        return crosses(self.problem._replace(query=self.problem.options.kernel.embed(query.double())), self.system)
