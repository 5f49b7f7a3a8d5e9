r"""Neighbors among the centers of all ranks: search them, fetch their rows, solve; and what that costs.

The queries of all ranks go to every rank, which finds the nearest rows of its own shard. The lists go to the rank of the
query, which merges them, fetches the rows of the nearest centers and solves. Rows travel as they were given and are embedded
where they are used, so that predictions and the gradients of kernels are those of one process.

For each query, with $R$ ranks, $N$ centers in all, $M$ neighbors, $D$ features ($E$ when embedded), $C$ outputs, $s$ bytes
per number, and $u \le M$ different rows fetched per query (queries of a rank share the neighbors they have in common):

| what travels | bytes per query, all ranks together |
|---|---|
| queries, to all ranks | $(R-1)\,E\,s$ |
| lists of the nearest rows | $(R-1)\,M\,(s+8)$ |
| numbers of the requested rows | $(1-\tfrac1R)\,8u$ |
| these rows | $(1-\tfrac1R)\,u\,(D+C)\,s$ |
| gradients, back to the owners, of $G$ learned columns | $(1-\tfrac1R)\,u\,G\,s$ |

$N$ does not occur. The model assumes that rows are spread at random and that every shard has at least M rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._chunking import rows_per_chunk
from ..core.options import Kind, SolveOptions
from ..functional.local import dispatch_local
from ..neighbors import NeighborIndex
from ..neighbors.auto import exact_seconds
from ..neighbors.base import order_of
from ..neighbors.exact import rank_squared
from .launch import Communicator, Shards

if TYPE_CHECKING:  # estimators need scikit-learn
    from ..estimators.encoding import Groups

ROUND_BYTES = 64 << 20
ROUND_SECONDS = 10.0  # of exact search, while other ranks may wait
INDEX_BYTES = 8  # of a row number


class Neighborhood(NamedTuple):
    """The neighbors of some queries of this rank, possibly of none."""

    queries: slice
    rows: Tensor  # (q, M) neighbors, numbered over all shards
    positions: Tensor  # (q, M) positions of the neighbors in `fetched`
    fetched: tuple[Tensor, ...]  # (u, ...) the different rows of each requested tensor


class ShardedIndex(NamedTuple):
    """The centers of all ranks, of which each rank can search its own."""

    own: NeighborIndex  # of this rank; built unless its shard is empty
    shards: Shards
    comm: Communicator

    def neighborhoods(
        self,
        query: Tensor,
        counts: list[int],
        num_neighbors: int,
        *,
        tensors: tuple[Tensor, ...] = (),
        gradient_scale: float = 1.0,
        exclude: Tensor | None = None,
        groups: Groups | None = None,
    ) -> Iterator[Neighborhood]:
        """Neighbors of embedded queries `(Q, E)`, in rounds of bounded memory and time, equally many on every rank.

        Args:
            counts: queries of each rank.
            num_neighbors: of each query; all shards together must have as many rows.
            tensors: this rank's shard of the tensors to fetch rows of; without any, nothing is fetched.
            gradient_scale: see `fetch_rows`.
            exclude: one row to leave out for each query, numbered over all shards; on all ranks or none.
            groups: of the rows of all shards; the others of its group are left out with a row.
        """
        row_bytes = sum(tensor.shape[1:].numel() * tensor.element_size() for tensor in tensors)
        size = self._round_size(row_bytes, num_neighbors, query)
        for queries, each in rounds(counts, size, self.comm.rank):
            if exclude is None:
                rows = self._nearest(query[queries], each, num_neighbors)
            else:
                rows = self._nearest(query[queries], each, num_neighbors + (1 if groups is None else groups.largest))
                rows = _without(rows, exclude[queries], groups)[:, :num_neighbors]
            if not tensors:
                yield Neighborhood(queries, rows, rows, ())
                continue
            used, positions = torch.unique(rows, return_inverse=True)
            fetched = fetch_rows(used, self.shards, self.comm, *tensors, gradient_scale=gradient_scale)
            yield Neighborhood(queries, rows, positions, fetched)

    def _nearest(self, query: Tensor, counts: list[int], num_neighbors: int) -> Tensor:
        """The nearest rows `(q, M)` of all shards, sorted by (distance, row)."""
        comm, widths = self.comm, [min(num_neighbors, size) for size in self.shards.sizes]
        everyone, width = comm.gather(query, counts, "queries"), widths[self.comm.rank]
        squared, rows = everyone.new_empty(0), torch.empty(0, dtype=torch.int64, device=query.device)
        if width and len(everyone):
            nearest = self.own.search(everyone, width).indices
            squared, rows = rank_squared(everyone, self.own.take, nearest, width)
            squared, rows = squared.flatten(), rows.flatten() + self.shards.start(comm.rank)
        to_each, from_each = [width * count for count in counts], [len(query) * other for other in widths]
        lists = []
        for part in (squared, rows):
            received = comm.exchange(part, to_each, from_each, "lists").split(from_each)
            lists.append(torch.cat([list_.view(len(query), n) for list_, n in zip(received, widths, strict=True)], dim=1))
        # Lists of lower ranks come first, so that a stable sort by distance breaks ties by row.
        return lists[1].gather(1, order_of(lists[0])[:, :num_neighbors])

    def _round_size(self, row_bytes: int, num_neighbors: int, query: Tensor) -> int:
        """Queries of each rank in one round; `row_bytes` are those of a fetched row."""
        num_ranks, features = len(self.shards.sizes), query.shape[1]
        everyone = num_ranks * (features * query.element_size() + 2 * num_neighbors * (query.element_size() + INDEX_BYTES))
        seconds = exact_seconds(max(self.shards.sizes), features, num_ranks)
        by_bytes = rows_per_chunk(num_neighbors * row_bytes + everyone, ROUND_BYTES)
        return max(1, min(by_bytes, int(ROUND_SECONDS / max(seconds, 1e-9))))


def rounds(counts: list[int], size: int, rank: int) -> list[tuple[slice, list[int]]]:
    """Split queries into rounds of at most `size` per rank: the queries of this rank, and the number of each rank.

    Example:
        >>> rounds([5, 2], 3, rank=1)
        [(slice(0, 2, None), [3, 2]), (slice(2, 2, None), [2, 0])]
    """
    result = []
    for start in range(0, max(1, *counts), size):
        each = [max(0, min(count, start + size) - start) for count in counts]
        first = min(start, counts[rank])
        result.append((slice(first, first + each[rank]), each))
    return result


def _without(rows: Tensor, exclude: Tensor, groups: Groups | None) -> Tensor:
    """Each list `(q, K)` with the excluded row, and the others of its group, moved to the end."""
    of_row, own = (rows, exclude) if groups is None else (groups.of_center[rows], groups.of_center[exclude])
    return rows.gather(1, (of_row == own.unsqueeze(1)).to(torch.uint8).argsort(dim=1, stable=True))


def solve_over_ranks(
    query: Tensor,
    neighborhoods: Iterator[Neighborhood],
    num_neighbors: int,
    num_outputs: int,
    options: SolveOptions,
    kind: Kind,
    *,
    replicated: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean or weights, squared power function and rows of the neighbors for the queries `(Q, D)` of this rank.

    Args:
        neighborhoods: with the centers as the first fetched tensor, for means the values as the second, and at the end, if
            the ridge is one per center, the ridges.
        replicated: tensors whose gradients are summed over ranks.
    """
    results = []
    num_fetched = 2 if kind == "mean" else 1
    for queries, rows, positions, fetched in neighborhoods:
        if len(rows):
            chosen = options if len(fetched) == num_fetched else options.but(ridge=fetched[-1])
            values = fetched[1] if kind == "mean" else fetched[0][:, :0]
            first, power_squared = dispatch_local(query[queries], fetched[0], values, positions, chosen, kind)
        else:
            zero = _zero_function_of([query[queries], *fetched[:num_fetched]], replicated)
            first = query.new_zeros(0, num_outputs if kind == "mean" else num_neighbors) + zero
            power_squared = query.new_zeros(0) + zero
        results.append((first.to(query.dtype), power_squared, rows))
    first, power_squared, rows = (torch.cat(column) for column in zip(*results, strict=True))
    return first, power_squared, rows


def _zero_function_of(empty: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Zero, as a function of all tensors whose derivatives of any order are again such functions.

    With it a rank without queries takes part in the backward pass, and in the backward pass of its result.
    """
    zero = torch.stack([tensor.sum() for tensor in empty]).sum()
    return zero * torch.stack([zero, *(tensor.sum().to(zero.dtype) for tensor in others)]).sum().sin()


def fetch_rows(
    rows: Tensor, shards: Shards, comm: Communicator, *tensors: Tensor, gradient_scale: float = 1.0
) -> tuple[Tensor, ...]:
    """The requested rows of sharded tensors; twice differentiable.

    Row numbers travel in one all-to-all, and the rows of each tensor in another. The gradient of a shard is that of the sum
    of what all ranks compute from its rows, times `gradient_scale`. Either all ranks run the backward pass, or none.

    Args:
        rows: different row numbers over all shards, sorted, `(n,)`.
        tensors: this rank's shard of each tensor, `(size of the shard, ...)`.
    """
    requested, ones = shards.per_owner(rows), [1] * comm.size
    given: list[int] = comm.exchange(torch.tensor(requested, device=rows.device), ones, ones, "sizes").tolist()
    own = comm.exchange(rows, requested, given, "requests") - shards.start(comm.rank)
    sent = (tensor.index_select(0, own) for tensor in tensors)
    return _Exchange.apply(comm, given, requested, "rows", gradient_scale, *sent)  # type: ignore[no-any-return]


class _Exchange(torch.autograd.Function):
    """`Communicator.exchange` of several tensors. Its transpose sends the gradients back."""

    @staticmethod
    def forward(
        ctx: Any, comm: Communicator, to_each: list[int], from_each: list[int], what: str, factor: float, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transpose, ctx.what, ctx.factor = (comm, from_each, to_each, "gradients", 1.0), what, factor
        return tuple(comm.exchange(tensor, to_each, from_each, what) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The same tensors are learned on every rank, so all ranks send the same gradients. Second derivatives are all sent.
        needed = [need or ctx.what == "gradients" for need in ctx.needs_input_grad[5:]]
        sent = [ctx.factor * grad for grad, need in zip(grads, needed, strict=True) if need]
        returned = iter(_Exchange.apply(*ctx.transpose, *sent))
        return None, None, None, None, None, *(next(returned) if need else None for need in needed)


class Replicate(torch.autograd.Function):
    """Copies of tensors that are equal on all ranks; gradients are summed over ranks and scaled. Twice differentiable."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, gradient_scale: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.comm, ctx.gradient_scale = comm, gradient_scale
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_SumOverRanks.apply(ctx.comm, *(ctx.gradient_scale * grad for grad in grads))


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks, on every rank. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.comm = comm
        total = comm.sum(torch.cat([tensor.flatten().double() for tensor in tensors]), "kernel gradients")
        sums = total.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(sums, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_SumOverRanks.apply(ctx.comm, *grads)


class Traffic(NamedTuple):
    """Bytes that all ranks together send for a query."""

    queries: float
    lists: float
    requests: float
    rows: float
    gradients: float

    @property
    def total(self) -> float:
        return sum(self)


def traffic_per_query(
    num_ranks: int,
    num_neighbors: int,
    num_features: int,
    num_outputs: int,
    *,
    embedded_features: int | None = None,
    element_size: int = 4,
    different_rows: float | None = None,
    learned_columns: int = 0,
) -> Traffic:
    """Bytes sent for a query, by the model above.

    Args:
        embedded_features: $E$; `None` is the number of features.
        element_size: $s$: 4 for float32, 8 for float64.
        different_rows: $u$; `None` is its bound, as for queries without common neighbors.
        learned_columns: $G$: the learned features, outputs or both; 0 without a backward pass.

    Example:
        >>> traffic_per_query(4, 100, 32, 1).total
        14484.0
    """
    embedded = num_features if embedded_features is None else embedded_features
    rows = num_neighbors if different_rows is None else different_rows
    remote = rows * (1 - 1 / num_ranks)
    return Traffic(
        queries=(num_ranks - 1) * embedded * element_size,
        lists=(num_ranks - 1) * num_neighbors * (element_size + INDEX_BYTES),
        requests=remote * INDEX_BYTES,
        rows=remote * (num_features + num_outputs) * element_size,
        gradients=remote * learned_columns * element_size,
    )


class Operations(NamedTuple):
    """Multiplications and additions for a query, of all ranks together."""

    search: float  # each rank does its part of them, on its own shard
    solve: float  # on the rank of the query


def operations_per_query(num_centers: int, num_neighbors: int, num_features: int, num_outputs: int) -> Operations:
    """Operations of exact search and a local solve without gradients.

    Example:
        >>> operations_per_query(1_000_000, 100, 32, 1)
        Operations(search=64000000, solve=653533.3333333333)
    """
    solve = num_neighbors**2 * num_features + num_neighbors**3 / 3 + 2 * num_neighbors * num_outputs
    return Operations(2 * num_centers * num_features, solve)
