r"""Exact search: matrix products, a selection, and an exact ranking of the few that matter.

The inner-product form of a distance is fast but inexact, and `topk` does not break ties by index. So a few candidates more
than requested are taken by the fast form, relative to the mean of the points, and ranked by exact distance. Where a point
that was not a candidate could, within rounding, be as near as the last neighbor, that row is searched again among all
points that close. The result is that of a full sort by (distance, index), however queries and points were chunked.

The compiled search does all of it in cache, where it can be used; otherwise torch does. Where the processor has instructions
for them, and there are enough points, bounds from a copy in 8 bits rule out nearly all points before anything exact is
computed (`quantized.py`). All ways find the same.

`nearest` is exact search in one call, also inside `torch.func`, `torch.compile` and `torch.export`. Neighbors are piecewise
constant, so they have no derivative: autograd sees one step that nothing goes through, and the compiler one operator.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .. import native
from .._checks import check_alike, check_choice, check_finite, check_num_neighbors, check_points, check_same_features
from .._chunking import SEARCH_BYTES, collect, ranges, rows_per_chunk
from .._tensors import WithoutDerivative, full_precision, is_plain, state_of, working_dtype
from ..errors import InputError
from ..kernels import Kernel
from ..kernels.names import check_kernel
from .base import NeighborIndex, Neighbors, order_of, smallest, sort_rows, square_root
from .quantized import QuantizedPoints, is_worth_it

SPARE_CANDIDATES = 8
FEW_QUERIES = 4  # of the compiled search: to compare them by difference takes no longer than to pack the points
QUERIES_AT_A_TIME = 1 << 15
LARGEST_BLOCK = 1 << 15
STRIP = 1 << 10
SMALL_PROBLEM = 1 << 17  # numbers in the differences of all queries with all points
SORTING = 16  # a sort costs as much as that many numbers for each point
ROOM = 2  # a pool is cut back to its candidates when it holds so many times as many
CANDIDATE_BYTES = {torch.float32: 8, torch.float64: 16}
LARGEST_ROW = 2**31 - 1  # rows are numbered in 32 bits
EFFORT, TOGETHER = 8, 32  # so many calls of a query, or of so many queries together, make up for a copy in 8 bits
PROBE = 256  # queries that tell whether 8 bits are enough for these points
MOST_LEFT = 0.25  # of queries, that may take a product as well


class Block(NamedTuple):
    """Consecutive points, shifted by what the index shifts by."""

    start: int  # the row of the first
    points: Tensor  # (B, E)
    squares: Tensor  # (B,): their squared lengths


class ExactIndex(NeighborIndex):
    """Exact nearest neighbors on any device; memory is bounded by a byte budget, whatever Q and N.

    What is guaranteed: the neighbors are the first of a full sort by (distance, index), each distance computed by difference
    in the dtype of the points. None of them is missing, and nothing is among them that does not belong there, however
    queries are divided into calls and shared out over threads. What is left out unseen is ruled out by a bound of its
    distance, and the bounds hold with all rounding inside. Backends differ in the rounding of a distance itself.

    After some queries, on processors with integer products (AVX-512 VNNI, AVX-VNNI), an index of many float32 points keeps
    a copy of them in 8 bits: `N (D + 12)` bytes more, about a quarter of the points. One query then reads these bytes and a
    few of the points. The copy follows `append` and `remove`, goes with `release`, and is never pickled.

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

    _settings = ("backend",)

    def __init__(self, *, backend: native.Backend = "auto") -> None:
        check_choice("backend", backend, ("auto", "fused", "torch"))
        self.backend: native.Backend = backend

    def _build(self, points: Tensor) -> None:
        self._prepare(points)
        self._quantized: QuantizedPoints | None = None
        self._effort, self._lock = 0.0, threading.Lock()

    def _append(self, points: Tensor, old_count: int) -> None:
        self._update(points, lambda quantized: quantized.append(points, old_count))

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        self._update(points, lambda quantized: quantized.remove(points, keep))

    def _update(self, points: Tensor, update: Callable[[QuantizedPoints], None]) -> None:
        quantized, self._quantized = self._quantized, None  # there is none if anything fails
        self._prepare(points)
        if quantized is not None:
            update(quantized)
            self._quantized = quantized

    def _prepare(self, points: Tensor) -> None:
        self._block_rows = block_rows(points.shape[1] * points.element_size(), len(points))
        mean, squares = points.mean(0), torch.linalg.vector_norm(points, dim=1).square_()
        self._shift = shift_of(mean, squares.mean())
        if self._shift is not None:
            shifted = self._shifted(points)
            squares = torch.cat([torch.linalg.vector_norm(block, dim=1).square_() for _, block in shifted])
        self._squares = squares

    def _release(self) -> None:
        for name in ("_squares", "_shift", "_quantized"):
            self.__dict__.pop(name, None)

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        points, fused = self._points(), self._is_fused(query)
        size = len(query) * len(points)
        small = size * query.shape[1] <= SMALL_PROBLEM
        if fused and not small and is_worth_it(points, num_neighbors):
            quantized = self._quantized_for(len(query))
            if quantized is not None:
                return self._by_bounds(quantized, query, num_neighbors, exclude)
        if fused and (small or len(query) <= FEW_QUERIES):
            pool = CandidatePool(query, num_neighbors, exclude)
            return self._checked(Neighbors(*pool.add(0, points, num_neighbors=num_neighbors)))
        if not fused and size * max(query.shape[1], SORTING) <= SMALL_PROBLEM:
            return self._compare_all(query, num_neighbors, exclude)
        return self._by_product(query, num_neighbors, exclude)

    def _quantized_for(self, num_queries: int) -> QuantizedPoints | None:
        """The points in 8 bits, once the queries asked so far, and now, are worth it."""
        self._effort += 1 + num_queries // TOGETHER
        if self._quantized is None and self._effort >= EFFORT:
            with self._lock:
                if self._quantized is None:  # another thread may have made it meanwhile
                    self._quantized = QuantizedPoints(self._points())
        return self._quantized

    def _by_bounds(self, quantized: QuantizedPoints, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        if len(query) > PROBE and not quantized.proven:  # if most of the first are searched in vain, others go another way
            chunks = slice(PROBE), slice(PROBE, None)
            parts = (self.find(query[part], num_neighbors, None if exclude is None else exclude[part]) for part in chunks)
            return Neighbors(*(torch.cat(column) for column in zip(*parts, strict=True)))
        found = quantized.search(self._points(), query, num_neighbors, exclude)
        left = (found.indices[:, 0] < 0).nonzero().squeeze(1)
        if len(left):
            rest = self._by_product(query[left], num_neighbors, None if exclude is None else exclude[left])
            found.distances[left], found.indices[left] = rest.distances, rest.indices
        quantized.proven = len(left) <= MOST_LEFT * len(query)
        if not quantized.proven:
            self._quantized, self._effort = None, -math.inf
        return found

    def _points(self) -> Tensor:
        """The points; `search` has made sure that the index is up to date with them."""
        assert self.points is not None
        return self.points

    def _is_fused(self, query: Tensor) -> bool:
        return native.chosen(self.backend, compiled_obstacle(query, self._points()), "search here")

    def _checked(self, neighbors: Neighbors) -> Neighbors:
        """The same neighbors; raises where some are missing, since the memory of the points was written to."""
        if int(neighbors.indices[:, -1].min()) < 0:
            check_finite("points", self._points())
        return neighbors

    def _by_product(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        available = len(self._points()) - (exclude is not None)
        count = min(num_neighbors + SPARE_CANDIDATES, available)
        shifted = query if self._shift is None else query - self._shift
        neighbors, worst = self._best_of(query, shifted, count, num_neighbors, exclude)
        if count == available:
            return neighbors
        # Scores are squared distances less |query|^2; the last term bounds their rounding error.
        length = torch.linalg.vector_norm(shifted, dim=1)
        reach = neighbors.distances[:, -1]
        units = 2 * float(torch.finfo(query.dtype).eps) * (query.shape[1] ** 0.5 + 8)
        limit = reach.square() - length.square() + units * (2 * length + reach).square()
        doubtful = (worst <= limit).nonzero().squeeze(1)
        for chunk in ranges(len(doubtful), rows_per_chunk(len(self._points()) * query.element_size(), SEARCH_BYTES)):
            rows = doubtful[chunk]
            groups = self._all_within(shifted[rows], limit[rows], None if exclude is None else exclude[rows])
            for group, candidates in groups:
                which = rows[group]
                ranked = rank(query[which], self.take, candidates, num_neighbors)
                neighbors.distances[which], neighbors.indices[which] = ranked
        return neighbors

    def _best_of(
        self, query: Tensor, shifted: Tensor, count: int, num_neighbors: int, exclude: Tensor | None
    ) -> tuple[Neighbors, Tensor]:
        """The nearest of the `count` points with the best scores, and the worst `(Q,)` of these scores."""
        if not self._is_fused(query):
            scores, candidates = self._candidates(shifted, count, exclude)
            return rank(query, self.take, candidates, num_neighbors), scores.amax(1)
        parts = []
        for chunk in ranges(len(query), QUERIES_AT_A_TIME):
            pool = CandidatePool(shifted[chunk], count, None if exclude is None else exclude[chunk])
            for start, points, squares in self._blocks():
                pool.add(start, points, squares)
            parts.append(self._rank_pool(pool, query[chunk], num_neighbors))
        distances, rows, worst = (torch.cat(column) for column in zip(*parts, strict=True))
        return self._checked(Neighbors(distances, rows)), worst

    def _rank_pool(self, pool: CandidatePool, query: Tensor, num_neighbors: int) -> tuple[Tensor, Tensor, Tensor]:
        return pool.rank(num_neighbors, query, self._points())

    def _compare_all(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        """By difference with every point: for few queries and points nothing is quicker."""
        squared = (self._points() - query.unsqueeze(1)).square_().sum(-1)  # (Q, N)
        if exclude is not None:
            squared.scatter_(1, exclude.long().unsqueeze(1), torch.inf)
        rows = order_of(squared)[:, :num_neighbors]
        return Neighbors(square_root(squared.gather(1, rows)), rows)

    def _candidates(self, query: Tensor, count: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        """The `count` best scores `(Q, count)`, in no order, and their rows."""
        # A share of the memory for each worker; below a quarter products would be too thin to be quick.
        budget = SEARCH_BYTES // min(4, torch.get_num_threads())
        memory: deque[Tensor] = deque()  # reused: fresh pages for every product would cost as much as the product

        def add(block: Block, before: tuple[Tensor, Tensor] | None, chunk: slice) -> tuple[Tensor, Tensor]:
            part, needed = query[chunk], (chunk.stop - chunk.start) * len(block.points)
            try:
                buffer = memory.pop()
            except IndexError:  # other threads use all of it
                buffer = query.new_empty(needed)
            buffer = buffer if buffer.numel() >= needed else query.new_empty(needed)
            scores = buffer[:needed].view(len(part), len(block.points))
            _score(part, block, None if exclude is None else exclude[chunk], out=scores)
            values, columns = smallest(scores, min(count, len(block.points)))
            memory.append(buffer)
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
        scores = query.new_empty(len(query), len(self._points()))
        for block in self._blocks():
            _score(query, block, exclude, out=scores[:, block.start : block.start + len(block.points)])
        counts = (scores <= limit.unsqueeze(1)).sum(1)
        # Queries with similarly many close points share a rectangle; sorting keeps one crowded query from widening all.
        order = counts.argsort()
        features = query.shape[1]
        while len(order):
            row_bytes = int(counts[order[-1]]) * features * query.element_size()
            size = rows_per_chunk(row_bytes, SEARCH_BYTES)
            part, order = order[-size:], order[:-size]
            yield part, scores[part].topk(int(counts[part].max()), largest=False).indices

    def _blocks(self) -> Iterator[Block]:
        """The points block by block; a block is overwritten by the next."""
        for start, block in self._shifted(self._points()):
            yield Block(start, block, self._squares[start : start + len(block)])

    def _shifted(self, points: Tensor) -> Iterator[tuple[int, Tensor]]:
        size = self._block_rows
        shift = self._shift
        memory = points.new_empty(0 if shift is None else size, points.shape[1])
        for start in range(0, len(points), size):
            block = points[start : start + size]
            yield start, block if shift is None else torch.sub(block, shift, out=memory[: len(block)])


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
    squared, rows = rank_squared(query, take, candidates, num_neighbors)
    return Neighbors(square_root(squared), rows)


def rank_squared(
    query: Tensor, take: Callable[[Tensor], Tensor], candidates: Tensor, num_neighbors: int
) -> tuple[Tensor, Tensor]:
    """As `rank`, but the squares of the distances: different ones may have equal rounded roots."""
    features = query.shape[1]

    def work(chunk: slice) -> tuple[Tensor, Tensor]:
        ordered = sort_rows(candidates[chunk])
        squared = squared_to(query[chunk], take(ordered.flatten()).view(*ordered.shape, features))
        order = order_of(squared)[:, :num_neighbors]
        return squared.gather(1, order), ordered.gather(1, order)

    row_bytes = 2 * candidates.shape[1] * (features + 4) * query.element_size()
    chunks = ranges(len(query), rows_per_chunk(row_bytes, SEARCH_BYTES // 4))
    squared, rows = collect(work, chunks, query.device)
    return squared, rows


def squared_to(query: Tensor, gathered: Tensor) -> Tensor:
    """Squared distances `(Q, K)` of each query `(Q, E)` to points of its own `(Q, K, E)`, which are overwritten.

    Every index ranks by these numbers, so that lists of different indexes can be merged in one order.
    """
    if compiled_obstacle(query, gathered) is not None:
        return gathered.sub_(query.unsqueeze(1)).square_().sum(-1)
    # The same sums as in the compiled search, to the last bit.
    squared = query.new_empty(gathered.shape[:2])
    _run("measure", {"query": query, "points": gathered}, {"distances": squared}, wanted=gathered.shape[1])
    return squared


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
        return native.NO_MEMORY
    return native.MISSING if native.library() is None else None


class CandidatePool:
    """The `count` best scores for each query, collected block by block; a score is a squared distance less |query|^2."""

    def __init__(self, query: Tensor, count: int, exclude: Tensor | None) -> None:
        self.query, self.exclude = query, None if exclude is None else exclude.long()
        self.sizes = {"count": count, "capacity": ROOM * count}
        self.memory = {
            "pool": torch.empty(len(query), ROOM * count * CANDIDATE_BYTES[query.dtype], dtype=torch.uint8),
            "bound": query.new_full((len(query),), torch.inf),  # only scores below it may enter
            "filled": torch.zeros(len(query), dtype=torch.int64),
        }

    def add(
        self, start: int, points: Tensor, squares: Tensor | None = None, *, num_neighbors: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Compare with `points` `(B, E)`, rows from `start` on, with their squared lengths.

        Without these, points are compared by difference. With `num_neighbors` they are all the points there are: the
        result is the distances and rows `(Q, num_neighbors)` of the nearest.
        """
        inputs = {"query": self.query, "points": points, "squares": squares, "exclude": self.exclude}
        return self._run("compare", inputs, num_neighbors, start=start, block=len(points), exact=squares is None)[:2]

    def rank(
        self, num_neighbors: int, query: Tensor | None = None, points: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Distances and rows `(Q, num_neighbors)` of the nearest candidates, and the worst score `(Q,)` of all.

        Candidates are ranked by their difference from `query`; without points, they come in no order.
        """
        inputs = {"query": self.query if query is None else query, "points": points}
        return self._run("rank", inputs, num_neighbors)

    def _run(
        self, name: str, inputs: dict[str, Tensor | None], num_neighbors: int, **sizes: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(self.query)
        distances, worst = self.query.new_empty(count, num_neighbors), self.query.new_empty(count)
        indices = torch.empty(count, num_neighbors, dtype=torch.int64)
        results = {"distances": distances, "indices": indices, "worst": worst} if num_neighbors else {}
        _run(name, inputs, {**self.memory, **results}, wanted=num_neighbors, **self.sizes, **sizes)
        return distances, indices, worst


def _run(name: str, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor], **sizes: int) -> None:
    tensors = {key: native.plain(tensor) for key, tensor in inputs.items() if tensor is not None}
    count, features = tensors["query"].shape
    pointers = {key: tensor.data_ptr() for key, tensor in (tensors | outputs).items()}
    task = native.SearchTask(queries=count, features=features, threads=torch.get_num_threads(), **pointers, **sizes)
    native.call(name, tensors["query"].dtype, task)


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
        def batch(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        query = batch(query, in_dims[0])
        exclude = None if exclude is None else batch(exclude, in_dims[3])
        if in_dims[1] is None:  # the same centers: all queries at once
            flat = None if exclude is None else exclude.flatten()
            indices = _Nearest.apply(query.flatten(0, 1), centers, num_neighbors, flat)
            return indices.view(*query.shape[:2], num_neighbors), 0
        centers = batch(centers, in_dims[1])
        rows = (None,) * info.batch_size if exclude is None else exclude.unbind()
        each = [_Nearest.apply(*pair, num_neighbors, row) for *pair, row in zip(query, centers, rows, strict=True)]
        return torch.stack(each), 0
