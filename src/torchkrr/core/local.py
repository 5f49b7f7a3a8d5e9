"""Local problems: the one entrance, and the way of each cell through precisions, backends, chunks and autograd.

`solve_local` embeds what is used, solves every cell in the dtype of the data, solves those that cannot be trusted there
again in float64, and those that are singular even there with a larger ridge (`trust`).

The forward pass keeps vectors per query, never an M x M matrix. First derivatives come from `backward`, or from its twin in
`compiled`; derivatives of those, and of weights and paths, from running the plain formula of `cells` again under autograd,
chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import check_finite
from .._chunking import chunk_bytes, collect, map_in_order, ranges, rows_per_chunk
from .._state import with_tensors
from .._tensors import needs_gradient, working_dtype
from . import compiled, trust
from .backward import CellGradients, Saved, gradients, save
from .cells import (
    LocalProblem,
    Solution,
    adjoint,
    gather,
    path,
    path_resolved,
    predict,
    resolved,
    solve,
    unit_of,
    whiten_path,
)
from .options import PLAIN_TRENDS, Kind, SolveOptions

Tensors = tuple[Tensor, ...]

SMALLEST_CHUNK = 8


class LocalResult(NamedTuple):
    first: Tensor  # mean (Q, C), weights (Q, M), path of means (Q, M, C) or coefficients (Q, M + p, C)
    power_squared: Tensor  # (Q,), or (Q, M) for a path; not clamped
    resolved: Tensor  # (Q,) bool, or (Q, M) for a path

    def resolved_cells(self) -> Tensor:
        return self.resolved if self.resolved.ndim == 1 else self.resolved.all(-1)

    def unresolved_rows(self) -> Tensor:
        return (~self.resolved_cells()).nonzero().squeeze(-1)

    def merged(self, rows: Tensor, again: LocalResult) -> LocalResult:
        """With the rows solved again, of a path only the steps that were not resolved."""
        had = self.resolved.index_select(0, rows)
        parts = []
        for old, new in zip(self, again, strict=True):
            mask = had.reshape(*had.shape, *(1,) * (new.ndim - had.ndim))
            parts.append(old.index_copy(0, rows, torch.where(mask, old.index_select(0, rows), new.to(old.dtype))))
        return LocalResult(*parts)


def solve_local(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    indices: Tensor,
    options: SolveOptions,
    kind: Kind,
    *,
    embedded: tuple[Tensor, Tensor] | None = None,
    cache: compiled.FactorCache | None = None,
    names: Tensor | None = None,
    value_scale: Tensor | None = None,
    least_norm: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The two outputs of `kind` (see `LocalResult`), every cell solved as it can be trusted.

    Args:
        embedded: query and centers embedded in the working dtype, if the caller has them.
        cache: of factors; needs `embedded`, and rows of the centers that mean the same in every call.
        names: numbers of the queries in messages.
        value_scale: `(C,)`, the size of what is predicted where that is more than the values, which may be residuals.
        least_norm: norms of weights are taken to be at least this, for results that serve queries not yet known.
    """
    ridge = torch.as_tensor(options.ridge, dtype=torch.float64, device=query.device)
    problem = LocalProblem(query, centers, values, ridge, indices)
    dtype = working_dtype(values.dtype) if embedded is None else embedded[0].dtype
    if query.shape[0] == 0:  # nothing to judge, and no row to gain by being clever
        return plain_solve(embed(problem, options, dtype), replace(options, kind=kind))
    value_scale = options.value_scale if value_scale is None else value_scale
    least_norm = max(options.least_norm, least_norm)
    log_scale = None
    used = problem
    if embedded is None:
        log_scale = compiled.log_scale_for(problem, options) if query.dtype == dtype else None
        if log_scale is None:
            used = problem.used_rows()
            _check_centers(used.centers, centers)
        else:
            embedded = query, centers
    bordered = options.kernel.order > 0 or options.trend not in PLAIN_TRENDS
    undetermined: list[int] | None = [] if bordered else None
    options = replace(options, kind=kind, value_scale=value_scale, least_norm=least_norm, cache=cache, log_scale=log_scale)
    options = replace(options, undetermined=undetermined, precision=torch.finfo(query.dtype).eps)
    result = solve_embedded(embed(used, options, dtype, embedded), options)
    if not bool(result.resolved.all()):
        options = replace(options, cache=None, log_scale=None)  # cells are numbered anew, and all are embedded
        if bordered:  # only torch tells a cell that is singular from one that does not determine its trend
            options = replace(options, backend="torch", undetermined=None if undetermined else [])
            undetermined = undetermined or options.undetermined
        rows = result.unresolved_rows()
        rest = problem.rows(rows)
        if log_scale is not None:
            _check_centers(rest.centers, centers)  # nobody has looked at them yet
        wide = embed(rest, options, torch.float64)
        if dtype == torch.float64 and not bordered:
            again = LocalResult(*(part.index_select(0, rows) for part in result))
        else:
            if dtype != torch.float64:
                trust.solved_again(len(rows))
            again = solve_embedded(wide, options)
        if not bool(again.resolved.all()):
            options = replace(options, undetermined=None)  # they have been counted
            again, _ = _raise_ridge(wide, again, options, rows if names is None else names[rows])
        result = result.merged(rows, again)
    if undetermined:
        trust.undetermined_tails([sum(undetermined)], options.if_undetermined)
    if not math.isfinite(result.first.detach().sum().item()):
        # Looked at only here: a pass over all centers on every call would not be free.
        check_finite("centers", centers)
        check_finite("values", values)
    return result.first, result.power_squared


def embed(
    problem: LocalProblem, options: SolveOptions, dtype: torch.dtype, points: tuple[Tensor, Tensor] | None = None
) -> LocalProblem:
    """The problem in one dtype, with the given or embedded points, and its ridge by query where it differs by center."""
    query, centers, values, ridge, indices = problem
    if points is None:
        points = options.kernel.embed(query.to(dtype)), options.kernel.embed(centers.to(dtype))
    if ridge.ndim == 1:
        members = problem.members(options)
        ridge = ridge.index_select(0, members.flatten()).view(members.shape)
    return LocalProblem(*points, values.to(dtype), ridge.to(dtype), indices)


def raised_ridge(problem: LocalProblem, options: SolveOptions) -> Tensor:
    """The least ridge that resolves each embedded float64 cell, `(Q, 1)`; zero if it is resolved as it is.

    Not of each step of a path, but of all of them.
    """
    undetermined: list[int] | None = [] if options.bordered else None
    if options.bordered:
        options = replace(options, backend="torch")  # as in `solve_local`
    with torch.no_grad():
        result = solve_embedded(problem, replace(options, undetermined=undetermined))
        if undetermined:
            trust.undetermined_tails([sum(undetermined)], options.if_undetermined)
        if bool(result.resolved.all()):
            return problem.query.new_zeros(len(problem.query), 1)
        return _raise_ridge(problem, result, options, torch.arange(len(problem.query), device=problem.query.device))[1]


def _raise_ridge(
    problem: LocalProblem, result: LocalResult, options: SolveOptions, names: Tensor
) -> tuple[LocalResult, Tensor]:
    """Embedded float64 cells that are not resolved, with the smallest ridge of a ladder that resolves them, and which."""
    singular, raised = result.unresolved_rows(), problem.query.new_zeros(len(problem.query), 1)
    if options.on_singular == "raise":
        local = problem.centers[problem.indices[singular[0]]].detach()
        closest = torch.pdist(local).min().item() if len(local) > 1 else 0.0
        raise trust.singular_error(
            f"{len(singular)} {'neighborhood has' if len(singular) == 1 else 'neighborhoods have'} a Gram matrix",
            f"M={problem.indices.shape[1]}",
            problem.rows(singular).ridge,
            f"The first is query {int(names[singular[0]])}; its two closest centers are {closest:.3g} apart in the embedded "
            "space.",
        )

    units = unit_of(gather(problem, options), options)

    def solve_with(ridge: float) -> Tensor:
        nonlocal result
        rows = result.unresolved_rows()
        some = problem.rows(rows)
        if units is None:
            raised[rows], larger = ridge, some.ridge.clamp_min(ridge)
        else:
            raised[rows] = ridge * units[rows].unsqueeze(-1)
            larger = torch.maximum(some.ridge, raised[rows])
        result = result.merged(rows, solve_embedded(some._replace(ridge=larger), options))
        return result.resolved_cells()

    asked = problem.ridge if units is None else problem.ridge.amin() / units.amax()
    trust.raise_ridge(solve_with, result.resolved_cells(), asked)
    return result, raised


def _check_centers(used: Tensor, given: Tensor) -> None:
    if not math.isfinite(used.detach().sum().item()):
        check_finite("centers", given)


def solve_embedded(problem: LocalProblem, options: SolveOptions) -> LocalResult:
    """Solve every embedded cell in the dtype of its inputs; cells that are not `resolved` hold no usable numbers."""
    learned = options.kernel.learned_in_profile()
    differentiated = needs_gradient(*problem[:4], *learned)
    is_fused = compiled.use_compiled(problem, options, learned)
    options = replace(
        options,
        backend="fused" if is_fused else "torch",
        differentiated=differentiated,
        limits=trust.limits(problem.query.dtype, options.kind, differentiated=differentiated),
    )
    if differentiated:
        return LocalResult(*_LocalSolve.apply(*problem, options, *learned)[:3])
    solve_all = compiled.local_forward if is_fused else _forward
    return LocalResult(*solve_all(problem, options)[:3])


def _forward(problem: LocalProblem, options: SolveOptions) -> Tensors:
    """The outputs of `options.kind`, which cells are resolved, and what the backward pass needs (or empty tensors)."""

    def work(chunk: slice) -> Tensors:
        with torch.no_grad():
            return _evaluate(problem.chunk(chunk), options)

    return collect(work, _chunks(problem, options.bordered), problem.query.device)


class _LocalSolve(torch.autograd.Function):
    """As `_forward`, with a gradient: inputs are a problem, its options, and what the profile of the kernel learns."""

    @staticmethod
    def forward(*inputs: Any) -> Tensors:
        solve_all = compiled.local_forward if inputs[5].backend == "fused" else _forward
        return solve_all(LocalProblem(*inputs[:5]), inputs[5])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        *problem, ctx.options = inputs[:6]
        _, _, good, *saved = output
        ctx.mark_non_differentiable(good, *saved)
        ctx.save_for_backward(*problem, good, *saved, *inputs[6:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, options, grad_outputs = ctx.saved_tensors, ctx.options, grads[:2]
        problem, good, saved, learned = LocalProblem(*tensors[:5]), tensors[5], Saved(*tensors[6:10]), list(tensors[10:])
        needs = (*ctx.needs_input_grad[:4], *ctx.needs_input_grad[6:])
        if options.kind != "mean" or torch.is_grad_enabled():
            result = _by_autograd(problem, good, grad_outputs, options, learned, needs)
        elif options.backend == "fused":
            result = compiled.local_gradients(problem, saved, grad_outputs, options, needs)
        else:
            result = _by_hand(problem, saved, grad_outputs, options, learned, needs)
        return *result[:4], None, None, *result[4:]


def _evaluate(problem: LocalProblem, options: SolveOptions) -> Tensors:
    nothing = [problem.query.new_empty(len(problem.query), 0) for _ in Saved._fields]
    solution = solve(problem, options)
    local_values = problem.values[problem.members(options)]  # (q, M, C)
    if options.kind == "path":
        white = whiten_path(solution, local_values)
        return *path(white), path_resolved(solution, white, local_values, problem.ridge, options), *nothing
    good = resolved(solution, local_values, problem.ridge, options)
    saved = save(solution, local_values, good) if options.kind == "mean" and options.differentiated else nothing
    return _output(solution, local_values, options), solution.power_squared, good, *saved


def _output(solution: Solution, local_values: Tensor, options: SolveOptions) -> Tensor:
    if options.kind == "weights":
        return pad(solution.weights, (0, 1)) if options.fade else solution.weights
    if options.kind == "mean":
        return predict(solution.weights, local_values)
    # Coefficients A^-1 (y - m) and, below them, the polynomial m of the trend (a zero without), (q, M + p, C).
    solved, polynomial = adjoint(solution, local_values)
    if options.trend is None:
        polynomial = solved.new_zeros(len(solved), 1, solved.shape[-1])
    return torch.cat((solved, polynomial), dim=-2)


def plain_solve(problem: LocalProblem, options: SolveOptions, sound: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The two outputs for an embedded problem by the plain formulas, in steps that autograd and `torch.func` can follow."""
    options = replace(options, plain_steps=True)
    solution = solve(problem, options, sound=sound)
    local_values = problem.values[problem.members(options)]
    if options.kind == "path":
        return path(whiten_path(solution, local_values))
    return _output(solution, local_values, options), solution.power_squared


def _by_hand(
    problem: LocalProblem, saved: Saved, grads: Tensors, options: SolveOptions, learned: list[Tensor], needs: Sequence[bool]
) -> list[Tensor | None]:
    members = problem.members(options)

    def work(chunk: slice) -> CellGradients:
        own, (grad_mean, grad_power) = Saved(*(part[chunk] for part in saved)), (grad[chunk] for grad in grads)
        with torch.no_grad():
            return gradients(problem.chunk(chunk), own, grad_mean, grad_power, options, learned)

    totals = [torch.zeros_like(tensor) if need else None for tensor, need in zip(problem[:4], needs, strict=False)]
    for_query, for_centers, for_values, for_ridge = totals
    profile: list[Tensor | None] = [None] * len(learned)
    chunks = _chunks(problem, options.bordered)
    # Only this thread adds, and in order: the sums do not depend on which worker finished first.
    for chunk, found in zip(chunks, map_in_order(work, chunks, members.device), strict=True):
        if for_query is not None:
            for_query[chunk] = found.query
        if for_centers is not None:
            for_centers.index_add_(0, problem.indices[chunk].flatten(), found.members.flatten(0, 1))
        if for_values is not None:
            for_values.index_add_(0, members[chunk].flatten(), found.values.flatten(0, 1))
        if for_ridge is not None:
            target = for_ridge if for_ridge.ndim == 0 else for_ridge[chunk]
            target += found.ridge.sum_to_size(target.shape)
        profile = [_add(total, part) for total, part in zip(profile, found.profile, strict=True)]
    return [*totals, *profile]


def _by_autograd(
    problem: LocalProblem, good: Tensor, grads: Tensors, options: SolveOptions, learned: list[Tensor], needs: Sequence[bool]
) -> list[Tensor | None]:
    """By `torch.func.vjp` of the plain formula: each input is one of its own, even where two are one tensor, or where one
    was computed from another; and what comes out has derivatives again.
    """
    inputs = (*problem[:4], *learned)
    totals: list[Tensor | None] = [None] * len(inputs)
    requested = [i for i, need in enumerate(needs) if need]
    sound = good if good.ndim == 1 else good.any(-1)

    for chunk in _chunks(problem, options.bordered):

        def outputs(*some: Tensor, chunk: slice = chunk) -> tuple[Tensor, Tensor]:
            given = list(inputs)
            for i, tensor in zip(requested, some, strict=True):
                given[i] = tensor
            query, centers, values, ridge, *tensors = given
            swap = {id(old): new for old, new in zip(learned, tensors, strict=True)}
            bound = replace(options, kernel=with_tensors(options.kernel, swap))
            return plain_solve(
                LocalProblem(query, centers, values, ridge, problem.indices).chunk(chunk), bound, sound[chunk]
            )

        _, pull = torch.func.vjp(outputs, *(inputs[i] for i in requested))  # type: ignore[misc]
        for i, part in zip(requested, pull(tuple(grad[chunk] for grad in grads)), strict=True):
            totals[i] = _add(totals[i], part)
    return totals


def _add(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return part if total is None else total
    return total + part


def _chunks(problem: LocalProblem, bordered: bool) -> list[slice]:
    (count, neighbors), features, outputs = problem.indices.shape, problem.centers.shape[1], problem.values.shape[1]
    elements = neighbors * (2 * features + (7 if bordered else 4) * neighbors + 3 * outputs)
    size = rows_per_chunk(elements * problem.query.element_size(), chunk_bytes(problem.query.device))
    if problem.query.device.type == "cpu":  # a share for each worker, even where one chunk would fit
        size = min(size, max(SMALLEST_CHUNK, -(-count // torch.get_num_threads())))
    return ranges(count, size)
