r"""Exact search: matrix products, a selection, and an exact ranking of the few that matter.

The inner-product form of a distance is fast but inexact, and `topk` does not break ties by index. So a few candidates more
than asked for are taken by the fast form, relative to the mean of the points, and ranked by exact distance. Where a point
that was not a candidate could, within rounding, be as near as the last neighbor, that row is searched again among all
points that close. The result is that of a full sort by (distance, index), however queries and points were chunked.

The compiled search does all of it in cache, where it can be used; otherwise torch does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from .. import native
from .._checks import check_choice, check_finite
from .._chunking import SEARCH_BYTES, collect, ranges, rows_per_chunk
from .._tensors import is_plain
from ..native import NO_MEMORY, Backend, chosen
from .base import NeighborIndex, Neighbors, order_of, smallest, sort_rows, square_root, stable_order

SPARE_CANDIDATES = 8
FEW_QUERIES = 4  # of the compiled search: to compare them by difference takes no longer than to pack the points
QUERIES_AT_A_TIME = 1 << 15
LARGEST_BLOCK = 1 << 15
STRIP = 1 << 10
SMALL_PROBLEM = 1 << 17  # numbers in the differences of all queries with all points
SORTING = 16  # a sort costs as much as that many numbers for each point
# A pool is cut back to the candidates asked for when it holds so many times as many.
ROOM = 2
CANDIDATE_BYTES = {torch.float32: 8, torch.float64: 16}
LARGEST_ROW = 2**31 - 1  # rows are numbered in 32 bits


class Block(NamedTuple):
    """Consecutive points, shifted by what the index shifts by."""

    start: int  # the row of the first
    points: Tensor  # (B, E)
    squares: Tensor  # (B,): their squared lengths


class ExactIndex(NeighborIndex):
    """Exact nearest neighbors on any device; memory is bounded by a byte budget, whatever Q and N.

    Args:
        backend: `"fused"` is compiled and several times faster; `"torch"` runs anywhere; `"auto"` takes the first where it
            can. The same neighbors, up to the rounding of distances.

    Example:
        >>> index = ExactIndex().build(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[2, 1]])
        >>> index.append(torch.tensor([[2.5]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[3, 2]])
    """

    def __init__(self, *, backend: Backend = "auto") -> None:
        check_choice("backend", backend, ("auto", "fused", "torch"))
        self.backend: Backend = backend

    def _settings(self) -> tuple[str, ...]:
        return ("backend",)

    @property
    def _indexed(self) -> Tensor:
        """The points; `search` has made sure that they are indexed as they are now."""
        assert self.points is not None
        return self.points

    def _build(self, points: Tensor) -> None:
        self._block_rows = block_rows(points.shape[1] * points.element_size(), len(points))
        mean, squares = points.mean(0), torch.linalg.vector_norm(points, dim=1).square_()
        self._shift = shift_of(mean, squares.mean())
        if self._shift is not None:
            shifted = self._shifted(points, self._shift)
            squares = torch.cat([torch.linalg.vector_norm(block, dim=1).square_() for _, block in shifted])
        self._squares = squares

    def _append(self, points: Tensor, old_count: int) -> None:
        self._build(points)

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        self._build(points)

    def _release(self) -> None:
        for name in ("_squares", "_shift"):
            self.__dict__.pop(name, None)

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        points = self._indexed
        size = query.shape[0] * points.shape[0]
        if self._is_fused(query):
            if query.shape[0] <= FEW_QUERIES or size * query.shape[1] <= SMALL_PROBLEM:
                return _all_found(Neighbors(*compare_compiled(query, points, num_neighbors, exclude)), points)
            return self._by_product(query, num_neighbors, exclude)
        if size * max(query.shape[1], SORTING) <= SMALL_PROBLEM:
            return self._compare_all(query, num_neighbors, exclude)
        return self._by_product(query, num_neighbors, exclude)

    def _is_fused(self, query: Tensor) -> bool:
        return chosen(self.backend, compiled_obstacle(query, self._indexed), "search here")

    def _by_product(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        points = self._indexed
        available = len(points) - (exclude is not None)
        count = min(num_neighbors + SPARE_CANDIDATES, available)
        shifted = query if self._shift is None else query - self._shift
        found, worst = self._best_of(query, shifted, count, num_neighbors, exclude)
        if count == available:
            return found
        # Scores are squared distances less |query|^2.
        length = torch.linalg.vector_norm(shifted, dim=1)
        reach = found.distances[:, -1]
        limit = reach.square() - length.square() + self._rounding(length, reach, query.shape[1])
        doubtful = (worst <= limit).nonzero().squeeze(1)
        if len(doubtful):
            again = self._without_doubt(query, shifted, limit, doubtful, num_neighbors, exclude)
            for rows, part in again:
                found.distances[rows], found.indices[rows] = part
        return found

    def _best_of(
        self, query: Tensor, shifted: Tensor, count: int, num_neighbors: int, exclude: Tensor | None
    ) -> tuple[Neighbors, Tensor]:
        """The nearest of the `count` points with the best scores, and the worst `(Q,)` of these scores."""
        if not self._is_fused(query):
            scores, candidates = self._candidates(shifted, count, exclude)
            return rank(query, self._take, candidates, num_neighbors), scores.amax(1)

        def work(chunk: slice) -> tuple[Tensor, Tensor, Tensor]:
            pool = Candidates(shifted[chunk], count, None if exclude is None else exclude[chunk])
            for block in self._blocks():
                pool.add(*block)
            return self._ranked(pool, query[chunk], num_neighbors)

        starts = range(0, len(query), QUERIES_AT_A_TIME)
        parts = [work(slice(start, start + QUERIES_AT_A_TIME)) for start in starts]
        distances, rows, worst = (torch.cat(column) for column in zip(*parts, strict=True))
        return _all_found(Neighbors(distances, rows), self._indexed), worst

    def _ranked(self, pool: Candidates, query: Tensor, num_neighbors: int) -> tuple[Tensor, Tensor, Tensor]:
        return pool.ranked(query, self._indexed, num_neighbors)

    def _without_doubt(
        self,
        query: Tensor,
        shifted: Tensor,
        limit: Tensor,
        doubtful: Tensor,
        num_neighbors: int,
        exclude: Tensor | None,
    ) -> Iterator[tuple[Tensor, Neighbors]]:
        """Queries, of those named, and their neighbors among all points that may be near enough."""
        points = self._indexed
        for chunk in ranges(len(doubtful), rows_per_chunk(len(points) * query.element_size(), SEARCH_BYTES)):
            rows = doubtful[chunk]
            closest = self._all_within(shifted[rows], limit[rows], None if exclude is None else exclude[rows])
            for part, candidates in closest:
                yield rows[part], rank(query[rows[part]], self._take, candidates, num_neighbors)

    def _take(self, rows: Tensor) -> Tensor:
        """The points with these row numbers, a copy."""
        return self._indexed.index_select(0, rows)

    def _compare_all(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        """By difference with every point: for few queries and points nothing is quicker."""
        squared = (self._indexed - query.unsqueeze(1)).square_().sum(-1)  # (Q, N)
        if exclude is not None:
            squared.scatter_(1, exclude.long().unsqueeze(1), torch.inf)
        rows = stable_order(squared)[:, :num_neighbors]
        return Neighbors(square_root(squared.gather(1, rows)), rows)

    def _candidates(self, query: Tensor, count: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        """The `count` best scores `(Q, count)`, in no order, and their rows."""
        # A share of the memory for each worker; below a quarter products would be too thin to be quick.
        budget = SEARCH_BYTES // min(4, torch.get_num_threads())
        memory: deque[Tensor] = deque()  # reused: fresh pages for every product would cost as much as the product

        def add(block: Block, before: tuple[Tensor, Tensor] | None, chunk: slice) -> tuple[Tensor, Tensor]:
            part, needed = query[chunk], (chunk.stop - chunk.start) * len(block.points)
            try:
                own = memory.pop()
            except IndexError:  # all of it is in use
                own = query.new_empty(needed)
            own = own if own.numel() >= needed else query.new_empty(needed)
            scores = own[:needed].view(len(part), len(block.points))
            _score(part, block, None if exclude is None else exclude[chunk], out=scores)
            values, columns = smallest(scores, min(count, len(block.points)))
            memory.append(own)
            columns = columns + block.start
            if before is None:
                return values, columns
            values, columns = torch.cat((before[0][chunk], values), dim=1), torch.cat((before[1][chunk], columns), dim=1)
            values, order = smallest(values, min(count, columns.shape[1]))
            return values, columns.gather(1, order)

        best: tuple[Tensor, Tensor] | None = None
        for block in self._blocks():
            size = rows_per_chunk(len(block.points) * query.element_size(), budget, most=len(query))
            best = cast(tuple[Tensor, Tensor], collect(partial(add, block, best), ranges(len(query), size), query.device))
        assert best is not None
        return best

    def _all_within(self, query: Tensor, limit: Tensor, exclude: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups of the given queries with every point whose score is within the limit of its query, and maybe more."""
        scores = query.new_empty(len(query), len(self._indexed))
        for block in self._blocks():
            _score(query, block, exclude, out=scores[:, block.start : block.start + len(block.points)])
        counts = (scores <= limit.unsqueeze(1)).sum(1)
        # Queries with similarly many close points share a rectangle; sorting keeps one crowded query from widening all.
        order = counts.argsort()
        features = query.shape[1]
        while len(order):
            row_bytes = int(counts[order[-1]]) * features * query.element_size()
            part, order = (
                order[-rows_per_chunk(row_bytes, SEARCH_BYTES) :],
                order[: -rows_per_chunk(row_bytes, SEARCH_BYTES)],
            )
            yield part, scores[part].topk(int(counts[part].max()), largest=False).indices

    def _blocks(self) -> Iterator[Block]:
        """The points block by block; a block is overwritten by the next."""
        points = self._indexed
        if self._shift is None:
            size = self._block_rows
            pieces: Iterator[tuple[int, Tensor]] = ((i, points[i : i + size]) for i in range(0, len(points), size))
        else:
            pieces = self._shifted(points, self._shift)
        for start, block in pieces:
            yield Block(start, block, self._squares[start : start + len(block)])

    def _shifted(self, points: Tensor, shift: Tensor) -> Iterator[tuple[int, Tensor]]:
        size = self._block_rows
        memory = points.new_empty(size, points.shape[1])
        for start in range(0, len(points), size):
            block = points[start : start + size]
            yield start, torch.sub(block, shift, out=memory[: len(block)])

    def _rounding(self, length: Tensor, reach: Tensor, features: int) -> Tensor:
        """Bound on the rounding error of a score, for points within `reach` of a query of the given length."""
        units = 2 * float(torch.finfo(length.dtype).eps) * (features**0.5 + 8)
        bound: Tensor = units * (2 * length + reach).square()
        return bound


def _all_found(found: Neighbors, points: Tensor) -> Neighbors:
    if int(found.indices[:, -1].min()) < 0:  # something has written into the memory of the points
        check_finite("points", points)
    return found


def shift_of(mean: Tensor, mean_square: Tensor) -> Tensor | None:
    """What to subtract from points of that mean and mean squared length; nothing costs no copy."""
    # Points spread about the origin more than they are away from it lose nothing there.
    offset = float(mean.square().sum())
    return None if offset <= float(mean_square) - offset else mean


def block_rows(row_bytes: int, most: int) -> int:
    return rows_per_chunk(row_bytes, SEARCH_BYTES, most=min(LARGEST_BLOCK, most))


def _score(query: Tensor, block: Block, exclude: Tensor | None, *, out: Tensor) -> None:
    """Squared distances less |query|^2, `(q, B)`."""
    # In strips that stay in the cache: a product as wide as the block took a fifth longer.
    for strip in ranges(len(block.points), STRIP if out.device.type == "cpu" else len(block.points)):
        torch.addmm(block.squares[strip], query, block.points[strip].mT, alpha=-2, out=out[:, strip])
    if exclude is not None:
        here = ((exclude >= block.start) & (exclude < block.start + len(block.points))).nonzero().squeeze(1)
        out[here, exclude[here] - block.start] = torch.inf


def rank(query: Tensor, take: Callable[[Tensor], Tensor], candidates: Tensor, num_neighbors: int) -> Neighbors:
    """The best of `candidates` `(Q, K)` by distance, computed by difference, then by index.

    `take` gives the points `(n, E)` with row numbers `(n,)`, as a copy.
    """
    features = query.shape[1]

    def work(chunk: slice) -> Neighbors:
        ordered = sort_rows(candidates[chunk])
        squared = squared_to(query[chunk], take(ordered.flatten()).view(*ordered.shape, features))
        order = order_of(squared)[:, :num_neighbors]
        return Neighbors(square_root(squared.gather(1, order)), ordered.gather(1, order))

    row_bytes = 2 * candidates.shape[1] * (features + 4) * query.element_size()
    chunks = ranges(len(query), rows_per_chunk(row_bytes, SEARCH_BYTES // 4))
    return Neighbors(*collect(work, chunks, query.device))


def squared_to(query: Tensor, gathered: Tensor) -> Tensor:
    """Squared distances `(Q, K)` of each query `(Q, E)` to points of its own `(Q, K, E)`, which are overwritten.

    Every index ranks by these numbers, so that lists of different indexes can be merged in one order.
    """
    if compiled_obstacle(query, gathered) is None:  # the same sums as in the compiled search, to the last bit
        return compiled_squared_distances(query, gathered)
    return gathered.sub_(query.unsqueeze(1)).square_().sum(-1)


# The compiled search: products in cache, and a pool of candidates for each query.


def compiled_obstacle(query: Tensor, points: Tensor) -> str | None:
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


def compare_compiled(query: Tensor, points: Tensor, num_neighbors: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
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


def compiled_squared_distances(query: Tensor, gathered: Tensor) -> Tensor:
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
