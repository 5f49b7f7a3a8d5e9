"""A copy of points in 8 bits, and bounds of distances from it: all but a few points are ruled out without a look at them.

The derivation, rounding included, is at the head of `native/quantized.h`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import native
from .base import Neighbors

TILE = 48  # points that lie together, as in quantized.h
MOST_FEATURES = 1 << 16  # sums of so many products of bytes are less than 2^31
# Measured where 8 bits begin to pay. To pick a neighbor from the pool costs as much as 20,000 numbers of the points.
LEAST_NUMBERS, LEAST_PER_NEIGHBOR = 1 << 18, 20_000
LEAST_FEATURES = 32
LEAST_SHARE = 32  # points for each neighbor; with fewer, too many cannot be ruled out
# Rows in a pool, of which half may stay. To measure one point in twelve takes as long as a product with all.
LEAST_POOL, MOST_POOL, POOLED, POOL_PER_NEIGHBOR = 1 << 11, 1 << 14, 6, 16


class QuantizedPoints:
    """Points `(N, E)` less their mean, as integers from -127 to 127 times a scale for each, in `N (E + 12)` bytes.

    It is kept beside the points, which every method is given again.
    """

    proven = False  # whether a search has found that few queries are left over
    _centered = 0  # the number of points when their mean was taken

    def __init__(self, points: Tensor) -> None:
        words = -(-points.shape[1] // 4)  # of four features
        self._codes = torch.empty(0, words, TILE, dtype=torch.int32)
        self._numbers = points.new_empty(0, 3, TILE)  # of each point: scale, length, and length of the rest
        self.append(points, 0)

    def append(self, points: Tensor, old_count: int) -> None:
        """Take in the rows from `old_count` on; the others are here already, and stay until they are the fewer."""
        if len(points) >= 2 * self._centered:  # any other point would do in place of the mean, with wider bounds
            self._mean, self._centered, old_count = points.mean(0), len(points), 0
        tiles = -(-len(points) // TILE)
        self._codes, self._numbers = _grown(self._codes, tiles), _grown(self._numbers, tiles)
        self._run("quantize", points, start=old_count)

    def remove(self, points: Tensor, keep: Tensor) -> None:
        """Keep the rows of a mask over the previous points; `points` are those that remain."""
        self._codes, self._numbers = _kept(self._codes, keep), _kept(self._numbers, keep)
        self._run("quantize", points, start=len(points))  # no new ones: the places past the last are marked as empty

    def search(self, points: Tensor, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        """The nearest points by (measured distance, row); rows of -1 for queries whose points are too much alike."""
        distances = query.new_empty(len(query), num_neighbors)
        indices = torch.empty(len(query), num_neighbors, dtype=torch.int64)
        capacity = max(LEAST_POOL, POOL_PER_NEIGHBOR * num_neighbors, min(len(points) // POOLED, MOST_POOL))
        tensors = {"query": query, "distances": distances, "indices": indices}
        if exclude is not None:
            tensors["exclude"] = exclude.long()
        self._run("near", points, tensors, queries=len(query), wanted=num_neighbors, capacity=capacity)
        return Neighbors(distances, indices)

    def bounds(self, points: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds `(Q, N)` of all squared distances, as a search uses them."""
        lower, upper = query.new_empty(2, len(query), len(points))
        self._run("bound", points, {"query": query, "lower": lower, "upper": upper}, queries=len(query))
        return lower, upper

    def _run(self, name: str, points: Tensor, tensors: dict[str, Tensor] | None = None, **sizes: int) -> None:
        count, features = points.shape
        task = native.QuantizedTask(count=count, features=features, threads=torch.get_num_threads(), **sizes)
        own = {"points": points, "mean": self._mean, "codes": self._codes, "numbers": self._numbers}
        native.call(name, points.dtype, task, own | (tensors or {}))


def is_worth_it(points: Tensor, num_neighbors: int) -> bool:
    """Whether bounds find the neighbors in less time than a product with all points, on this processor."""
    found = native.library()
    return (
        found is not None
        and found.quick_products
        and points.dtype == torch.float32
        and points.is_contiguous()
        and LEAST_FEATURES <= points.shape[1] <= MOST_FEATURES
        and points.numel() >= max(LEAST_NUMBERS, LEAST_PER_NEIGHBOR * num_neighbors)
        and num_neighbors * LEAST_SHARE <= len(points)
    )


def _grown(tiles: Tensor, count: int) -> Tensor:
    """With room for more; what is new is not written to."""
    grown = tiles.new_empty(count, *tiles.shape[1:])
    grown[: len(tiles)] = tiles
    return grown


def _kept(tiles: Tensor, keep: Tensor) -> Tensor:
    """The rows of a mask, in tiles again; `tiles` is `(tiles, columns, TILE)`."""
    rows = tiles.transpose(1, 2).reshape(-1, tiles.shape[1])[: len(keep)][keep]
    whole = rows.new_zeros(-(-len(rows) // TILE) * TILE, rows.shape[1])
    whole[: len(rows)] = rows
    return whole.view(-1, TILE, rows.shape[1]).transpose(1, 2).contiguous()
