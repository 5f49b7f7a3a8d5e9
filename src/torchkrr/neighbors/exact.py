r"""Exact search in torch: matrix products, `topk`, and an exact ranking of the few that matter.

The inner-product form of a distance is fast but inexact, and `topk` does not break ties by index. So a few candidates more
than asked for are taken by the fast form, relative to the mean of the points, and ranked by exact distance. Where a point
that was not a candidate could, within rounding, be as near as the last neighbor, that row is searched again among all
points that close. The result is that of a full sort by (distance, index), however queries and points were chunked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from .._checks import check_alike, check_finite, check_points, check_same_features
from .._chunking import SEARCH_BYTES, collect, ranges, rows_per_chunk
from .._precision import full_precision
from ..errors import InputError
from ..kernels import Kernel, check_kernel
from .base import NeighborIndex, Neighbors, rank
from .selection import smallest, stable_order

SPARE_CANDIDATES = 8
LARGEST_BLOCK = 1 << 15
STRIP = 1 << 10
SMALL_PROBLEM = 1 << 17  # numbers in the differences of all queries with all points
SORTING = 16  # a sort costs as much as that many numbers for each point


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
    check_points("query", query)
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
        if query.shape != centers.shape or not torch.equal(query, centers):
            raise InputError(
                "exclude_self=True needs query equal to centers, row by row. "
                "For another query set name the row to leave out of each with exclude=."
            )
        exclude = torch.arange(len(query), device=query.device)
    with torch.no_grad():
        if kernel is not None:
            query, centers = kernel.embed(query), kernel.embed(centers)
        return ExactIndex().build(centers).search(query, num_neighbors, exclude=exclude).indices


class ExactIndex(NeighborIndex):
    """Exact nearest neighbors on any device; memory is bounded by a byte budget, whatever Q and N.

    Example:
        >>> index = ExactIndex().build(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[2, 1]])
        >>> index.append(torch.tensor([[2.5]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[3, 2]])
    """

    def _build(self, points: Tensor) -> None:
        mean = points.mean(0)
        spread = points.var(0, correction=0).sum()
        # Points spread about the origin more than they are away from it lose nothing there, and need no copy.
        self._shift = None if float(mean.square().sum()) <= float(spread) else mean
        self._squares = torch.cat([torch.linalg.vector_norm(block, dim=1).square_() for _, block in self._blocks(points)])

    def _append(self, points: Tensor, old_count: int) -> None:
        self._build(points)

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        self._build(points)

    def _search(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        points = self._built()
        if len(query) * max(points.numel(), SORTING * len(points)) <= SMALL_PROBLEM:
            return self._compare_all(query, num_neighbors, exclude)
        available = len(points) - (exclude is not None)
        count = min(num_neighbors + SPARE_CANDIDATES, available)
        shifted = query if self._shift is None else query - self._shift
        scores, candidates = self._candidates(shifted, count, exclude)
        found = rank(query, points, candidates, num_neighbors)
        if count == available:
            return found
        # Scores are squared distances less |query|^2.
        length = torch.linalg.vector_norm(shifted, dim=1)
        reach = found.distances[:, -1]
        limit = reach.square() - length.square() + self._rounding(length, reach)
        doubtful = (scores.amax(1) <= limit).nonzero().squeeze(1)
        for chunk in ranges(len(doubtful), rows_per_chunk(len(points) * points.element_size(), SEARCH_BYTES)):
            rows = doubtful[chunk]
            closest = self._all_within(shifted[rows], limit[rows], None if exclude is None else exclude[rows])
            for part, candidates in closest:
                again = rank(query[rows[part]], points, candidates, num_neighbors)
                found.distances[rows[part]], found.indices[rows[part]] = again
        return found

    def _compare_all(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        """By difference with every point: for few queries and points nothing is quicker."""
        points = self._built()
        squared = (points - query.unsqueeze(1)).square_().sum(-1)  # (Q, N)
        if exclude is not None:
            squared.scatter_(1, exclude.long().unsqueeze(1), torch.inf)
        rows = stable_order(squared)[:, :num_neighbors]
        return Neighbors(squared.gather(1, rows).sqrt_(), rows)

    def _candidates(self, query: Tensor, count: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        """The `count` best scores `(Q, count)`, in no order, and their rows."""
        best, rows = query.new_empty(0, 0), query.new_empty(0, 0)
        # A share of the memory for each worker; below a quarter products would be too thin to be quick.
        budget = SEARCH_BYTES // min(4, torch.get_num_threads())
        memory: deque[Tensor] = deque()  # reused: fresh pages for every product would cost as much as the product
        for start, block in self._blocks(self._built()):

            def work(chunk: slice, start: int = start, block: Tensor = block) -> tuple[Tensor, Tensor]:
                part, needed = query[chunk], (chunk.stop - chunk.start) * len(block)
                try:
                    own = memory.pop()
                except IndexError:
                    own = query.new_empty(needed)
                own = own if own.numel() >= needed else query.new_empty(needed)
                scores = own[:needed].view(len(part), len(block))
                self._score(part, start, block, None if exclude is None else exclude[chunk], out=scores)
                values, columns = smallest(scores, min(count, len(block)))
                memory.append(own)
                columns = columns + start
                if start == 0:
                    return values, columns
                columns = torch.cat((rows[chunk], columns), dim=1)
                values, order = smallest(torch.cat((best[chunk], values), dim=1), min(count, columns.shape[1]))
                return values, columns.gather(1, order)

            size = rows_per_chunk(len(block) * block.element_size(), budget, most=len(query))
            best, rows = collect(work, ranges(len(query), size), query.device)
        return best, rows

    def _all_within(self, query: Tensor, limit: Tensor, exclude: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups of the given queries with every point whose score is within the limit of its query, and maybe more."""
        scores = query.new_empty(len(query), len(self._built()))
        for start, block in self._blocks(self._built()):
            self._score(query, start, block, exclude, out=scores[:, start : start + len(block)])
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

    def _score(self, query: Tensor, start: int, block: Tensor, exclude: Tensor | None, *, out: Tensor) -> None:
        """Squared distances less |query|^2, `(q, B)`."""
        # In strips that stay in the cache: a product as wide as the block took a fifth longer.
        for strip in ranges(len(block), STRIP if out.device.type == "cpu" else len(block)):
            squares = self._squares[start + strip.start : start + strip.stop]
            torch.addmm(squares, query, block[strip].mT, alpha=-2, out=out[:, strip])
        if exclude is not None:
            here = ((exclude >= start) & (exclude < start + len(block))).nonzero().squeeze(1)
            out[here, exclude[here] - start] = torch.inf

    def _blocks(self, points: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Blocks of shifted points with their first row; a block is overwritten by the next."""
        size = rows_per_chunk(points.shape[1] * points.element_size(), SEARCH_BYTES, most=min(LARGEST_BLOCK, len(points)))
        memory = None if self._shift is None else points.new_empty(size, points.shape[1])
        for chunk in ranges(len(points), size):
            block = points[chunk]
            if self._shift is not None and memory is not None:
                block = torch.sub(block, self._shift, out=memory[: len(block)])
            yield chunk.start, block

    def _rounding(self, length: Tensor, reach: Tensor) -> Tensor:
        """Bound on the rounding error of a score, for points within `reach` of a query of the given length."""
        features = self._built().shape[1]
        units = 2 * float(torch.finfo(length.dtype).eps) * (features**0.5 + 8)
        bound: Tensor = units * (2 * length + reach).square()
        return bound
