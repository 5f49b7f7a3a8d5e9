"""Local solves over many queries: backends, chunks, threads and autograd.

The forward pass keeps vectors per query, never an M x M matrix. First derivatives come from `backward`, or from its twin in
`fused`; derivatives of those, and of weights and paths, from running the plain formula of `solve` again under autograd,
chunk by chunk.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._chunking import chunk_bytes, collect, map_in_order, ranges, rows_per_chunk
from ..distances import needs_gradient
from . import fused
from .backward import Arriving, CellGradients, Saved, gradients, keep
from .cells import CellOptions
from .factor import is_resolved
from .solve import Solution, adjoint, path, predict, solve

Kind = Literal["mean", "weights", "path", "coefficients"]
SMALLEST_CHUNK = 8


class LocalResult(NamedTuple):
    first: Tensor  # mean (Q, C), weights (Q, M), path of means (Q, M, C) or coefficients (Q, M + 1, C)
    power_squared: Tensor  # (Q,), or (Q, M) for a path; not clamped
    resolved: Tensor  # (Q,) bool


def local_solve(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, ridge: Tensor, options: CellOptions, kind: Kind
) -> LocalResult:
    """Solve every cell in the dtype of its inputs; cells that are not `resolved` hold no usable numbers.

    Shape:
        - query: `(Q, E)`, centers: `(N, E)`, both embedded; values: `(N, C)`; indices: `(Q, M)`
        - ridge: `()`, `(Q, 1)` or `(Q, M)`
    """
    learned = options.kernel.learned_in_profile()
    watched = needs_gradient(query, centers, values, ridge, *learned)
    is_fused = fused.chosen((query, centers, values, ridge), options, learned)
    options = options._replace(backend="fused" if is_fused else "torch")
    run = _LocalSolve.apply if watched else _LocalSolve.forward
    first, power_squared, resolved, *_ = run(query, centers, values, ridge, indices, options, kind, watched, *learned)
    return LocalResult(first, power_squared, resolved)


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
            return fused.forward(query, centers, values, ridge, indices, options, kind, watched)

        def work(chunk: slice) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return _evaluate(query[chunk], centers, values, _rows(ridge, chunk), indices[chunk], options, kind, watched)

        chunks = _chunks(query, centers, values, indices)
        return collect(work, chunks, query.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        query, centers, values, ridge, indices, ctx.options, ctx.kind, _, *learned = inputs
        _, _, resolved, *saved = output
        ctx.mark_non_differentiable(resolved, *saved)
        ctx.save_for_backward(query, centers, values, ridge, indices, resolved, *saved, *learned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, centers, values, ridge, indices, resolved, inner, adjoint, multiples, gap, *learned = ctx.saved_tensors
        inputs = (query, centers, values, ridge)
        arriving = Arriving(grads[0], grads[1])
        if ctx.kind == "mean" and not torch.is_grad_enabled():
            if ctx.options.backend == "fused":
                needs = ctx.needs_input_grad[:4]
                found = fused.gradients(inputs, indices, inner, adjoint, *arriving, ctx.options, needs)
            else:
                saved = Saved(inner, adjoint, multiples, gap)
                found = _by_hand(inputs, indices, saved, arriving, ctx.options, learned, ctx.needs_input_grad)
        else:
            found = _by_autograd(inputs, indices, resolved, arriving, ctx.options, ctx.kind, learned, ctx.needs_input_grad)
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
    resolved: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The two outputs of `kind`, which cells are resolved, and what the backward pass needs (or empty tensors)."""
    nothing = [query.new_empty(len(query), 0) for _ in Saved._fields]
    if kind == "path":
        return *path(query, centers, values[indices], indices, ridge, options, resolved=resolved), *nothing
    solution = solve(query, centers, indices, ridge, options, resolved=resolved)
    if kind == "weights":
        weights = pad(solution.weights, (0, 1)) if options.fade else solution.weights
        return weights, solution.power_squared, solution.resolved, *nothing
    local_values = values[_members(indices, options)]  # (q, M, C)
    if kind == "coefficients":
        # They serve queries not yet known, so that a cell has to be resolved for weights of any plausible norm.
        trusted = is_resolved(solution.factor, solution.inner.new_tensor(indices.shape[1]).sqrt())
        return _coefficients(solution, local_values), solution.power_squared, solution.resolved & trusted, *nothing
    mean = predict(solution.weights, local_values)
    saved = keep(solution, local_values) if watched else nothing
    return mean, solution.power_squared, solution.resolved, *saved


def _coefficients(solution: Solution, local_values: Tensor) -> Tensor:
    r"""$\alpha = A^{-1}(y - m)$ and, below it, the constant $m$ of the trend (0 without), `(q, M + 1, C)`."""
    solved, constant = adjoint(solution, local_values)
    if solution.trend is None:
        constant = solved.new_zeros(len(solved), solved.shape[-1])
    return torch.cat((solved, constant.unsqueeze(-2)), dim=-2)


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
    resolved: Tensor,
    arriving: Arriving,
    options: CellOptions,
    kind: Kind,
    learned: list[Tensor],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    create_graph = torch.is_grad_enabled()
    totals: list[Tensor | None] = [None] * (len(inputs) + len(learned))
    wanted = [i for i, need in enumerate((*needs[:4], *needs[8:])) if need]
    for chunk in _chunks(inputs[0], inputs[1], inputs[2], indices):
        with torch.enable_grad():
            # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
            query, centers, values, ridge = (
                (tensor if create_graph else tensor.detach().requires_grad_()).view_as(tensor) for tensor in inputs
            )
            outputs = _evaluate(
                query[chunk], centers, values, _rows(ridge, chunk), indices[chunk], options, kind, False, resolved[chunk]
            )[:2]
            sources = [(query, centers, values, ridge, *learned)[i] for i in wanted]
        # The power function does not depend on the values, and has no graph if only these are asked for.
        reached = [(output, grad[chunk]) for output, grad in zip(outputs, arriving, strict=True) if output.requires_grad]
        parts = torch.autograd.grad(
            [output for output, _ in reached],
            sources,
            [grad for _, grad in reached],
            create_graph=create_graph,
            allow_unused=True,
        )
        for i, part in zip(wanted, parts, strict=True):
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
