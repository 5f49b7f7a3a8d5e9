r"""Local and dense problems inside `torch.func`, `torch.compile`, `torch.export`, and on fake or meta tensors.

Inside `torch.func` and in forward mode every step has to be one that torch can differentiate and batch: the plain formulas,
in float64. Only how far the ridge has to be raised is read off the numbers, by a function without derivative.

Inside `torch.compile` and `torch.export` a problem is one operator, `torchkrr::local_solve` or `torchkrr::dense_solve`, and
its gradient another. They take embedded points in float64, numbers and names, so that an exported program runs wherever the
library is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .._tensors import WithoutDerivative, as_double, working_dtype
from ..kernels.base import with_profile
from ..kernels.names import kernel_from_name, name_of_kernel
from . import dense, local
from .cells import LocalProblem
from .dense import DenseKind
from .options import Kind, SolveOptions

# Inside torch.func.


def transformed_local(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, options: SolveOptions, kind: Kind
) -> tuple[Tensor, Tensor]:
    """As `local.solve_local`, by steps that `torch.func` can follow."""
    options = options.but(kind=kind, precision=torch.finfo(values.dtype).eps)
    dtype = working_dtype(values.dtype)
    given = LocalProblem(query, centers, values, as_double(options.ridge, query.device), indices)
    problem = local.embed(given, options, torch.float64)
    if len(query):
        fixed = (problem.query, problem.centers, problem.ridge, *options.kernel.profile_tensors().values())
        raised = _RaisedLocal.apply(indices, options.but(ridge=0.0), *(tensor.detach() for tensor in fixed))
        problem = problem._replace(ridge=torch.maximum(problem.ridge, raised))
    first, power_squared = local.plain_solve(problem, options)
    return first.to(dtype), power_squared.to(dtype)


def transformed_dense(kind: DenseKind, query: Tensor, centers: Tensor, values: Tensor, options: SolveOptions) -> Tensor:
    """As `dense.solve_dense`, by steps that `torch.func` can follow; all queries of a problem have one ridge."""
    kernel = options.kernel
    points = kernel.embed(query.double()), kernel.embed(centers.double())
    options = options.but(precision=torch.finfo(values.dtype).eps)
    problem = dense.DenseProblem(*points, values.double(), as_double(options.ridge, query.device), options)
    if problem.query.numel():
        fixed = (tensor.detach() for tensor in (*problem[:4], *kernel.profile_tensors().values()))
        raised = _RaisedDense.apply(options.but(ridge=0.0), kind, *fixed)
        problem = problem._replace(ridge=torch.maximum(problem.ridge, raised))
    return dense.EVALUATE[kind](problem).result.to(working_dtype(values.dtype))


class _RaisedLocal(WithoutDerivative):
    """The ridge that each cell needs in float64, `(Q, 1)`; zero where it is resolved as it is."""

    @staticmethod
    def forward(
        indices: Tensor, options: SolveOptions, query: Tensor, centers: Tensor, ridge: Tensor, *tensors: Tensor
    ) -> Tensor:
        problem = LocalProblem(query, centers, centers[:, :0], ridge, indices)
        return local.raised_ridge(problem, _bound(options, tensors))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], indices: Tensor, options: SolveOptions, *rest: Tensor) -> Any:
        index_dim, _, *dims = in_dims
        every = torch.arange(info.batch_size, device=indices.device).view(-1, 1, 1)
        indices = _front(indices, index_dim, info.batch_size)
        query, centers, ridge, *tensors = (_front(x, at, info.batch_size) for x, at in zip(rest, dims, strict=True))
        if any(at is not None for at in dims[3:]):  # a kernel for each problem
            each = zip(indices, query, centers, ridge, *tensors, strict=True)
            return torch.stack([_RaisedLocal.apply(rows, options, *others) for rows, *others in each]), 0
        if ridge.ndim == 1:  # one number for each problem
            ridge = ridge.view(-1, 1, 1).expand(-1, query.shape[1], 1)
        # All problems as one, with the centers of all.
        rows = (indices + every * centers.shape[1]).flatten(0, 1)
        flat = query.flatten(0, 1), centers.flatten(0, 1), ridge.flatten(0, 1)
        return _RaisedLocal.apply(rows, options, *flat, *rest[3:]).view(info.batch_size, -1, 1), 0


class _RaisedDense(WithoutDerivative):
    """The ridge that each problem needs in float64, `(*, 1)`; zero where it is resolved as it is."""

    @staticmethod
    def forward(options: SolveOptions, kind: DenseKind, *tensors: Tensor) -> Tensor:
        query, centers, values, ridge, *others = tensors
        return dense.raised_ridge(kind, dense.DenseProblem(query, centers, values, ridge, _bound(options, others)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], options: SolveOptions, kind: DenseKind, *rest: Tensor) -> Any:
        dims = in_dims[2:]
        if any(at is not None for at in dims[4:]):
            each = zip(*(_front(x, at, info.batch_size) for x, at in zip(rest, dims, strict=True)), strict=True)
            return torch.stack([_RaisedDense.apply(options, kind, *one) for one in each]), 0
        most = max(x.ndim - (at is not None) for x, at in zip(rest[:3], dims[:3], strict=True))
        fronts = [
            x if at is None else _unsqueezed(x.movedim(at, 0), most if i < 3 else most - 1)
            for i, (x, at) in enumerate(zip(rest[:4], dims[:4], strict=True))
        ]
        floor = _RaisedDense.apply(options, kind, *fronts, *rest[4:])
        return floor.expand(info.batch_size, *floor.shape[1:]), 0


def _bound(options: SolveOptions, tensors: Sequence[Tensor]) -> SolveOptions:
    """With the kernel's profile computing with the given tensors: its own may belong to an outer transform."""
    return options.but(kernel=with_profile(options.kernel, tuple(options.kernel.profile_tensors()), tensors))


def _front(tensor: Tensor, at: int | None, batch: int) -> Tensor:
    return tensor.expand(batch, *tensor.shape) if at is None else tensor.movedim(at, 0)


def _unsqueezed(tensor: Tensor, most: int) -> Tensor:
    """With dimensions of size one after the first, up to `most` without it, so that it broadcasts."""
    return tensor.view(len(tensor), *(1,) * (most - tensor.ndim + 1), *tensor.shape[1:])


# Inside torch.compile and torch.export.


def symbolic_local(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, options: SolveOptions, kind: Kind
) -> tuple[Tensor, Tensor]:
    """As `local.solve_local`, as one operator."""
    dtype, (inputs, text) = working_dtype(values.dtype), _described(query, centers, values, options)
    first, power_squared = torch.ops.torchkrr.local_solve(inputs, indices, text, kind)
    return first.to(dtype), power_squared.to(dtype)


def symbolic_dense(kind: DenseKind, query: Tensor, centers: Tensor, values: Tensor, options: SolveOptions) -> Tensor:
    """As `dense.solve_dense`, as one operator."""
    inputs, text = _described(query, centers, values, options)
    return torch.ops.torchkrr.dense_solve(inputs, text, kind)  # type: ignore[no-any-return]


def _described(query: Tensor, centers: Tensor, values: Tensor, options: SolveOptions) -> tuple[list[Tensor], str]:
    """All tensors of a problem, points embedded in float64, and all the rest of it as one text."""
    kernel = options.kernel
    text = f"{name_of_kernel(kernel)};{options.trend};{options.fade};{options.normalize};{options.on_singular}"
    ridge = as_double(options.ridge, query.device)
    points = kernel.embed(query.double()), kernel.embed(centers.double())
    return [*points, values.to(working_dtype(values.dtype)), ridge, *kernel.profile_tensors().values()], text


def _run(inputs: Sequence[Tensor], indices: Tensor | None, text: str, kind: Any) -> tuple[Tensor, ...]:
    query, centers, values, ridge, *tensors = inputs
    name, *words = text.split(";")
    trend, fade, normalize, on_singular = (None if word == "None" else word for word in words)
    degree = int(trend) if trend is not None and trend.isdigit() else trend
    choices: dict[str, Any] = {"trend": degree, "fade": fade == "True", "normalize": normalize, "on_singular": on_singular}
    options = SolveOptions(kernel_from_name(name, tensors), ridge, **choices)
    if indices is None:
        return (dense.solve_dense(kind, query, centers, values, options),)
    embedded = query.to(values.dtype), centers.to(values.dtype)
    return local.solve_local(query, centers, values, indices, options, kind, embedded=embedded)


@torch.library.custom_op("torchkrr::local_solve", mutates_args=())
def _local_op(inputs: list[Tensor], indices: Tensor, text: str, kind: str) -> tuple[Tensor, Tensor]:
    first, power_squared = map(_fresh, _run(inputs, indices, text, kind))
    return first, power_squared


@_local_op.register_fake
def _(inputs: list[Tensor], indices: Tensor, text: str, kind: str) -> tuple[Tensor, Tensor]:
    values, (count, columns) = inputs[2], indices.shape
    outputs, steps = values.shape[1], (columns,) if kind == "path" else ()
    shape = (columns,) if kind == "weights" else (*steps, outputs)
    return values.new_empty(count, *shape), values.new_empty(count, *steps)


@torch.library.custom_op("torchkrr::dense_solve", mutates_args=())
def _dense_op(inputs: list[Tensor], text: str, kind: str) -> Tensor:
    return _fresh(_run(inputs, None, text, kind)[0])


@_dense_op.register_fake
def _(inputs: list[Tensor], text: str, kind: str) -> Tensor:
    query, centers, values, *_ = inputs
    leading = torch.broadcast_shapes(query.shape[:-2], centers.shape[:-2], values.shape[:-2])
    shapes = {
        "mean": (query.shape[-2], values.shape[-1]),
        "weights": (query.shape[-2], centers.shape[-2]),
        "power": (query.shape[-2],),
        "leave_one_out": values.shape[-2:],
        "norm": values.shape[-1:],
    }
    return values.new_empty(*leading, *shapes[kind])


@torch.library.custom_op("torchkrr::solve_gradient", mutates_args=())
def _gradient_op(grads: list[Tensor], inputs: list[Tensor], indices: Tensor | None, text: str, kind: str) -> list[Tensor]:
    def work() -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        # Contiguous, so that the result does not depend on how a gradient happens to lie in memory.
        pairs = zip(_run(leaves, indices, text, kind), [grad.contiguous() for grad in grads], strict=True)
        outputs, arriving = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
        parts = torch.autograd.grad(outputs, leaves, arriving, allow_unused=True)
        return [torch.zeros_like(leaf) if part is None else _fresh(part) for leaf, part in zip(inputs, parts, strict=True)]

    return _autograd_thread().submit(work).result()


@_gradient_op.register_fake
def _(grads: list[Tensor], inputs: list[Tensor], indices: Tensor | None, text: str, kind: str) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in inputs]


@functools.cache
def _autograd_thread() -> ThreadPoolExecutor:
    # An operator runs below autograd, and so does all that it calls; a thread of its own does not.
    return ThreadPoolExecutor(1, thread_name_prefix="torchkrr-gradient")


def _fresh(result: Tensor) -> Tensor:
    """The outputs of an operator must be no views."""
    return result.contiguous() if result._base is None else result.clone(memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, *indices, ctx.text, ctx.kind = inputs
    ctx.has_indices = bool(indices)
    ctx.save_for_backward(*indices, *tensors)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    indices = saved.pop(0) if ctx.has_indices else None
    found = torch.ops.torchkrr.solve_gradient(list(grads), saved, indices, ctx.text, ctx.kind)
    return found, *[None] * (2 + ctx.has_indices)


_local_op.register_autograd(_backward, setup_context=_setup_context)
_dense_op.register_autograd(_backward, setup_context=_setup_context)
