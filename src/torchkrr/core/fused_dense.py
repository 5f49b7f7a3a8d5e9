r"""Small dense problems by the compiled library: one call for the predictions, one for their gradient.

With $G$ arriving at the predictions $k^\top\alpha$, $\alpha = A^{-1}y$, and $B = A^{-1}kG$:

$$ \bar y = B,\quad \bar k = \alpha G^\top,\quad \bar A = -\tfrac12(B\alpha^\top + \alpha B^\top),\quad
   \bar\lambda_i = -\textstyle\sum_c B_{ic}\alpha_{ic} . $$

Same formulas and same judgement as `dense`, which does everything else: large problems, leading dimensions, trends, what is
not surely resolved, and second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _native
from .._native import NAMES, Backend, Task
from ..distances import needs_gradient
from ..kernels import Kernel
from .factor import UNRESOLVED
from .fused import PROFILES

# Centers and features up to which one core in its cache beats torch, whose products know blocks and threads.
MOST_CENTERS, MOST_FEATURES = 192, 64

Reference = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


class Predicted(NamedTuple):
    mean: Tensor  # (Q, C)
    adjoint: Tensor  # (N, C): alpha; empty where no gradient is needed


def obstacle(inputs: Inputs, kernel: Kernel, trend: bool, learned: bool) -> str | None:
    """Why this problem cannot be solved here, or `None` if it can."""
    query = inputs[0]
    if query.device.type != "cpu" or query.dtype not in NAMES:
        return f"it works in float32 and float64 on the CPU, and the tensors are {query.dtype} on {query.device}"
    if type(kernel) not in PROFILES or learned:
        return f"it has no profile for {type(kernel).__name__}, or no gradient for what that learns in its profile"
    if trend:
        return "it has no trend for dense problems"
    if any(tensor.ndim != 2 for tensor in inputs[:3]):
        return "it has no leading dimensions"
    if not _native.in_memory(*inputs):
        return _native.NO_MEMORY
    if _native.library() is None:
        return _native.MISSING
    return None


def mean(inputs: Inputs, kernel: Kernel, *, trend: bool, backend: Backend, reference: Reference) -> Tensor | None:
    """Predictions `(Q, C)` for query, centers, values and ridge, or `None` where `dense` is to find them.

    `reference` is the same function in plain torch, for derivatives of the gradient.
    """
    if backend == "torch":
        return None
    query, centers, values, ridge = inputs
    if backend == "auto" and (centers.shape[-2] > MOST_CENTERS or centers.shape[-1] > MOST_FEATURES):
        return None
    learned = bool(kernel.learned_in_profile())
    if not _native.chosen(backend, obstacle(inputs, kernel, trend, learned), "solve this"):
        return None
    watched = needs_gradient(*inputs)
    found = Predicted(
        query.new_empty(len(query), values.shape[1]), values.new_empty(values.shape if watched else (0, values.shape[1]))
    )
    resolved = torch.empty(1, dtype=torch.bool)
    _run("dense", inputs, kernel, mean=found.mean, adjoint=found.adjoint, resolved=resolved)
    if not resolved:
        return None
    if not watched:
        return found.mean
    return _Mean.apply(*inputs, found, kernel, reference)  # type: ignore[no-any-return]


class _Mean(torch.autograd.Function):
    """The gradient of predictions that have been made."""

    # With `setup_context` each call would look at the signature of `forward`, which takes longer than a small problem.
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        centers: Tensor,
        values: Tensor,
        ridge: Tensor,
        found: Predicted,
        kernel: Kernel,
        reference: Reference,
    ) -> Tensor:
        ctx.kernel, ctx.reference = kernel, reference
        ctx.save_for_backward(query, centers, values, ridge, found.adjoint)
        return found.mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, adjoint = ctx.saved_tensors
        needs = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            return *_by_autograd(inputs, grad, ctx.reference, needs), None, None, None
        query, centers, values, ridge = inputs
        shapes = (query, centers, values, query.new_empty(len(centers)) if needs[3] else ridge)
        found = [torch.empty_like(t, memory_format=torch.contiguous_format) if n else None for t, n in zip(shapes, needs, strict=True)]
        names = ("grad_query", "grad_centers", "grad_values", "grad_ridge")
        wanted = {name: tensor for name, tensor in zip(names, found, strict=True) if tensor is not None}
        _run("dense_gradient", inputs, ctx.kernel, adjoint=adjoint, grad_mean=grad, **wanted)
        if found[3] is not None:
            found[3] = found[3].sum_to_size(ridge.shape)
        return *found, None, None, None


def _by_autograd(inputs: list[Tensor], grad: Tensor, reference: Reference, needs: tuple[bool, ...]) -> list[Tensor | None]:
    with torch.enable_grad():
        # Views give each input an edge of its own in the graph, even where two inputs are one tensor.
        views = [tensor.view_as(tensor) for tensor in inputs]
        result = reference(*views)
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    parts = iter(torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True))
    return [next(parts) if need else None for need in needs]


def _run(name: str, inputs: Any, kernel: Kernel, **given: Tensor) -> None:
    query, centers, values, ridge = inputs
    profile, parameters = PROFILES[type(kernel)]
    tensors = {"query": query, "centers": centers, "values": values, **given}
    plain = {key: _native.plain(tensor) for key, tensor in tensors.items() if tensor.numel()}
    ridge = ridge.detach().resolve_neg()
    task = Task(
        **{key: tensor.data_ptr() for key, tensor in plain.items()},
        ridge=ridge.data_ptr(),
        ridge_neighbor=ridge.stride(0) if ridge.ndim else 0,
        cells=query.shape[0],
        neighbors=centers.shape[0],
        features=centers.shape[1],
        outputs=values.shape[1],
        profile=profile,
        shape=tuple(parameters(kernel)),
        trusted=UNRESOLVED[query.dtype] / torch.finfo(query.dtype).eps,
    )
    _native.call(name, query.dtype, task)
