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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _native
from .._checks import check_finite
from .._native import Task
from ..distances import needs_gradient
from ..kernels import Kernel
from .dense import DenseProblem
from .dense import mean as by_torch
from .factor import UNRESOLVED
from .fused import PROFILES

# Up to these sizes one core, in its cache, is faster than torch with its blocked products on several.
MOST_CENTERS, MOST_FEATURES = 192, 64
MOST_WORK = 1 << 23  # multiplications of the predictions
NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
TRUSTED = {dtype: limit / torch.finfo(dtype).eps for dtype, limit in UNRESOLVED.items()}
WANTED = (
    f"it takes at most {MOST_CENTERS} centers of at most {MOST_FEATURES} features, {MOST_WORK} products of queries, centers "
    "and features or outputs, float32 or float64 on the CPU without leading dimensions, a kernel of torchkrr.kernels with a "
    "fixed profile, and a number as ridge"
)


GRADIENTS = ("grad_query", "grad_centers", "grad_values")


class _Fixed(NamedTuple):
    """What has no gradient here."""

    kernel: Kernel
    scaled: bool  # the library divides by the lengthscale; else the points are embedded
    ridge: float


def suits(query: Any, centers: Any, values: Any, kernel: Any, ridge: Any) -> bool:
    """Whether these are small, plain and consistent, so that no other check is needed."""
    if type(kernel) not in PROFILES or type(ridge) not in (float, int) or not 0 <= ridge < math.inf:
        return False
    for tensor in (query, centers, values):
        if not isinstance(tensor, Tensor) or tensor.ndim != 2 or tensor.device.type != "cpu":
            return False
    (num_queries, features), (num_centers, features_too), (num_values, outputs) = query.shape, centers.shape, values.shape
    return bool(
        query.dtype in NUMBERS
        and query.dtype == centers.dtype == values.dtype
        and features == features_too
        and num_centers == num_values
        and 0 < num_centers <= MOST_CENTERS
        and 0 < features <= MOST_FEATURES
        and num_queries > 0
        and outputs > 0
        and num_queries * num_centers * (features + outputs) <= MOST_WORK
        and not (PROFILES[type(kernel)][1](kernel) and kernel.learned_in_profile())
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _native.in_memory(query, centers, values)
        and _native.library() is not None
    )


def mean(query: Tensor, centers: Tensor, values: Tensor, *, kernel: Kernel, ridge: float) -> Tensor | None:
    """Predictions `(Q, C)` of a problem that `suits`; `None` if it is not surely resolved or a number is not finite."""
    scaled = _is_division(kernel, query.shape[1])
    if not scaled:
        if kernel.input_transform is not None:  # which may clip what is not finite
            check_finite("centers", centers)
            check_finite("query", query)
        query, centers = kernel.embed(query), kernel.embed(centers)
    fixed = _Fixed(kernel, scaled, ridge)
    watched = needs_gradient(query, centers, values)
    found = {"mean": query.new_empty(len(query), values.shape[1])}
    if watched:
        found |= {"adjoint": values.new_empty(values.shape), "factor": values.new_empty(len(values), len(values))}
    resolved = ctypes.c_uint8()
    _run("dense", query, centers, values, fixed, resolved, **found)
    if not resolved.value:
        return None
    return _Mean.apply(query, centers, values, found, fixed) if watched else found["mean"]


def _is_division(kernel: Kernel, features: int) -> bool:
    """Whether all that `kernel.embed` does is to divide by a fixed lengthscale."""
    scale = kernel.log_lengthscale
    return (
        kernel.input_transform is None
        and type(kernel).embed is Kernel.embed
        and scale.dtype == torch.float64
        and (scale.ndim == 0 or len(scale) == features)
        and scale.is_contiguous()
        and scale.device.type == "cpu"
        and not needs_gradient(scale)
    )


class _Mean(torch.autograd.Function):
    """The gradient of predictions that have been made."""

    # With `setup_context` each call would inspect the signature of `forward`, which takes longer than a small problem.
    @staticmethod
    def forward(ctx: Any, query: Tensor, centers: Tensor, values: Tensor, found: dict[str, Tensor], fixed: _Fixed) -> Tensor:
        ctx.fixed = fixed
        ctx.save_for_backward(query, centers, values, found["adjoint"], found["factor"])
        return found["mean"]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, centers, values, adjoint, factor = ctx.saved_tensors
        inputs, needs = (query, centers, values), ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return *_by_autograd(inputs, grad, ctx.fixed, needs), None, None
        found = {name: t.new_empty(t.shape) for name, t, need in zip(GRADIENTS, inputs, needs, strict=True) if need}
        _run("dense_gradient", *inputs, ctx.fixed, adjoint=adjoint, factor=factor, grad_mean=grad, **found)
        return *map(found.get, GRADIENTS), None, None


def _by_autograd(inputs: tuple[Tensor, ...], grad: Tensor, fixed: _Fixed, needs: tuple[bool, ...]) -> list[Tensor | None]:
    kernel, scaled, ridge = fixed
    # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
    query, centers, values = views = [tensor.view_as(tensor) for tensor in inputs]
    if scaled:
        query, centers = kernel.embed(query), kernel.embed(centers)
    result = by_torch(DenseProblem(query, centers, values, query.new_tensor(ridge), kernel, trend=False)).result
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    parts = iter(torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True))
    return [next(parts) if need else None for need in needs]


def _run(
    name: str,
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    fixed: _Fixed,
    resolved: ctypes.c_uint8 | None = None,
    **more: Tensor,
) -> None:
    kernel, scaled, ridge = fixed
    profile, parameters = PROFILES[type(kernel)]
    number = NUMBERS[query.dtype](ridge)
    plain = _native.plain
    tensors = [plain(query), plain(centers), plain(values), *map(plain, more.values())]  # copies live until the call is over
    addresses = [tensor.data_ptr() for tensor in tensors]
    scale = kernel.log_lengthscale if scaled else None
    task = Task(
        **dict(zip(more, addresses[3:], strict=True)),
        query=addresses[0],
        centers=addresses[1],
        values=addresses[2],
        resolved=None if resolved is None else ctypes.addressof(resolved),
        ridge=ctypes.addressof(number),
        cells=query.shape[0],
        neighbors=centers.shape[0],
        features=centers.shape[1],
        outputs=values.shape[1],
        profile=profile,
        log_scales=None if scale is None else scale.data_ptr(),
        scale_step=0 if scale is None else scale.ndim,
        shape=parameters(kernel),
        trusted=TRUSTED[query.dtype],
    )
    _native.call(name, query.dtype, task)
