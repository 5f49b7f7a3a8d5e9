"""Local problems: the one entrance, and the way of each cell through precisions, backends, chunks and autograd.

`solve_local` embeds what is used, solves every cell in the dtype of the data, solves those that cannot be trusted there
again in float64, and those that are singular even there with a larger ridge (`trust`).

The forward pass keeps vectors per query, never an M x M matrix. First derivatives come from `backward`, or from its twin in
`compiled`; derivatives of those, and of weights and paths, from running the plain formula of `solve` again under autograd,
chunk by chunk.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import check_finite
from .._chunking import chunk_bytes, collect, map_in_order, ranges, rows_per_chunk
from .._state import with_tensors
from .._tensors import as_double, needs_gradient, working_dtype
from ..errors import SolveError
from . import compiled, trust
from .backward import Arriving, CellGradients, Saved, gradients, keep
from .cells import CellOptions
from .options import Kind, SolveOptions
from .solve import Solution, adjoint, path, path_resolved, predict, resolved, solve, whiten_path

SMALLEST_CHUNK = 8


class LocalProblem(NamedTuple):
    """Queries with their neighbors, as given by the user."""

    query: Tensor  # (Q, D)
    centers: Tensor  # (N, D)
    values: Tensor  # (N, C)
    indices: Tensor  # (Q, M), or (Q, M + 1) with fade
    ridge: Tensor  # (), (N,) or (Q, M)

    def used_rows(self) -> LocalProblem:
        """With only the centers that `indices` names, where that may save work: min(N, Q M) rows are embedded."""
        if self.indices.numel() >= len(self.centers):
            return self
        used, positions = torch.unique(self.indices, return_inverse=True)
        ridge = self.ridge.index_select(0, used) if self.ridge.ndim == 1 else self.ridge
        centers, values = self.centers.index_select(0, used), self.values.index_select(0, used)
        return LocalProblem(self.query, centers, values, positions, ridge)

    def rows(self, which: Tensor) -> LocalProblem:
        """Some of the queries."""
        ridge = self.ridge.index_select(0, which) if self.ridge.ndim == 2 else self.ridge
        query, indices = self.query.index_select(0, which), self.indices.index_select(0, which)
        return self._replace(query=query, indices=indices, ridge=ridge).used_rows()

    def double(self) -> LocalProblem:
        return self._replace(query=self.query.double(), centers=self.centers.double(), values=self.values.double())

    def cell_ridge(self, fade: bool) -> Tensor:
        """`()` or `(Q, M)`."""
        if self.ridge.ndim != 1:
            return self.ridge
        members = self.indices[:, :-1] if fade else self.indices
        return self.ridge.index_select(0, members.flatten()).view(members.shape)


class LocalResult(NamedTuple):
    first: Tensor  # mean (Q, C), weights (Q, M), path of means (Q, M, C) or coefficients (Q, M + 1, C)
    power_squared: Tensor  # (Q,), or (Q, M) for a path; not clamped
    resolved: Tensor  # (Q,) bool, or (Q, M) for a path

    def unresolved_rows(self) -> Tensor:
        good = self.resolved if self.resolved.ndim == 1 else self.resolved.all(-1)
        return (~good).nonzero().squeeze(-1)

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
    dtype = working_dtype(values.dtype)
    problem = LocalProblem(query, centers, values, indices, as_double(options.ridge, query.device))
    cells = cell_options(options)._replace(value_scale=value_scale, least_norm=least_norm)
    if query.shape[0] == 0:  # nothing to judge, and no row to gain by being clever
        points = cells.kernel.embed(query.to(dtype)), cells.kernel.embed(centers.to(dtype))
        return plain_solve(*points, values.to(dtype), problem.cell_ridge(options.fade).to(dtype), indices, cells, kind)
    scale = None
    if embedded is None:
        tensors = (query, centers, values, problem.ridge)
        scale = compiled.scale_for(tensors, cells) if query.dtype == dtype else None
        if scale is None:
            problem = problem.used_rows()
            _check_centers(problem.centers, centers)
            embedded = cells.kernel.embed(problem.query.to(dtype)), cells.kernel.embed(problem.centers.to(dtype))
        else:
            embedded = query, centers
    result = solve_embedded(
        *embedded,
        problem.values.to(dtype),
        problem.indices,
        problem.cell_ridge(options.fade).to(dtype),
        cells._replace(cache=cache, scale=scale),  # cells solved again are numbered anew, and so without a cache
        kind,
    )
    if bool(result.resolved.all()):
        _check_finite(result.first, centers, values)
        return result.first, result.power_squared
    rows = result.unresolved_rows()
    given = centers, values
    rest = problem.rows(rows)
    if scale is not None:
        _check_centers(rest.centers, centers)  # nobody has looked at them yet
    rest = rest.double()._replace(ridge=rest.cell_ridge(options.fade))
    query, centers = cells.kernel.embed(rest.query), cells.kernel.embed(rest.centers)
    wide = rest._replace(query=query, centers=centers)
    if dtype == torch.float64:
        again = LocalResult(*(part.index_select(0, rows) for part in result))
    else:
        trust.solved_again(len(rows))
        again = solve_embedded(*wide, cells, kind)
    if not bool(again.resolved.all()):
        again, _ = _raise_ridge(wide, again, cells, kind, options.on_singular, rows if names is None else names[rows])
    result = result.merged(rows, again)
    _check_finite(result.first, *given)
    return result.first, result.power_squared


def cell_options(options: SolveOptions) -> CellOptions:
    trend, normalize = options.trend is not None, options.normalize is not None
    return CellOptions(options.kernel, trend, options.fade, normalize, options.backend)


def raised_ridge(problem: LocalProblem, options: SolveOptions, kind: Kind) -> Tensor:
    """The least ridge that resolves each embedded float64 cell, `(Q, 1)`; zero if it is resolved as it is.

    Not of each step of a path, but of all of them.
    """
    cells = cell_options(options)
    with torch.no_grad():
        result = solve_embedded(*problem, cells, kind)
        if bool(result.resolved.all()):
            return problem.query.new_zeros(len(problem.query), 1)
        every = torch.arange(len(problem.query), device=problem.query.device)
        return _raise_ridge(problem, result, cells, kind, options.on_singular, every)[1]


def _raise_ridge(
    problem: LocalProblem, result: LocalResult, cells: CellOptions, kind: Kind, on_singular: str, names: Tensor
) -> tuple[LocalResult, Tensor]:
    """Embedded float64 cells that are not resolved, with the smallest ridge of a ladder that resolves them, and which."""
    singular, raised = result.unresolved_rows(), problem.query.new_zeros(len(problem.query), 1)
    if on_singular == "raise":
        raise _singular_error(problem.rows(singular), names[singular])
    for rung in trust.ladder(problem.query.dtype, float(problem.ridge.detach().min())):
        rows = result.unresolved_rows()
        raised[rows] = rung
        some = problem.rows(rows)
        result = result.merged(rows, solve_embedded(*some._replace(ridge=some.ridge.clamp_min(rung)), cells, kind))
        if bool(result.resolved.all()):
            trust.warn_raised(len(singular), rung)
            return result, raised
    raise trust.overflow_error(len(result.unresolved_rows()))


def _check_finite(result: Tensor, centers: Tensor, values: Tensor) -> None:
    # They are looked at only when the result is not finite: a pass over all centers on every call would not be free.
    if not math.isfinite(result.detach().sum().item()):
        check_finite("centers", centers)
        check_finite("values", values)


def _check_centers(used: Tensor, given: Tensor) -> None:
    if not math.isfinite(used.detach().sum().item()):
        check_finite("centers", given)


def _singular_error(problem: LocalProblem, names: Tensor) -> SolveError:
    local = problem.centers[problem.indices[0]].detach()
    closest = torch.pdist(local).min().item() if len(local) > 1 else 0.0
    return trust.singular_error(
        f"{len(names)} {'neighborhood has' if len(names) == 1 else 'neighborhoods have'} a Gram matrix",
        f"M={problem.indices.shape[1]}",
        problem.ridge,
        f"The first is query {int(names[0])}; its two closest centers are {closest:.3g} apart in the embedded space.",
    )


def solve_embedded(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, ridge: Tensor, options: CellOptions, kind: Kind
) -> LocalResult:
    """Solve every cell in the dtype of its inputs; cells that are not `resolved` hold no usable numbers.

    Shape:
        - query: `(Q, E)`, centers: `(N, E)`, both embedded; values: `(N, C)`; indices: `(Q, M)`
        - ridge: `()`, `(Q, 1)` or `(Q, M)`
    """
    learned = options.kernel.learned_in_profile()
    watched = needs_gradient(query, centers, values, ridge, *learned)
    is_fused = compiled.use_compiled((query, centers, values, ridge), options, learned)
    limits = trust.limits(query.dtype, kind, watched=watched)
    options = options._replace(backend="fused" if is_fused else "torch", limits=limits)
    run = _LocalSolve.apply if watched else _LocalSolve.forward
    first, power_squared, good, *_ = run(query, centers, values, ridge, indices, options, kind, watched, *learned)
    return LocalResult(first, power_squared, good)


class _LocalSolve(torch.autograd.Function):
    @staticmethod
    def forward(
        query: Tensor,
        centers: Tensor,
        values: Tensor,
        ridge: Tensor,
        indices: Tensor,
        options: CellOptions,
        kind: Kind,
        watched: bool,
        *learned: Tensor,
    ) -> tuple[Tensor, ...]:
        if options.backend == "fused":
            return compiled.local_forward(query, centers, values, ridge, indices, options, kind, watched)

        def work(chunk: slice) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return _evaluate(query[chunk], centers, values, _rows(ridge, chunk), indices[chunk], options, kind, watched)

        chunks = _chunks(query, centers, values, indices)
        return collect(work, chunks, query.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        query, centers, values, ridge, indices, ctx.options, ctx.kind, _, *learned = inputs
        _, _, good, *saved = output
        ctx.mark_non_differentiable(good, *saved)
        ctx.save_for_backward(query, centers, values, ridge, indices, good, *saved, *learned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, centers, values, ridge, indices, good, inner, adjoint, multiples, gap, *learned = ctx.saved_tensors
        inputs = (query, centers, values, ridge)
        arriving = Arriving(grads[0], grads[1])
        if ctx.kind == "mean" and not torch.is_grad_enabled():
            if ctx.options.backend == "fused":
                needs = ctx.needs_input_grad[:4]
                found = compiled.local_gradients(inputs, indices, inner, adjoint, *arriving, ctx.options, needs)
            else:
                saved = Saved(inner, adjoint, multiples, gap)
                found = _by_hand(inputs, indices, saved, arriving, ctx.options, learned, ctx.needs_input_grad)
        else:
            found = _by_autograd(inputs, indices, good, arriving, ctx.options, ctx.kind, learned, ctx.needs_input_grad)
        return *found[:4], None, None, None, None, *found[4:]


def _evaluate(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    ridge: Tensor,
    indices: Tensor,
    options: CellOptions,
    kind: Kind,
    watched: bool,
) -> tuple[Tensor, ...]:
    """The two outputs of `kind`, which cells are resolved, and what the backward pass needs (or empty tensors)."""
    nothing = [query.new_empty(len(query), 0) for _ in Saved._fields]
    solution = solve(query, centers, indices, ridge, options)
    local_values = values[_members(indices, options)]  # (q, M, C)
    if kind == "path":
        white = whiten_path(solution, local_values)
        good = path_resolved(solution, white, local_values, ridge, options.limits, options.value_scale)
        return *path(white), good, *nothing
    scale, least_norm = options.value_scale, options.least_norm
    good = resolved(solution, local_values, ridge, options.limits, scale=scale, least_norm=least_norm)
    if kind == "mean" and watched:
        saved = keep(solution, local_values, good)
        return predict(solution.weights, local_values), solution.power_squared, good, *saved
    return _output(solution, local_values, options, kind), solution.power_squared, good, *nothing


def _output(solution: Solution, local_values: Tensor, options: CellOptions, kind: Kind) -> Tensor:
    if kind == "weights":
        return pad(solution.weights, (0, 1)) if options.fade else solution.weights
    if kind == "coefficients":
        return _coefficients(solution, local_values)
    return predict(solution.weights, local_values)


def _coefficients(solution: Solution, local_values: Tensor) -> Tensor:
    r"""$\alpha = A^{-1}(y - m)$ and, below it, the constant $m$ of the trend (0 without), `(q, M + 1, C)`."""
    solved, constant = adjoint(solution, local_values)
    if solution.trend is None:
        constant = solved.new_zeros(len(solved), solved.shape[-1])
    return torch.cat((solved, constant.unsqueeze(-2)), dim=-2)


def plain_solve(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    ridge: Tensor,
    indices: Tensor,
    options: CellOptions,
    kind: Kind,
    sound: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The two outputs of `kind` by the plain formulas, in steps that autograd and `torch.func` can follow."""
    options = options._replace(differentiable=True)
    solution = solve(query, centers, indices, ridge, options, sound=sound)
    local_values = values[_members(indices, options)]
    if kind == "path":
        return path(whiten_path(solution, local_values))
    return _output(solution, local_values, options, kind), solution.power_squared


def _by_hand(
    inputs: tuple[Tensor, ...],
    indices: Tensor,
    saved: Saved,
    arriving: Arriving,
    options: CellOptions,
    learned: list[Tensor],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    query, centers, values, ridge = inputs
    members = _members(indices, options)

    def work(chunk: slice) -> CellGradients:
        with torch.no_grad():
            return gradients(
                query[chunk],
                centers,
                values[members[chunk]],
                indices[chunk],
                _rows(ridge, chunk),
                Saved(*(part[chunk] for part in saved)),
                Arriving(*(grad[chunk] for grad in arriving)),
                options,
                learned,
            )

    totals: list[Tensor | None] = [torch.zeros_like(t) if need else None for t, need in zip(inputs, needs, strict=False)]
    profile: list[Tensor | None] = [None] * len(learned)
    chunks = _chunks(query, centers, values, indices)
    # Only this thread adds, and in order: the sums do not depend on which worker finished first.
    for chunk, found in zip(chunks, map_in_order(work, chunks, query.device), strict=True):
        for_query, for_centers, for_values, for_ridge = totals
        if for_query is not None:
            for_query[chunk] = found.query
        if for_centers is not None:
            for_centers.index_add_(0, indices[chunk].flatten(), found.members.flatten(0, 1))
        if for_values is not None:
            for_values.index_add_(0, members[chunk].flatten(), found.values.flatten(0, 1))
        if for_ridge is not None:
            target = for_ridge if for_ridge.ndim == 0 else for_ridge[chunk]
            target += found.ridge.sum_to_size(target.shape)
        profile = [_add(total, part) for total, part in zip(profile, found.profile, strict=True)]
    return [*totals, *profile]


def _by_autograd(
    inputs: tuple[Tensor, ...],
    indices: Tensor,
    good: Tensor,
    arriving: Arriving,
    options: CellOptions,
    kind: Kind,
    learned: list[Tensor],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """By `torch.func.vjp` of the plain formula: each input is one of its own, even where two are one tensor, or where one
    was computed from another; and what comes out has derivatives again.
    """
    totals: list[Tensor | None] = [None] * (len(inputs) + len(learned))
    wanted = [i for i, need in enumerate((*needs[:4], *needs[8:])) if need]
    everything = (*inputs, *learned)
    sound = good if good.ndim == 1 else good.any(-1)

    for chunk in _chunks(inputs[0], inputs[1], inputs[2], indices):

        def outputs(*some: Tensor, chunk: slice = chunk) -> tuple[Tensor, Tensor]:
            given = list(everything)
            for i, tensor in zip(wanted, some, strict=True):
                given[i] = tensor
            query, centers, values, ridge, *tensors = given
            swap = {id(old): new for old, new in zip(learned, tensors, strict=True)}
            bound = options._replace(kernel=with_tensors(options.kernel, swap))
            rows = (query[chunk], centers, values, _rows(ridge, chunk), indices[chunk])
            return plain_solve(*rows, bound, kind, sound[chunk])

        _, pull = torch.func.vjp(outputs, *(everything[i] for i in wanted))  # type: ignore[misc]
        for i, part in zip(wanted, pull(tuple(grad[chunk] for grad in arriving)), strict=True):
            totals[i] = _add(totals[i], part)
    return totals


def _add(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return part if total is None else total
    return total + part


def _members(indices: Tensor, options: CellOptions) -> Tensor:
    return indices[:, :-1] if options.fade else indices


def _rows(ridge: Tensor, chunk: slice) -> Tensor:
    return ridge if ridge.ndim == 0 else ridge[chunk]


def _chunks(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor) -> list[slice]:
    (count, neighbors), features, outputs = indices.shape, centers.shape[1], values.shape[1]
    elements = neighbors * (2 * features + 4 * neighbors + 3 * outputs)
    size = rows_per_chunk(elements * query.element_size(), chunk_bytes(query.device))
    if query.device.type == "cpu":  # a share for each worker, even where one chunk would fit
        size = min(size, max(SMALLEST_CHUNK, -(-count // torch.get_num_threads())))
    return ranges(count, size)
