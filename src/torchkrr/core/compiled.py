r"""The compiled solver: one neighborhood, or one small dense problem, in cache from gather to prediction.

The library of `native/` does the work; this file chooses and calls it. Formulas, the rule for singular cells, and results up
to rounding are those of `solve`, `backward` and `dense`, which remain the reference and the path for everything else.

For dense problems, with $G$ arriving at the predictions $k^\top\alpha$, $\alpha = A^{-1}y$, and $B = A^{-1}kG$:

$$ \bar y = B,\qquad \bar k = \alpha G^\top,\qquad \bar A = -\tfrac12(B\alpha^\top + \alpha B^\top) . $$

A small dense problem takes less time than a dozen torch operators, so the library also embeds points by a fixed lengthscale
and checks that all numbers are finite.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from .. import native
from .._checks import check_finite
from .._tensors import is_plain, needs_gradient, working_dtype
from ..kernels import (
    Exponential,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Matern32,
    Matern52,
    RationalQuadratic,
    Wendland,
    check_kernel,
)
from ..native import NAMES, Task, plain
from . import trust
from .cells import CellOptions
from .dense import DenseProblem
from .dense import mean as dense_mean_by_torch

# Numbers as in profile.h, and the parameters of the profile.
PROFILES: dict[type[Kernel], tuple[int, Callable[[Any], tuple[float, ...]]]] = {
    Exponential: (0, lambda kernel: ()),
    Matern32: (1, lambda kernel: ()),
    Matern52: (2, lambda kernel: ()),
    Gaussian: (3, lambda kernel: ()),
    RationalQuadratic: (4, lambda kernel: (float(kernel.alpha.detach()),)),
    InverseMultiquadric: (5, lambda kernel: ()),
    Wendland: (6, lambda kernel: (kernel.exponent, kernel.smoothness)),
}
NUMPY_TYPES = {torch.float32: numpy.float32, torch.float64: numpy.float64}
# Floating-point operations, per query, that sharing has to save to be worth its bookkeeping.
WORTHWHILE = 1e5
MIXERS = (-7046029254386353131, -4658895280553007687)  # odd, from the golden ratio and splitmix64
# Up to these sizes one core, in its cache, is faster than torch with its blocked products on several.
MOST_CENTERS, MOST_FEATURES = 192, 64
MOST_WORK = 1 << 23  # multiplications of the predictions
NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
SIZES = (
    f"it takes at most {MOST_CENTERS} centers of at most {MOST_FEATURES} features, and {MOST_WORK} products of queries, "
    "centers and features or outputs"
)


class FactorCache:
    """Factors of the neighborhoods solved last, at most `capacity` of them. A copy starts empty.

    Whoever owns it drops it when centers or kernel change.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._handle: int | None = None
        self._lock = threading.Lock()

    @property
    def handle(self) -> int:
        with self._lock:
            if self._handle is None:
                found = native.library()
                assert found is not None
                self._handle = found.functions.torchkrr_cache_new(ctypes.c_int64(self.capacity))
                if self._handle is None:
                    raise MemoryError("Not enough memory for a cache of factors.")
                weakref.finalize(self, found.functions.torchkrr_cache_free, ctypes.c_void_p(self._handle))
            return self._handle

    @property
    def hits(self) -> int:
        """How many factorizations it has saved."""
        found = native.library()
        if self._handle is None or found is None:
            return 0
        return int(found.functions.torchkrr_cache_hits(ctypes.c_void_p(self._handle)))

    def __reduce__(self) -> tuple[type[FactorCache], tuple[int]]:
        return FactorCache, (self.capacity,)


def local_obstacle(tensors: Sequence[Tensor], options: CellOptions, learned: Sequence[Tensor]) -> str | None:
    """Why these cells cannot be solved here, or `None` if they can."""
    query = tensors[0]
    if query.device.type != "cpu":
        return f"it works on the CPU, and the tensors are on {query.device}"
    if query.dtype not in NAMES:
        return f"it works in float32 and float64, and the tensors are {query.dtype}"
    if type(options.kernel) not in PROFILES:
        return f"it has no profile for {type(options.kernel).__name__}"
    if learned:
        return f"it has no gradient for what {type(options.kernel).__name__} learns in its profile"
    if options.fade or options.normalize:
        return f"it has no {'fade' if options.fade else 'normalize'}"
    if not is_plain(*tensors) or not shape_in_memory(options.kernel):
        return native.NO_MEMORY
    if native.library() is None:
        return native.MISSING
    return None


def shape_in_memory(kernel: Kernel) -> bool:
    """Whether the parameters of the profile are numbers and nothing else; see `in_memory`."""
    return type(kernel) is not RationalQuadratic or is_plain(kernel.log_alpha)


def use_compiled(tensors: Sequence[Tensor], options: CellOptions, learned: Sequence[Tensor]) -> bool:
    """Whether to solve these cells here."""
    if options.backend == "torch":
        return False
    return native.chosen(options.backend, local_obstacle(tensors, options, learned), "solve this")


def fixed_scale(kernel: Kernel, features: int) -> Tensor | None:
    """The logarithms of a fixed lengthscale, if to divide by it is all that `kernel.embed` does."""
    if kernel.input_transform is not None or type(kernel).embed is not Kernel.embed:
        return None
    scale = kernel.log_lengthscale
    fits = scale.numel() == 1 or scale.shape[0] == features
    if not (scale.is_cpu and fits and is_plain(scale)) or needs_gradient(scale):
        return None
    return scale.double().contiguous()


def scale_for(tensors: Sequence[Tensor], options: CellOptions) -> Tensor | None:
    """What these points, not embedded, may be divided by here, neighborhood by neighborhood: the library makes no copy."""
    scale = fixed_scale(options.kernel, tensors[0].shape[1])
    if scale is None or options.backend == "torch" or local_obstacle(tensors, options, options.kernel.learned_in_profile()):
        return None
    return scale.detach().clone()  # the gradient must not see it change


def local_forward(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    ridge: Tensor,
    indices: Tensor,
    options: CellOptions,
    kind: str,
    watched: bool,
) -> tuple[Tensor, ...]:
    """As `local._evaluate`, for all queries at once."""
    (count, neighbors), outputs, trend = indices.shape, values.shape[1], options.trend
    plain = kind in ("mean", "weights") and not watched and ridge.ndim == 0  # all that matters is the factor of a cell
    shared = shared_cells(indices, centers.shape[1]) if plain else None
    new = functools.partial(torch.empty, dtype=query.dtype)
    keeps = kind == "coefficients" or (kind == "mean" and watched)
    steps = (neighbors,) if kind == "path" else ()
    mean = new(count, *steps, outputs) if kind in ("mean", "path") else None
    power_squared = new(count, *steps)
    weights = new(count, neighbors) if kind == "weights" or keeps else new(count, 0)
    adjoint = new(count, neighbors, outputs) if keeps else new(count, 0)
    multiples = new(count, outputs if kind == "coefficients" and trend else 0)
    resolved = torch.empty(count, *steps, dtype=torch.bool)
    _run_local(
        "solve",
        query=query,
        centers=centers,
        values=values,
        ridge=ridge,
        indices=indices,
        options=options,
        shared=shared,
        cache=options.cache if plain else None,
        path=kind == "path",
        outputs={
            "mean": mean,
            "power": power_squared,
            "weights": weights,
            "adjoint": adjoint,
            "multiples": multiples,
            "resolved": resolved,
        },
    )
    nothing = new(count, 0)
    if kind == "coefficients":
        constant = multiples if trend else new(count, outputs).zero_()
        first = torch.cat((adjoint, constant.unsqueeze(-2)), dim=-2)
        return first, power_squared, resolved, nothing, nothing, nothing, nothing
    if kind == "weights":
        first = weights if shared is None else weights.gather(1, shared.ranks)
        return first, power_squared, resolved, nothing, nothing, nothing, nothing
    assert mean is not None
    return mean, power_squared, resolved, weights, adjoint, nothing, nothing


def local_gradients(
    inputs: Sequence[Tensor],
    indices: Tensor,
    inner: Tensor,
    adjoint: Tensor,
    grad_mean: Tensor,
    grad_power: Tensor,
    options: CellOptions,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of `inputs` (query, centers, values, ridge), `None` where not needed."""
    query, centers, values, ridge = inputs
    found = [_zeros(tensor) if need else None for tensor, need in zip(inputs[:3], needs, strict=False)]
    for_ridge = query.new_empty(indices.shape) if needs[3] else None
    _run_local(
        "gradient",
        query=query,
        centers=centers,
        values=values,
        ridge=ridge,
        indices=indices,
        options=options,
        outputs={
            "weights": inner,
            "adjoint": adjoint,
            "grad_mean": grad_mean,
            "grad_power": grad_power,
            **dict(zip(("grad_query", "grad_centers", "grad_values", "grad_ridge"), (*found, for_ridge), strict=True)),
        },
    )
    return [*found, None if for_ridge is None else for_ridge.sum_to_size(ridge.shape)]


def _zeros(like: Tensor) -> Tensor:
    # numpy gets them as zeros from the system, in large pages where it has such; torch would write each of them once more.
    return torch.from_numpy(numpy.zeros(like.shape, NUMPY_TYPES[like.dtype]))


def _run_local(
    name: str,
    *,
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    ridge: Tensor,
    indices: Tensor,
    options: CellOptions,
    outputs: dict[str, Tensor | None],
    shared: SharedCells | None = None,
    cache: FactorCache | None = None,
    path: bool = False,
) -> None:
    profile, parameters = PROFILES[type(options.kernel)]
    if options.value_scale is not None:
        outputs["value_scale"] = options.value_scale.detach().to(query.dtype)
    given = {"query": query, "centers": centers, "values": values, "indices": indices, **outputs}
    if shared is not None:
        indices = shared.cells
        given |= {"indices": indices, "starts": shared.starts, "order": shared.order}
    steps = ridge.detach().resolve_neg().expand(indices.shape)
    tensors = {key: native.plain(tensor) for key, tensor in given.items() if tensor is not None and tensor.numel()}
    task = Task(
        **{key: tensor.data_ptr() for key, tensor in tensors.items()},
        cache=None if cache is None else cache.handle,
        ridge=steps.data_ptr(),
        ridge_cell=steps.stride(0),
        ridge_neighbor=steps.stride(1),
        cells=indices.shape[0],
        neighbors=indices.shape[1],
        features=centers.shape[1],
        outputs=values.shape[1],
        threads=torch.get_num_threads(),
        profile=profile,
        log_scales=None if options.scale is None else options.scale.data_ptr(),
        scale_step=0 if options.scale is None else int(options.scale.numel() > 1),
        trend=options.trend,
        path=path,
        shape=tuple(parameters(options.kernel)),
        limits=tuple(options.limits),
        system_limit=trust.TRUSTED.system,
        least_norm=options.least_norm,
    )
    native.call(name, query.dtype, task)


class SharedCells(NamedTuple):
    """Queries grouped by their set of neighbors."""

    cells: Tensor  # (G, M): the different sets, sorted
    starts: Tensor  # (G + 1,): queries order[starts[g]:starts[g + 1]] have set g
    order: Tensor  # (Q,)
    ranks: Tensor  # (Q, M): where column j of the neighbors of a query is in its sorted set


def shared_cells(indices: Tensor, num_features: int) -> SharedCells | None:
    """The groups of the rows of `indices` `(Q, M)` with equal sets, or `None` where too few are equal to gain from it."""
    count, neighbors = indices.shape
    factorization = neighbors**2 * num_features + neighbors**3 / 3
    if count < 2 or factorization < WORTHWHILE:
        return None
    # A hash of each set tells, for a hundredth of the price of a factorization, whether to look any further.
    different = len(torch.unique(_hash_of_set(indices)))
    if (1 - different / count) * factorization < WORTHWHILE:
        return None
    ordered, positions = indices.sort(dim=1)
    ranks = torch.empty_like(positions).scatter_(1, positions, torch.arange(indices.shape[1]).expand_as(positions))
    cells, group, counts = torch.unique(ordered, dim=0, return_inverse=True, return_counts=True)
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    return SharedCells(cells, starts, group.argsort(stable=True), ranks)


def _hash_of_set(indices: Tensor) -> Tensor:
    """One number for each row, whatever the order in it; equal sets have equal numbers. Integers overflow on purpose."""
    mixed = (indices + 1) * MIXERS[0]
    mixed = (mixed ^ (mixed >> 29)) * MIXERS[1]
    return (mixed ^ (mixed >> 32)).sum(1)


class _DenseTask:
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


def _run_dense(name: str, task: Task, query: Tensor, centers: Tensor, values: Tensor, space: Tensor | None) -> None:
    """Call the library; `space` holds A^-1 y (N, C), then the factor (N, N), if a gradient is asked for."""
    query, centers, values = plain(query), plain(centers), plain(values)  # copies live until the call is over
    task.query, task.centers, task.values = query.data_ptr(), centers.data_ptr(), values.data_ptr()
    task.features = query.shape[1]
    if space is not None:
        task.adjoint = start = space.data_ptr()
        task.factor = start + values.numel() * space.element_size()
    native.call(name, query.dtype, task)


def dense_obstacle(query: Any, centers: Any, values: Any, kernel: Any, ridge: Any, trend: Any) -> str | None:
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


def dense_mean(query: Tensor, centers: Tensor, values: Tensor, *, kernel: Kernel, ridge: float) -> Tensor | None:
    """Predictions `(Q, C)` of a problem without `dense_obstacle`.

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
    problem = _DenseTask(values, kernel, ridge, scale, result, watched)
    space = values.new_empty(values.shape[0], values.shape[1] + values.shape[0]) if watched else None
    _run_dense("dense", problem.task, query, centers, values, space)
    if not problem.resolved.value:
        return None
    return _DenseMean.apply(query, centers, values, (result, space), problem) if watched else result


class _DenseMean(torch.autograd.Function):
    """The gradient of predictions that have been made."""

    # With `setup_context` each call would inspect the signature of `forward`, which takes longer than a small problem.
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, centers: Tensor, values: Tensor, found: tuple[Tensor, Tensor], problem: _DenseTask
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
        _run_dense("dense_gradient", task, query, centers, values, space)
        return *found, None, None


def _by_autograd(
    inputs: tuple[Tensor, ...], grad: Tensor, problem: _DenseTask, needs: tuple[bool, ...]
) -> list[Tensor | None]:
    # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
    query, centers, values = views = [tensor.view_as(tensor) for tensor in inputs]
    if problem.scale is not None:
        lengthscale = problem.scale.exp().to(query.dtype)
        query, centers = query / lengthscale, centers / lengthscale
    ridge = query.new_tensor(problem.ridge)
    dense = DenseProblem(query, centers, values, ridge, problem.kernel, trend=False, limits=trust.Limits())
    result = dense_mean_by_torch(dense).result
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    parts = iter(torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True))
    return [next(parts) if need else None for need in needs]


class BackendReport(NamedTuple):
    """What `backend="auto"` does, and why."""

    backend: str  # "fused" or "torch"
    reason: str | None  # why it is not the fused solver
    instruction_set: str | None  # of the fused solver that is installed: "avx512", "avx2", "baseline"
    library: str | None  # its file
    threads: int

    def __str__(self) -> str:
        if self.reason is not None:
            return f"torch, {self.threads} threads; not the fused solver: {self.reason}"
        return f"fused ({self.instruction_set}), {self.threads} threads"


def backend_report(
    kernel: Kernel | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    fade: bool = False,
    normalize: str | None = None,
) -> BackendReport:
    """Which solver local functions and layers use for such a problem.

    Args:
        kernel: `None` is `Exponential`.
        dtype, device: of the tensors.
        fade, normalize: as in `torchkrr.functional.local_kernel_ridge`.

    Example:
        >>> backend_report(fade=True).backend
        'torch'
        >>> backend_report(fade=True).reason
        'it has no fade'
    """
    kernel = Exponential() if kernel is None else kernel
    check_kernel(kernel)
    probe = torch.empty(0, dtype=working_dtype(dtype), device=device)
    options = CellOptions(kernel, fade=fade, normalize=normalize is not None)
    reason = local_obstacle((probe,), options, kernel.learned_in_profile())
    found = native.library()
    return BackendReport(
        "fused" if reason is None else "torch",
        reason,
        None if found is None else found.instruction_set,
        None if found is None else str(found.path),
        torch.get_num_threads(),
    )
