r"""Small dense problems by the compiled library: one call for the predictions, one for their gradient.

With $G$ arriving at the predictions $k^\top\alpha$, $\alpha = A^{-1}y$, and $B = A^{-1}kG$:

$$ \bar y = B,\qquad \bar k = \alpha G^\top,\qquad \bar A = -\tfrac12(B\alpha^\top + \alpha B^\top) . $$

Same formulas and same judgement as `dense`, which does everything else: large problems, leading dimensions, trends, what is
not surely resolved, and second derivatives. Such a problem takes less time than a dozen operations of torch, so whatever can
be left to the library is: the embedding by a fixed lengthscale, and whether all numbers are finite.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from .. import native
from .._checks import check_finite
from .._tensors import is_plain, needs_gradient
from ..kernels import Kernel
from ..native import Task, plain
from . import trust
from .dense import DenseProblem
from .dense import mean as by_torch
from .fused import PROFILES, fixed_scale, shape_in_memory

# Up to these sizes one core, in its cache, is faster than torch with its blocked products on several.
MOST_CENTERS, MOST_FEATURES = 192, 64
MOST_WORK = 1 << 23  # multiplications of the predictions
NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
SIZES = (
    f"it takes at most {MOST_CENTERS} centers of at most {MOST_FEATURES} features, and {MOST_WORK} products of queries, "
    "centers and features or outputs"
)


class _Problem:
    """What the library is told beside the three inputs. A task holds addresses, so what lies there has to live with it."""

    __slots__ = ("kernel", "number", "resolved", "ridge", "scale", "task")

    def __init__(
        self, values: Tensor, kernel: Kernel, ridge: float, scale: Tensor | None, result: Tensor, watched: bool
    ) -> None:
        self.kernel, self.ridge = kernel, ridge
        self.scale = scale  # logarithms of what the library divides by; without, the points are embedded
        self.number, self.resolved = NUMBERS[values.dtype](ridge), ctypes.c_uint8()
        profile, parameters = PROFILES[type(kernel)]
        self.task = Task(
            ridge=ctypes.addressof(self.number),
            mean=result.data_ptr(),
            resolved=ctypes.addressof(self.resolved),
            cells=result.shape[0],
            neighbors=values.shape[0],
            outputs=values.shape[1],
            profile=profile,
            shape=parameters(kernel),
            limits=tuple(trust.limits(values.dtype, "mean", watched=watched)),
            system_limit=trust.TRUSTED.system,
        )
        if scale is not None:
            self.task.log_scales, self.task.scale_step = scale.data_ptr(), int(scale.numel() > 1)


def _call(name: str, task: Task, query: Tensor, centers: Tensor, values: Tensor, space: Tensor | None) -> None:
    """Call the library; `space` holds A^-1 y (N, C), then the factor (N, N), if a gradient is asked for."""
    query, centers, values = plain(query), plain(centers), plain(values)  # copies live until the call is over
    task.query, task.centers, task.values = query.data_ptr(), centers.data_ptr(), values.data_ptr()
    task.features = query.shape[1]
    if space is not None:
        task.adjoint = start = space.data_ptr()
        task.factor = start + values.numel() * space.element_size()
    native.call(name, query.dtype, task)


def obstacle(query: Any, centers: Any, values: Any, kernel: Any, ridge: Any, trend: Any) -> str | None:
    """Why this cannot be solved here; `None` if it is small, plain and consistent, so that no other check is needed."""
    if trend is not None:
        return "it has no trend"
    if type(kernel) not in PROFILES:
        return f"it has no profile for {type(kernel).__name__}"
    if type(ridge) not in (float, int) or not 0 <= ridge < math.inf:
        return "it takes a finite, non-negative number as ridge, and no tensor"
    for tensor in (query, centers, values):
        if not isinstance(tensor, Tensor) or tensor.ndim != 2 or not tensor.is_cpu:
            return "it takes tensors on the CPU, without leading dimensions"
    if query.dtype not in NUMBERS or not query.dtype == centers.dtype == values.dtype:
        return "it works in float32 and float64, with all tensors of one dtype"
    (num_queries, features), (num_centers, features_too), (num_values, outputs) = query.shape, centers.shape, values.shape
    if features != features_too or num_centers != num_values or not num_queries or not outputs:
        return "the shapes of query, centers and values do not fit each other"
    work = num_queries * num_centers * (features + outputs)
    if not (0 < num_centers <= MOST_CENTERS and 0 < features <= MOST_FEATURES and work <= MOST_WORK):
        return SIZES
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return "it works neither under autocast nor inside torch.compile"
    if not is_plain(query, centers, values) or not shape_in_memory(kernel):
        return native.NO_MEMORY
    if PROFILES[type(kernel)][1](kernel) and kernel.learned_in_profile():
        return f"it has no gradient for what {type(kernel).__name__} learns in its profile"
    return native.MISSING if native.library() is None else None


def mean(query: Tensor, centers: Tensor, values: Tensor, *, kernel: Kernel, ridge: float) -> Tensor | None:
    """Predictions `(Q, C)` of a problem without `obstacle`.

    `None` if it is not surely resolved, if a number is not finite, or if its embedding is more than numbers.
    """
    scale = fixed_scale(kernel, query.shape[1])
    if scale is None:
        if kernel.input_transform is not None:  # which may clip what is not finite
            check_finite("centers", centers)
            check_finite("query", query)
        query, centers = kernel.embed(query), kernel.embed(centers)
        if not is_plain(query, centers):
            return None
    result = query.new_empty(query.shape[0], values.shape[1])
    watched = needs_gradient(query, centers, values)
    if watched and scale is not None:
        scale = scale.detach().clone()  # the gradient must not see it change
    problem = _Problem(values, kernel, ridge, scale, result, watched)
    space = values.new_empty(values.shape[0], values.shape[1] + values.shape[0]) if watched else None
    _call("dense", problem.task, query, centers, values, space)
    if not problem.resolved.value:
        return None
    return _Mean.apply(query, centers, values, (result, space), problem) if watched else result


class _Mean(torch.autograd.Function):
    """The gradient of predictions that have been made."""

    # With `setup_context` each call would inspect the signature of `forward`, which takes longer than a small problem.
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, centers: Tensor, values: Tensor, found: tuple[Tensor, Tensor], problem: _Problem
    ) -> Tensor:
        result, space = found  # as a tuple: a tensor that comes in and goes out would be a view of itself
        ctx.problem = problem
        ctx.save_for_backward(query, centers, values, space)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, centers, values, space = ctx.saved_tensors  # maybe not where they were
        problem, needs = ctx.problem, ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_by_autograd((query, centers, values), grad, problem, needs[:3]), None, None
        grad, task = plain(grad), Task.from_buffer_copy(problem.task)  # which others may use at the same time
        task.grad_mean = grad.data_ptr()
        found: list[Tensor | None] = [None, None, None]
        # Not `empty_like`: what an input looks like in memory is not what is written.
        if needs[0]:
            found[0] = to_query = query.new_empty(query.shape)
            task.grad_query = to_query.data_ptr()
        if needs[1]:
            found[1] = to_centers = centers.new_empty(centers.shape)
            task.grad_centers = to_centers.data_ptr()
        if needs[2]:
            found[2] = to_values = values.new_empty(values.shape)
            task.grad_values = to_values.data_ptr()
        _call("dense_gradient", task, query, centers, values, space)
        return *found, None, None


def _by_autograd(
    inputs: tuple[Tensor, ...], grad: Tensor, problem: _Problem, needs: tuple[bool, ...]
) -> list[Tensor | None]:
    # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
    query, centers, values = views = [tensor.view_as(tensor) for tensor in inputs]
    if problem.scale is not None:
        lengthscale = problem.scale.exp().to(query.dtype)
        query, centers = query / lengthscale, centers / lengthscale
    ridge = query.new_tensor(problem.ridge)
    dense = DenseProblem(query, centers, values, ridge, problem.kernel, trend=False, limits=trust.Limits())
    result = by_torch(dense).result
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    parts = iter(torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True))
    return [next(parts) if need else None for need in needs]
