r"""The fused solver: one neighborhood at a time, in cache from gather to prediction.

The work is done by the compiled library of `native/`, where there is one; here it is chosen and called. Same formulas, same
rule for singular cells and same results up to rounding as `solve` and `backward`, which remain the reference and the path
for everything this one does not do.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from .. import native
from .._tensors import is_plain, needs_gradient
from ..kernels import (
    Exponential,
    Gaussian,
    InverseMultiquadric,
    Kernel,
    Matern32,
    Matern52,
    RationalQuadratic,
    Wendland,
)
from ..native import NAMES, Task
from . import trust
from .cells import CellOptions
from .sharing import Shared, shared_cells

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


def obstacle(tensors: Sequence[Tensor], options: CellOptions, learned: Sequence[Tensor]) -> str | None:
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


def chosen(tensors: Sequence[Tensor], options: CellOptions, learned: Sequence[Tensor]) -> bool:
    """Whether to solve these cells here."""
    if options.backend == "torch":
        return False
    return native.chosen(options.backend, obstacle(tensors, options, learned), "solve this")


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
    if scale is None or options.backend == "torch" or obstacle(tensors, options, options.kernel.learned_in_profile()):
        return None
    return scale.detach().clone()  # the gradient must not see it change


def forward(
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
    _run(
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


def gradients(
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
    _run(
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


def _run(
    name: str,
    *,
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    ridge: Tensor,
    indices: Tensor,
    options: CellOptions,
    outputs: dict[str, Tensor | None],
    shared: Shared | None = None,
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
