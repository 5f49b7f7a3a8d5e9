"""Exact search by the compiled library: products in cache, and a pool of candidates for each query."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import native
from .._tensors import is_plain
from ..native import NO_MEMORY

# A pool is cut back to the candidates asked for when it holds so many times as many.
ROOM = 2
CANDIDATE_BYTES = {torch.float32: 8, torch.float64: 16}
LARGEST_ROW = 2**31 - 1  # rows are numbered in 32 bits


def obstacle(query: Tensor, points: Tensor) -> str | None:
    """Why the compiled search cannot be used, or `None` if it can."""
    if query.device.type != "cpu":
        return f"it works on the CPU, and the points are on {query.device}"
    if query.dtype not in CANDIDATE_BYTES:
        return f"it works in float32 and float64, and the points are {query.dtype}"
    if points.shape[0] > LARGEST_ROW:
        return f"it takes at most {LARGEST_ROW:,} points"
    if not is_plain(query, points):
        return NO_MEMORY
    return native.MISSING if native.library() is None else None


def exactly(query: Tensor, points: Tensor, num_neighbors: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distances and rows `(Q, M)` of the nearest points, by difference with every point."""
    found = _empty(query, num_neighbors)
    _compare(_new_pool(query, num_neighbors), query, 0, points, None, exclude, exact=True, found=found)
    return found["distances"], found["indices"]


class Candidates:
    """The `count` best scores for each query, found block by block; a score is a squared distance less |query|^2."""

    def __init__(self, query: Tensor, count: int, exclude: Tensor | None) -> None:
        self._query, self._count, self._exclude = query, count, exclude
        self._pool = _new_pool(query, count)

    def add(self, start: int, points: Tensor, squares: Tensor) -> None:
        """Compare with `points` `(B, E)`, rows from `start` on, with their squared lengths."""
        _compare(self._pool, self._query, start, points, squares, self._exclude, exact=False)

    def ranked(self, query: Tensor, points: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
        """Distances and rows `(Q, wanted)` of the nearest candidates, by difference, and the worst score `(Q,)` of all."""
        return _ranked(self._pool, query, points, wanted)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Rows `(Q, count)` of the candidates, and the worst score `(Q,)`."""
        _, rows, worst = _ranked(self._pool, self._query, None, self._count)
        return rows, worst


def squared_distances(query: Tensor, gathered: Tensor) -> Tensor:
    """Of each query `(Q, E)` to points of its own `(Q, K, E)`, by difference: `(Q, K)`."""
    result = query.new_empty(gathered.shape[:2])
    tensors = {"query": native.plain(query), "points": native.plain(gathered), "distances": result}
    _run("measure", query, tensors, wanted=gathered.shape[1])
    return result


class _Pool(NamedTuple):
    """Candidates of each query, kept from block to block."""

    memory: Tensor  # (Q, capacity) candidates, as bytes
    bound: Tensor  # (Q,): only scores below it may enter
    filled: Tensor  # (Q,) int64
    kept: int  # candidates that are never dropped
    capacity: int


def _new_pool(query: Tensor, count: int) -> _Pool:
    capacity = ROOM * count
    return _Pool(
        torch.empty(query.shape[0], capacity * CANDIDATE_BYTES[query.dtype], dtype=torch.uint8),
        query.new_full((query.shape[0],), torch.inf),
        torch.zeros(query.shape[0], dtype=torch.int64),
        count,
        capacity,
    )


def _compare(
    pool: _Pool,
    query: Tensor,
    start: int,
    points: Tensor,
    squares: Tensor | None,
    exclude: Tensor | None,
    *,
    exact: bool,
    found: dict[str, Tensor] | None = None,
) -> None:
    """Let the points enter the pool; if these are all, `found` receives the best, by their scores."""
    tensors = {"query": native.plain(query), "points": native.plain(points), **(found or {})}
    if squares is not None:
        tensors["squares"] = native.plain(squares)
    if exclude is not None:
        tensors["exclude"] = exclude.long().contiguous()
    wanted = 0 if found is None else found["indices"].shape[1]
    _run("compare", query, tensors, pool, start=start, block=points.shape[0], exact=exact, wanted=wanted)


def _ranked(pool: _Pool, query: Tensor, points: Tensor | None, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
    found = _empty(query, wanted)
    tensors = {"query": native.plain(query), **found}
    if points is not None:
        tensors["points"] = native.plain(points)
    _run("rank", query, tensors, pool, wanted=wanted)
    return found["distances"], found["indices"], found["worst"]


def _empty(query: Tensor, wanted: int) -> dict[str, Tensor]:
    """What the library writes: distances and rows `(Q, wanted)` of the nearest, and the worst score `(Q,)` of all."""
    count = query.shape[0]
    return {
        "distances": query.new_empty(count, wanted),
        "indices": torch.empty(count, wanted, dtype=torch.int64),
        "worst": query.new_empty(count),
    }


def _run(name: str, query: Tensor, tensors: dict[str, Tensor], pool: _Pool | None = None, **sizes: int) -> None:
    task = native.SearchTask(
        **{key: tensor.data_ptr() for key, tensor in tensors.items()},
        queries=query.shape[0],
        features=query.shape[1],
        threads=torch.get_num_threads(),
        **sizes,
    )
    if pool is not None:
        task.pool, task.bound, task.filled = (part.data_ptr() for part in pool[:3])
        task.count, task.capacity = pool.kept, pool.capacity
    native.call(name, query.dtype, task)
