"""`nearest`: exact search in one call, also inside `torch.func`, `torch.compile` and `torch.export`.

Neighbors are piecewise constant, so they have no derivative: to autograd a search is one step that nothing goes through, and
to the compiler one operator, `torchkrr::nearest`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_alike, check_finite, check_num_neighbors, check_points, check_same_features
from .._tensors import WithoutDerivative, full_precision, is_plain, state_of, working_dtype
from ..errors import InputError
from ..kernels import Kernel, check_kernel
from .exact import ExactIndex


@full_precision
def nearest(
    query: Tensor,
    centers: Tensor,
    num_neighbors: int,
    *,
    kernel: Kernel | None = None,
    exclude_self: bool = False,
    exclude: Tensor | None = None,
) -> Tensor:
    r"""The nearest centers of each query in the metric of the kernel, by exact search.

    Equivalent to

        embed = kernel.embed if kernel is not None else lambda x: x
        distances = torch.cdist(embed(query), embed(centers))
        result = distances.sort(dim=1, stable=True).indices[:, :num_neighbors]

    Args:
        query: points to search for.
        centers: points to search among.
        num_neighbors: how many.
        kernel: whose embedding to search in; `None` searches the points as they are.
        exclude_self: for `query` equal to `centers` row by row: leave row i out of the neighbors of row i.
        exclude: one row of `centers` to leave out for each query.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; exclude: `(Q,)`
        - output: `(Q, M)` int64, nearest first, ties by lowest index

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> nearest(x, x, 1, exclude_self=True).squeeze()
        tensor([1, 0, 1])
    """
    check_points("query", query, maybe_empty=True)
    check_points("centers", centers)
    check_alike(query=query, centers=centers)
    check_same_features("query", query, "centers", centers)
    check_finite("query", query)
    check_finite("centers", centers)
    if kernel is not None:
        check_kernel(kernel)
    if exclude_self:
        if exclude is not None:
            raise InputError("Give exclude_self or exclude, not both: exclude names the rows that exclude_self implies.")
        if query.shape != centers.shape or (is_plain(query) and not torch.equal(query, centers)):
            raise InputError(
                "exclude_self=True needs query equal to centers, row by row. "
                "For another query set name the row to leave out of each with exclude=."
            )
        exclude = torch.arange(len(query), device=query.device)
    with torch.no_grad():
        if kernel is not None:
            dtype = working_dtype(query.dtype)
            query, centers = kernel.embed(query.to(dtype)), kernel.embed(centers.to(dtype))
        state = state_of(query, centers)
        if state == "plain":
            return _search(query, centers, num_neighbors, exclude)
        check_num_neighbors(num_neighbors, centers.shape[0])
        search = torch.ops.torchkrr.nearest if state == "symbolic" else _Nearest.apply
        return search(query.detach(), centers.detach(), num_neighbors, exclude)  # type: ignore[no-any-return]


def _search(query: Tensor, centers: Tensor, num_neighbors: int, exclude: Tensor | None) -> Tensor:
    return ExactIndex().build(centers).search(query, num_neighbors, exclude=exclude).indices


@torch.library.custom_op("torchkrr::nearest", mutates_args=())
def _nearest_op(query: Tensor, centers: Tensor, num_neighbors: int, exclude: Tensor | None) -> Tensor:
    return _search(query, centers, num_neighbors, exclude).contiguous()


@_nearest_op.register_fake
def _(query: Tensor, centers: Tensor, num_neighbors: int, exclude: Tensor | None) -> Tensor:
    return query.new_empty(query.shape[0], num_neighbors, dtype=torch.int64)


class _Nearest(WithoutDerivative):
    @staticmethod
    def forward(query: Tensor, centers: Tensor, num_neighbors: int, exclude: Tensor | None) -> Tensor:
        return _search(query, centers, num_neighbors, exclude)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], query: Tensor, centers: Tensor, num_neighbors: int, exclude: Tensor | None
    ) -> tuple[Tensor, int]:
        batch = info.batch_size
        query = query if in_dims[0] is None else query.movedim(in_dims[0], 0)
        centers = centers if in_dims[1] is None else centers.movedim(in_dims[1], 0)
        exclude = exclude if exclude is None or in_dims[3] is None else exclude.movedim(in_dims[3], 0)
        if in_dims[1] is None and in_dims[0] is not None:  # the same centers: all queries at once
            rows = None
            if exclude is not None:
                rows = (exclude if in_dims[3] is not None else exclude.expand(batch, -1)).flatten()
            found = _Nearest.apply(query.flatten(0, 1), centers, num_neighbors, rows)
            return found.view(batch, -1, num_neighbors), 0
        each = [
            _Nearest.apply(
                query if in_dims[0] is None else query[i],
                centers if in_dims[1] is None else centers[i],
                num_neighbors,
                exclude if exclude is None or in_dims[3] is None else exclude[i],
            )
            for i in range(batch)
        ]
        return torch.stack(each), 0
