r"""The compiled solver: one neighborhood, or one small dense problem, in cache from gather to prediction.

The library of `native/` does the work; this file chooses and calls it. Formulas, the rule for singular cells, and results up
to rounding are those of `cells`, `backward` and `dense`, which remain the reference and the path for everything else.

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
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from .. import native
from .._checks import check_finite
from .._chunking import chunk_bytes, ranges, rows_per_chunk
from .._tensors import is_plain, needs_gradient, working_dtype
from ..kernels import Exponential, Kernel, RationalQuadratic, Wendland
from ..kernels.names import BY_NAME, check_kernel
from ..native import NAMES, Task
from . import trust
from .backward import Saved
from .cells import LocalProblem
from .dense import DenseProblem
from .dense import mean as dense_mean_by_torch
from .options import PLAIN_TRENDS, Normalize, SolveOptions

PROFILES = {kind: number for number, kind in enumerate(BY_NAME.values())}  # numbered as in profile.h
MOST_TAIL_FEATURES = 16  # of a linear trend, as in tail.h
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


def local_obstacle(problem: LocalProblem, options: SolveOptions, learned: Sequence[Tensor]) -> str | None:
    """Why these cells cannot be solved here, or `None` if they can."""
    query, name = problem.query, type(options.kernel).__name__
    if query.device.type != "cpu":
        return f"it works on the CPU, and the tensors are on {query.device}"
    if query.dtype not in NAMES:
        return f"it works in float32 and float64, and the tensors are {query.dtype}"
    if type(options.kernel) not in PROFILES:
        return f"it has no profile for {name}"
    if learned:
        return f"it has no gradient for what {name} learns in its profile"
    if options.kernel.order > 0 or options.trend not in PLAIN_TRENDS:
        if options.degree > 1:
            return "it has no polynomial trend but a constant and a linear one"
        if options.degree == 1 and problem.centers.shape[1] > MOST_TAIL_FEATURES:
            return f"it has a linear trend in at most {MOST_TAIL_FEATURES} features"
        if options.kind not in ("mean", "weights"):
            return "it keeps no coefficients of a polynomial trend"
    if options.fade or options.normalize:
        return f"it has no {'fade' if options.fade else 'normalize'}"
    if not is_plain(*problem[:4], *numbers_of_profile(options.kernel)):
        return native.NO_MEMORY
    return native.MISSING if native.library() is None else None


def shape_of(kernel: Kernel) -> tuple[float, ...]:
    """The parameters of a profile."""
    if isinstance(kernel, RationalQuadratic):
        return (float(kernel.alpha.detach()),)
    return (kernel.exponent, kernel.smoothness) if isinstance(kernel, Wendland) else ()


def numbers_of_profile(kernel: Kernel) -> list[Tensor]:
    """The tensors whose numbers the compiled profile takes; it sees nothing else of them."""
    return [kernel.log_alpha] if type(kernel) is RationalQuadratic else []


def use_compiled(problem: LocalProblem, options: SolveOptions, learned: Sequence[Tensor]) -> bool:
    """Whether to solve these cells here."""
    if options.backend == "torch":
        return False
    return native.chosen(options.backend, local_obstacle(problem, options, learned), "solve this")


def fixed_scale(kernel: Kernel, features: int) -> Tensor | None:
    """The logarithms of a fixed lengthscale, if to divide by it is all that `kernel.embed` does."""
    if kernel.input_transform is not None or type(kernel).embed is not Kernel.embed:
        return None
    scale = kernel.log_lengthscale
    fits = scale.numel() == 1 or scale.shape[0] == features
    if not (scale.is_cpu and fits and is_plain(scale)) or needs_gradient(scale):
        return None
    return scale.double().contiguous()


def log_scale_for(problem: LocalProblem, options: SolveOptions) -> Tensor | None:
    """What these points, not embedded, may be divided by here, neighborhood by neighborhood: the library makes no copy."""
    scale = fixed_scale(options.kernel, problem.query.shape[1])
    if scale is None or options.backend == "torch":
        return None
    if local_obstacle(problem, options, options.kernel.learned_in_profile()) is not None:
        return None
    return scale.detach().clone()  # the gradient must not see it change


def local_forward(problem: LocalProblem, options: SolveOptions) -> tuple[Tensor, ...]:
    """As `local._forward`, for all queries at once."""
    (count, neighbors), outputs, kind = problem.indices.shape, problem.values.shape[1], options.kind
    # All that matters is the factor of a cell.
    factor_only = kind in ("mean", "weights") and not options.differentiated and problem.ridge.ndim == 0
    shared = shared_cells(problem.indices, problem.centers.shape[1]) if factor_only else None
    new = functools.partial(torch.empty, dtype=problem.query.dtype)
    saves = kind == "coefficients" or (kind == "mean" and options.differentiated)
    steps = (neighbors,) if kind == "path" else ()
    mean, power_squared = new(count, *steps, outputs), new(count, *steps)
    weights = new(count, neighbors if kind == "weights" or saves else 0)
    adjoint = new(count, neighbors, outputs) if saves else new(count, 0)
    tail = monomials_of(problem, options)
    constant = new(count, outputs if kind == "coefficients" and options.trend is not None else 0)
    if tail and saves:
        constant = new(count, tail * (outputs + 1))
    resolved = torch.empty(count, *steps, dtype=torch.bool)
    results = {"power": power_squared, "weights": weights, "adjoint": adjoint, "multiples": constant, "resolved": resolved}
    if kind in ("mean", "path"):
        results["mean"] = mean
    _run_local("solve", problem, options, results, shared, options.cache if factor_only and not tail else None)
    nothing = new(count, 0)
    if tail and saves:
        both = constant.view(count, tail, outputs + 1)
        return mean, power_squared, resolved, weights, adjoint, both[..., 1:].contiguous(), both[..., 0].contiguous()
    if kind == "coefficients":
        constant = constant if options.trend is not None else mean.zero_()
        return torch.cat((adjoint, constant.unsqueeze(-2)), dim=-2), power_squared, resolved, *[nothing] * 4
    if kind == "weights":
        first = weights if shared is None else weights.gather(1, shared.ranks)
        return first, power_squared, resolved, *[nothing] * 4
    return mean, power_squared, resolved, weights, adjoint, nothing, nothing


def monomials_of(problem: LocalProblem, options: SolveOptions) -> int:
    """Of a trend that borders the system, or zero."""
    if options.kernel.order == 0 and options.trend in PLAIN_TRENDS:
        return 0
    return 1 if options.degree == 0 else problem.centers.shape[1] + 1


def local_gradients(
    problem: LocalProblem, saved: Saved, grads: tuple[Tensor, ...], options: SolveOptions, needs: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of query, centers, values and ridge, `None` where not needed."""
    # numpy gets them as zeros from the system, in large pages where it has such; torch would write each of them once more.
    found = [
        torch.from_numpy(numpy.zeros(tensor.shape, NUMPY_TYPES[tensor.dtype])) if need else None
        for tensor, need in zip(problem[:3], needs, strict=False)
    ]
    for_ridge = problem.query.new_empty(problem.indices.shape) if needs[3] else None
    names = ("grad_query", "grad_centers", "grad_values", "grad_ridge")
    tensors = {"weights": saved.inner, "adjoint": saved.adjoint, "grad_mean": grads[0], "grad_power": grads[1]}
    tensors |= {name: tensor for name, tensor in zip(names, (*found, for_ridge), strict=True) if tensor is not None}
    _run_local("gradient", problem, options, tensors)
    if monomials_of(problem, options) > 1 and (needs[0] or needs[1]):
        _through_linear_tail(problem, saved, grads, options, found)
    return [*found, None if for_ridge is None else for_ridge.sum_to_size(problem.ridge.shape)]


def _through_linear_tail(
    problem: LocalProblem, saved: Saved, grads: tuple[Tensor, ...], options: SolveOptions, found: list[Tensor | None]
) -> None:
    """Add to the gradients of query and centers what comes through linear monomials: those of `backward`."""
    (for_query, for_centers), (arriving, gamma) = found[:2], grads
    (count, neighbors), features = problem.indices.shape, problem.centers.shape[1]
    lengthscale = None if options.log_scale is None else options.log_scale.exp().to(problem.query.dtype)
    row_bytes = 3 * neighbors * (features + 1) * problem.query.element_size()
    for rows in ranges(count, rows_per_chunk(row_bytes, chunk_bytes(problem.query.device))):
        g, power = arriving[rows].unsqueeze(-1), gamma[rows].unsqueeze(-1)
        beta = saved.adjoint[rows] @ g  # (q, M, 1)
        gap = saved.gap[rows, 1:]  # (q, E)
        multiple = (saved.multiples[rows, 1:] @ g).squeeze(-1) + 2 * power * gap
        moved = beta * gap.unsqueeze(1) - saved.inner[rows].unsqueeze(-1) * multiple.unsqueeze(1)  # (q, M, E)
        if lengthscale is not None:
            moved = moved / lengthscale
        if for_query is not None:
            for_query[rows] -= moved.sum(1)
        if for_centers is not None:
            for_centers.index_add_(0, problem.indices[rows].flatten(), moved.flatten(0, 1))


def _run_local(
    name: str,
    problem: LocalProblem,
    options: SolveOptions,
    results: dict[str, Tensor],
    shared: SharedCells | None = None,
    cache: FactorCache | None = None,
) -> None:
    query, centers, values, ridge, indices = problem
    tail = monomials_of(problem, options)
    tensors = {"query": query, "centers": centers, "values": values, "indices": indices, **results}
    if options.value_scale is not None:
        tensors["value_scale"] = options.value_scale.detach().to(query.dtype)
    if options.log_scale is not None:
        tensors["log_scales"] = options.log_scale
    if shared is not None:
        indices = shared.cells
        tensors |= {"indices": indices, "starts": shared.starts, "order": shared.order}
    steps = ridge.detach().resolve_neg().expand(indices.shape)
    task = Task(
        cache=None if cache is None else cache.handle,
        ridge=steps.data_ptr(),
        ridge_cell=steps.stride(0),
        ridge_neighbor=steps.stride(1),
        cells=indices.shape[0],
        neighbors=indices.shape[1],
        features=centers.shape[1],
        outputs=values.shape[1],
        threads=torch.get_num_threads(),
        profile=PROFILES[type(options.kernel)],
        scale_step=0 if options.log_scale is None else int(options.log_scale.numel() > 1),
        trend=options.trend is not None and not tail,
        tail=tail,
        precision=options.precision,
        path=options.kind == "path",
        shape=shape_of(options.kernel),
        limits=tuple(options.limits),
        system_limit=trust.TRUSTED.system,
        least_norm=options.least_norm,
        points=centers.shape[0],
    )
    native.call(name, query.dtype, task, tensors)


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
    """A small dense problem but for its tensors; `task` holds addresses of the numbers here, which have to live with it."""

    __slots__ = ("kernel", "number", "resolved", "ridge", "scale", "task")

    def __init__(
        self, query: Tensor, values: Tensor, kernel: Kernel, ridge: float, scale: Tensor | None, differentiated: bool
    ) -> None:
        self.kernel, self.ridge = kernel, ridge
        self.scale = scale  # logarithms of what the library divides by; without, the points are embedded
        self.number, self.resolved = NUMBERS[values.dtype](ridge), ctypes.c_uint8()
        self.task = Task(
            ridge=ctypes.addressof(self.number),
            resolved=ctypes.addressof(self.resolved),
            log_scales=None if scale is None else scale.data_ptr(),
            scale_step=0 if scale is None else int(scale.numel() > 1),
            neighbors=values.shape[0],
            outputs=values.shape[1],
            cells=query.shape[0],
            features=query.shape[1],
            profile=PROFILES[type(kernel)],
            shape=shape_of(kernel),
            limits=tuple(trust.limits(values.dtype, "mean", differentiated=differentiated)),
            system_limit=trust.TRUSTED.system,
        )


def dense_obstacle(query: Any, centers: Any, values: Any, kernel: Any, ridge: Any, trend: Any) -> str | None:
    """Why this cannot be solved here; `None` if it is small, plain and consistent, so that no other check is needed."""
    if trend is not None:
        return "it has no trend"
    if type(kernel) not in PROFILES:
        return f"it has no profile for {type(kernel).__name__}"
    if kernel.order > 0:
        return "it has no trend, which this kernel needs"
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
    if not is_plain(query, centers, values, *numbers_of_profile(kernel)):
        return native.NO_MEMORY
    if type(kernel) is RationalQuadratic and kernel.learned_in_profile():
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
    differentiated = needs_gradient(query, centers, values)
    if differentiated and scale is not None:
        scale = scale.detach().clone()  # the gradient must not see it change
    problem = _DenseTask(query, values, kernel, ridge, scale, differentiated)
    tensors = {"query": query, "centers": centers, "values": values, "mean": result}
    if differentiated:
        tensors["adjoint"], tensors["factor"] = values.new_empty(values.shape), values.new_empty(len(values), len(values))
    native.call("dense", query.dtype, problem.task, tensors)
    if not problem.resolved.value:
        return None
    if not differentiated:
        return result
    results = result, tensors["adjoint"], tensors["factor"]
    return _DenseMean.apply(query, centers, values, results, problem)  # type: ignore[no-any-return]


class _DenseMean(torch.autograd.Function):
    """The gradient of predictions that have been made."""

    # With `setup_context` each call would inspect the signature of `forward`, which takes longer than a small problem.
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, centers: Tensor, values: Tensor, results: tuple[Tensor, ...], problem: _DenseTask
    ) -> Tensor:
        mean, *rest = results  # as a tuple: a tensor that comes in and goes out would be a view of itself
        ctx.problem = problem
        ctx.save_for_backward(query, centers, values, *rest)
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, adjoint, factor = ctx.saved_tensors  # maybe not where they were
        problem, needs = ctx.problem, ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *_by_autograd(inputs, grad, problem, needs[:3]), None, None
        # Not `empty_like`: what an input looks like in memory is not what is written.
        found = [tensor.new_empty(tensor.shape) if need else None for tensor, need in zip(inputs, needs, strict=False)]
        names = ("query", "centers", "values")
        tensors = dict(zip(names, inputs, strict=True)) | {"adjoint": adjoint, "factor": factor, "grad_mean": grad}
        tensors |= {f"grad_{name}": tensor for name, tensor in zip(names, found, strict=True) if tensor is not None}
        task = Task.from_buffer_copy(problem.task)  # others may use the one there is at the same time
        native.call("dense_gradient", grad.dtype, task, tensors)
        return *found, None, None


def _by_autograd(inputs: Sequence[Tensor], grad: Tensor, problem: _DenseTask, needs: Sequence[bool]) -> list[Tensor | None]:
    # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
    query, centers, values = views = [tensor.view_as(tensor) for tensor in inputs]
    if problem.scale is not None:
        lengthscale = problem.scale.exp().to(query.dtype)
        query, centers = query / lengthscale, centers / lengthscale
    ridge = query.new_tensor(problem.ridge)
    result = dense_mean_by_torch(DenseProblem(query, centers, values, ridge, SolveOptions(problem.kernel))).result
    requested = [view for view, need in zip(views, needs, strict=True) if need]
    parts = iter(torch.autograd.grad(result, requested, grad, create_graph=True, allow_unused=True))
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
    normalize: Normalize = None,
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
    options = SolveOptions(kernel, fade=fade, normalize=normalize)
    reason = local_obstacle(LocalProblem(*[probe] * 5), options, kernel.learned_in_profile())
    found = native.library()
    return BackendReport(
        "fused" if reason is None else "torch",
        reason,
        None if found is None else found.instruction_set,
        None if found is None else str(found.path),
        torch.get_num_threads(),
    )
