"""Exact search among points that are read block by block, such as those of a memory-mapped file larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .._checks import check_alike, check_finite, check_points, check_same_features, check_searchable
from .._chunking import ranges
from .._tensors import working_dtype
from .base import Neighbors, evenly_spaced_rows, kept_rows
from .exact import Block, Candidates, ExactIndex, block_rows, rank, shift_of

SAMPLE_ROWS = 1024


class StreamedIndex(ExactIndex):
    """Exact nearest neighbors that keep nothing but a reference to the points, and read them in every search.

    For points that do not fit into memory, as `torch.from_numpy(numpy.memmap(...))` or `torch.from_file(...)`: a search
    embeds and compares one block after the other, in memory bounded by a byte budget. It finds what `ExactIndex` finds. The
    points are read once for every 32,768 queries, and again for queries whose last neighbor ties with others, so ask for
    many queries at a time. Nothing derived from the points is kept, hence a file that changes is followed; each block is
    checked to be finite as it is read.

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
        """Search among the rows of `points` `(N, D)` as they are; nothing is read but a sample."""
        return self.build_embedded(points, _as_they_are)

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
        old = self._built()
        check_points("points", points)
        check_alike(points=points, present=old)
        check_same_features("points", points, "the index", old)
        check_finite("points", points)
        with torch.inference_mode(False):
            self.build_embedded(torch.cat((old, points.detach())), self._embed)

    def remove(self, indices: Tensor) -> None:
        """Drop rows; this makes a copy of the others in memory."""
        old = self._built()
        with torch.inference_mode(False):
            self.build_embedded(old[kept_rows(indices, len(old))], self._embed)

    def _built(self) -> Tensor:
        return super()._built() if self.points is None else self.points

    def _sample(self) -> Tensor:
        self._built()
        return self._row

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        return self._by_product(query, num_neighbors, exclude)

    def _ranked(self, pool: Candidates, query: Tensor, num_neighbors: int) -> tuple[Tensor, Tensor, Tensor]:
        candidates, worst = pool.rows()
        return *rank(query, self._take, candidates, num_neighbors), worst

    def _take(self, rows: Tensor) -> Tensor:
        with torch.no_grad():  # a worker does not know that the search has no gradient
            return self._embed(self._built().index_select(0, rows))

    def _blocks(self) -> Iterator[Block]:
        points = self._built()
        row_bytes = max(points.shape[1], self._row.shape[1]) * self._row.element_size()
        for chunk in ranges(len(points), block_rows(row_bytes, len(points))):
            block = self._embed(points[chunk])
            check_searchable("points", block)
            block = block if self._shift is None else block - self._shift
            yield Block(chunk.start, block, torch.linalg.vector_norm(block, dim=1).square_())


def _as_they_are(points: Tensor) -> Tensor:
    return points.to(working_dtype(points.dtype))
