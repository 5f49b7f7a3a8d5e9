"""Pairwise squared distances that are exact where it matters and differentiable twice.

The inner-product form is fast but loses digits between close points, and it is close points that decide
the conditioning of a Gram matrix and whether a regressor interpolates. So close pairs, and only those, are
computed again by difference: equal rows are at distance zero exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ._chunking import chunk_bytes, collect, ranges, rows_per_chunk
from ._tensors import is_transformed, needs_gradient

# Pairs with a squared distance below this fraction of |a|^2 + |b|^2 are computed by difference: the relative
# error of the others is then at most about 1 / CLOSE units in the last place.
CLOSE = 1e-2
FEW_FEATURES = 4


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared Euclidean distances, `(*, A, D)` and `(*, B, D)` to `(*, A, B)`.

    Differentiable twice in both arguments. Rows that are equal are at distance exactly zero.

    Example:
        >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[25.],
                [ 0.]])
    """
    if not is_transformed(a, b):
        return _SquaredDistances.forward(a, b)
    return _SquaredDistances.apply(a, b)  # type: ignore[no-any-return]


def squared_distances_to(points: Tensor, others: Tensor, indices: Tensor) -> Tensor:
    """Squared distances of each of the points `(P, D)` to those of the `others` `(A, D)` that its row of indices names.

    By difference, and differentiable any number of times.

    Shape:
        - indices: `(P, K)`; output: `(P, K)`
    """

    def work(chunk: slice) -> tuple[Tensor, ...]:
        return ((others[indices[chunk]] - points[chunk].unsqueeze(1)).square().sum(-1),)

    if needs_gradient(points, others):
        return work(slice(None))[0]
    row_bytes = 2 * indices.shape[1] * points.shape[1] * points.element_size()
    return collect(work, ranges(len(points), rows_per_chunk(row_bytes, chunk_bytes(points.device))), points.device)[0]


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root whose derivatives at zero are zero instead of infinite."""
    # Selecting before and after keeps the unused branch finite, so that zero times infinity never appears.
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


class _SquaredDistances(torch.autograd.Function):
    r"""$s_{ij} = |a_i - b_j|^2$, so $\bar a_i = 2\sum_j \bar s_{ij}(a_i - b_j)$ and likewise for $b$.

    The backward is written in differentiable operations on the saved inputs: higher derivatives follow.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[-1] <= FEW_FEATURES:
            return _by_feature(a, b)
        shift = _middle(b)
        near_a, near_b = a - shift, b - shift
        scale = near_a.square().sum(-1).unsqueeze(-1) + near_b.square().sum(-1).unsqueeze(-2)  # (*, A, B)
        squared = torch.sub(scale, near_a @ near_b.mT, alpha=2)
        _recompute_close_pairs(squared, scale, a, b)  # the points as given: the shift has rounded the others
        return squared

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent_a: Tensor | None, tangent_b: Tensor | None) -> Tensor:
        a, b = ctx.saved_tensors
        shift = _middle(b)
        a, b = a - shift, b - shift
        parts = []
        if tangent_a is not None:
            parts.append((a * tangent_a).sum(-1).unsqueeze(-1) - tangent_a @ b.mT)
        if tangent_b is not None:
            parts.append((b * tangent_b).sum(-1).unsqueeze(-2) - a @ tangent_b.mT)
        return 2 * torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        shift = _middle(b.detach())
        a, b = a - shift, b - shift
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (2 * (grad.sum(-1, keepdim=True) * a - grad @ b)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = (2 * (grad.sum(-2).unsqueeze(-1) * b - grad.mT @ a)).sum_to_size(b.shape)
        return grad_a, grad_b

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        # One more leading dimension, in front of as many as the other has.
        rank = max(tensor.ndim - (dim is not None) for tensor, dim in zip((a, b), in_dims, strict=True))

        def batched(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor
            tensor = tensor.movedim(dim, 0)
            return tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.ndim), *tensor.shape[1:])

        return _SquaredDistances.apply(batched(a, in_dims[0]), batched(b, in_dims[1])), 0


def _middle(points: Tensor) -> Tensor:
    return points.mean(dim=-2, keepdim=True) if points.shape[-2] else points.new_zeros(points.shape[-1])


def _by_feature(a: Tensor, b: Tensor) -> Tensor:
    squared = (a[..., 0].unsqueeze(-1) - b[..., 0].unsqueeze(-2)).square_()
    for feature in range(1, a.shape[-1]):
        squared += (a[..., feature].unsqueeze(-1) - b[..., feature].unsqueeze(-2)).square_()
    return squared


def _recompute_close_pairs(squared: Tensor, scale: Tensor, a: Tensor, b: Tensor) -> None:
    pairs = (squared < CLOSE * scale).nonzero()  # (P, leading + 2)
    if len(pairs) == 0:
        return
    leading = squared.shape[:-2]
    a, b = a.expand(*leading, -1, -1), b.expand(*leading, -1, -1)
    budget = chunk_bytes(squared.device)
    for chunk in ranges(len(pairs), rows_per_chunk(2 * a.shape[-1] * a.element_size(), budget)):
        *batch, row, column = pairs[chunk].unbind(-1)
        squared[(*batch, row, column)] = (a[(*batch, row)] - b[(*batch, column)]).square_().sum(-1)
