"""The nearest rows of all shards for the queries of each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from ..neighbors import NeighborIndex
from ..neighbors.auto import exact_seconds
from ..neighbors.exact import squared_to
from .merging import Nearest, merge_over_ranks
from .shards import Shards
from .wire import Wire

ROUND_BYTES = 64 << 20
ROUND_SECONDS = 10.0  # of exact search, while others may wait


class Shard(NamedTuple):
    """What a rank searches: an index, built unless the shard is empty, and the points in it."""

    built: NeighborIndex
    take: Callable[[Tensor], Tensor]  # embedded points with these row numbers of the shard, a copy


def nearest_over_ranks(query: Tensor, counts: list[int], most: int, shard: Shard, shards: Shards, wire: Wire) -> Tensor:
    """Rows `(q, most)` of all shards nearest to this rank's embedded queries `(q, E)`, in order of (distance, row).

    Args:
        counts: queries of each rank.
        most: how many; all shards together must have them.
    """
    everyone = wire.gather(query, counts, "queries")
    width = min(most, shards.sizes[wire.rank])
    found = Nearest(everyone.new_empty(len(everyone), width), everyone.new_empty(len(everyone), width, dtype=torch.int64))
    if width and len(everyone):
        rows = shard.built.search(everyone, width).indices
        found = Nearest(_squared(everyone, rows, shard.take), rows + shards.start(wire.rank))
    return merge_over_ranks(found, counts, most, shards, wire).rows


def _squared(query: Tensor, rows: Tensor, take: Callable[[Tensor], Tensor]) -> Tensor:
    # Distances would do, but for their rounding: different squares may have equal roots, and order is by squares.
    squared = query.new_empty(rows.shape)
    row_bytes = 2 * rows.shape[1] * query.shape[1] * query.element_size()
    for chunk in ranges(len(query), rows_per_chunk(row_bytes, SEARCH_BYTES)):
        squared[chunk] = squared_to(query[chunk], take(rows[chunk].flatten()).view(*rows[chunk].shape, query.shape[1]))
    return squared


def rounds(counts: list[int], size: int, rank: int) -> list[tuple[slice, list[int]]]:
    """Queries taken together, at most `size` of each rank: this rank's, and how many each has.

    Example:
        >>> rounds([5, 2], 3, rank=1)
        [(slice(0, 2, None), [3, 2]), (slice(2, 2, None), [2, 0])]
    """
    found = []
    for start in range(0, max(1, *counts), size):
        each = [max(0, min(count, start + size) - start) for count in counts]
        first = min(start, counts[rank])
        found.append((slice(first, first + each[rank]), each))
    return found


def round_size(row_bytes: int, most: int, features: int, element_size: int, shards: Shards) -> int:
    """Queries of each rank in one round, so that it takes bounded memory and time.

    Args:
        row_bytes: of one row that a rank fetches for a query.
    """
    num_ranks = len(shards.sizes)
    everyone = num_ranks * (features * element_size + 2 * most * (element_size + 8))
    seconds = exact_seconds(max(shards.sizes), features, num_ranks)
    by_bytes = rows_per_chunk(most * row_bytes + everyone, ROUND_BYTES)
    return max(1, min(by_bytes, int(ROUND_SECONDS / max(seconds, 1e-9))))
