"""Exact search among points that are read block by block, such as those of a memory-mapped file larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .._checks import check_alike, check_finite, check_points, check_same_features, check_searchable
from .._chunking import ranges
from .._tensors import working_dtype
from .base import Neighbors, Rows, evenly_spaced_rows, kept_rows
from .exact import Block, CandidatePool, ExactIndex, block_rows, rank, shift_of

SAMPLE_ROWS = 1024


class StreamedIndex(ExactIndex):
    """Exact nearest neighbors that store only a reference to the points, and read them in every search.

    For points that do not fit into memory, as `torch.from_numpy(numpy.memmap(...))` or `torch.from_file(...)`: a search
    embeds and compares one block after the other, in memory bounded by a byte budget. It finds what `ExactIndex` finds. The
    points are read once for every 32,768 queries, and again for queries whose last neighbor ties with others, so pass many
    queries at a time. Nothing derived from the points is cached, so changes of the file take effect; each block is checked
    to be finite as it is read.

    In a layer, `LocalKernelRidge(centers, values, kernel=kernel, index=StreamedIndex())`, neither centers nor values are
    copied, and the kernel embeds each block on the fly. Give the kernel: the default one is fitted on all centers at once.

    Example:
        >>> index = StreamedIndex().build(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[2, 1]])
    """

    @property
    def streams(self) -> bool:
        return True

    def build(self, points: Tensor) -> StreamedIndex:
        """Search among the rows of `points` `(N, D)` as they are; only a sample is read."""
        return self.build_embedded(points, _identity)

    def build_embedded(self, points: Tensor, embed: Callable[[Tensor], Tensor]) -> StreamedIndex:
        """Search among `embed(points)`, which is computed block by block in every search."""
        check_points("points", points)
        self.points = None
        self._embed = embed
        with torch.inference_mode(False), torch.no_grad():
            rows = evenly_spaced_rows(len(points), SAMPLE_ROWS, points.device)
            sample = embed(points.detach().index_select(0, rows))
        check_searchable("points", sample)
        self._row = sample[:1]
        self._shift = shift_of(sample.mean(0), sample.square().sum(1).mean())
        self.points = points.detach()
        return self

    def append(self, points: Tensor) -> None:
        """Add rows, not embedded; this makes a copy of all points in memory."""
        old = self._current_points()
        check_points("points", points)
        check_alike(points=points, present=old)
        check_same_features("points", points, "the index", old)
        check_finite("points", points)
        with torch.inference_mode(False):
            self.build_embedded(torch.cat((old, points.detach())), self._embed)

    def remove(self, indices: Rows) -> None:
        """Drop rows; this makes a copy of the others in memory."""
        old = self._current_points()
        with torch.inference_mode(False):
            self.build_embedded(old[kept_rows(indices, len(old), old.device)], self._embed)

    def _current_points(self) -> Tensor:
        return super()._current_points() if self.points is None else self.points

    def _sample(self) -> Tensor:
        self._current_points()
        return self._row

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        return self._by_product(query, num_neighbors, exclude)

    def _rank_pool(self, pool: CandidatePool, query: Tensor, num_neighbors: int) -> tuple[Tensor, Tensor, Tensor]:
        _, candidates, worst = pool.rank(pool.sizes["count"])
        return *rank(query, self.take, candidates, num_neighbors), worst

    def take(self, rows: Tensor) -> Tensor:
        with torch.no_grad():  # grad mode is per thread, and this may run in a worker
            return self._embed(self._points().index_select(0, rows))

    def _blocks(self) -> Iterator[Block]:
        points = self._points()
        row_bytes = max(points.shape[1], self._row.shape[1]) * self._row.element_size()
        for chunk in ranges(len(points), block_rows(row_bytes, len(points))):
            block = self._embed(points[chunk])
            check_searchable("points", block)
            block = block if self._shift is None else block - self._shift
            yield Block(chunk.start, block, torch.linalg.vector_norm(block, dim=1).square_())


def _identity(points: Tensor) -> Tensor:
    return points.to(working_dtype(points.dtype))
