"""The interface of an index: build, search, append, remove.

An index works on embedded points. It proposes candidates; their distances are then computed by difference and sorted by
(distance, index), here and for every index, so that the order of neighbors never depends on how the search was done.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    INDEX_DTYPES,
    check_alike,
    check_finite,
    check_index_range,
    check_index_tensor,
    check_num_neighbors,
    check_points,
    check_same_features,
    check_tensor,
)
from .._chunking import SEARCH_BYTES, collect, ranges, rows_per_chunk
from .._state import usable
from .._tensors import working_dtype
from ..errors import InputError, InputTypeError, NotFittedError, ShapeError
from . import fused_search
from .selection import order_of, sort_rows, square_root


class Neighbors(NamedTuple):
    """Neighbors of each query, nearest first, ties by lowest index."""

    distances: Tensor  # (Q, M)
    indices: Tensor  # (Q, M) int64


class NeighborIndex(ABC):
    """Base of all indexes. Its points are never pickled or copied along: whoever owns them builds it again."""

    points: Tensor | None = None  # (N, E) in the working dtype
    _version: int = 0  # of `points` when they were indexed

    @property
    def streams(self) -> bool:
        """Whether `points` are only referred to, as they came, and embedded when they are read."""
        return False

    def build(self, points: Tensor) -> NeighborIndex:
        """Index the rows of `points` `(N, E)`; returns the index itself."""
        check_points("points", points)
        check_searchable("points", points)
        points = usable(points.detach()).to(working_dtype(points.dtype))
        self.points = None  # an index whose build fails is not built
        self._build(points)
        self.points, self._version = points, points._version
        return self

    def build_embedded(self, points: Tensor, embed: Callable[[Tensor], Tensor]) -> NeighborIndex:
        """Index `embed(points)`, row by row; what was indexed before is let go first, so that both never coexist."""
        self.release()
        return self.build(embed_in_blocks(points, embed))

    def release(self) -> None:
        """Let go of the points and of all that was made from them; build again before the next search."""
        self.points = None
        self._release()

    def append(self, points: Tensor) -> None:
        """Add rows; they get the indices after the present ones."""
        old = self._built()
        check_points("points", points)
        points = points.detach().to(working_dtype(points.dtype))
        check_alike(points=points, present=old)
        check_same_features("points", points, "the index", old)
        check_searchable("points", points)
        with torch.inference_mode(False):
            grown = torch.cat((old, points))
        self._append(grown, len(old))
        self.points, self._version = grown, grown._version

    def remove(self, indices: Tensor) -> None:
        """Drop rows; the rows after a dropped one move up."""
        old = self._built()
        keep = kept_rows(indices, len(old))
        with torch.inference_mode(False):
            left = old[keep]
        self._remove(left, keep)
        self.points, self._version = left, left._version

    def search(self, query: Tensor, num_neighbors: int, *, exclude: Tensor | None = None) -> Neighbors:
        """The `num_neighbors` nearest rows of each query `(Q, E)`; `exclude` `(Q,)` names one row to leave out of each.

        Shape:
            - query: `(Q, E)`; exclude: `(Q,)`
            - distances and indices: `(Q, M)`
        """
        points = self._built()
        check_points("query", query, maybe_empty=True)
        query = query.detach().to(working_dtype(query.dtype))
        sample = self._sample()
        check_alike(query=query, points=sample)
        check_same_features("query", query, "the index", sample)
        if exclude is not None:
            check_exclude(exclude, query, points.shape[0])
        available = points.shape[0] - (exclude is not None)
        what = "the number of centers" + (" that are not excluded" if exclude is not None else "")
        check_num_neighbors(num_neighbors, available, what=what)
        if len(query) == 0:
            nothing = query.new_empty(0, num_neighbors)
            return Neighbors(nothing, nothing.long())
        check_searchable("query", query, among_themselves=False)
        with torch.no_grad():
            return self._search(query, num_neighbors, exclude)

    @abstractmethod
    def _build(self, points: Tensor) -> None: ...

    @abstractmethod
    def _append(self, points: Tensor, old_count: int) -> None:
        """`points` are all points, of which the first `old_count` are known."""

    @abstractmethod
    def _remove(self, points: Tensor, keep: Tensor) -> None:
        """`points` are those left; `keep` is the mask over the old ones."""

    @abstractmethod
    def _search(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors: ...

    def _release(self) -> None:  # noqa: B027 - most have nothing
        """Let go of what was made from the points."""

    def _sample(self) -> Tensor:
        """Some of the points as they are searched: their dtype, device and features."""
        return self._built()

    def _built(self) -> Tensor:
        if self.points is None:
            raise NotFittedError(f"{type(self).__name__} is not built. Call build(points) first.")
        if self.points._version != self._version:  # the caller has written into the points it gave
            self.build(self.points)
        return self.points

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name in self._settings()}

    def _settings(self) -> tuple[str, ...]:
        """Names of the attributes that are configuration: what is pickled and copied."""
        return ()


def embed_in_blocks(points: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
    """`embed(points)` without a graph; its temporaries are those of one block."""
    size = rows_per_chunk(points.shape[1] * points.element_size(), SEARCH_BYTES // 4)
    first = embed(points[:size])
    if len(first) == len(points):
        return first
    embedded = first.new_empty(len(points), *first.shape[1:])
    embedded[:size] = first
    for chunk in ranges(len(points), size)[1:]:
        embedded[chunk] = embed(points[chunk])
    return embedded


def evenly_spaced_rows(count: int, most: int, device: torch.device) -> Tensor:
    """Row numbers from the first to the last of `count`, all of them or `most`."""
    taken = min(most, count)
    # In integers: float32 would run past the last of more than 2^24 rows.
    return torch.arange(taken, device=device) * (count - 1) // max(1, taken - 1)


def kept_rows(indices: Tensor, count: int) -> Tensor:
    """The mask of the rows that stay when the rows `indices` are removed."""
    check_tensor("indices", indices)
    if indices.dtype not in INDEX_DTYPES or indices.ndim != 1 or len(indices) == 0:
        raise InputTypeError(
            f"indices must be a non-empty 1-D integer tensor of rows to remove, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}. For a mask use mask.nonzero().squeeze(1)."
        )
    check_index_range("indices", indices, count, then="Rows are counted from 0, and move up after a removal.")
    keep = torch.ones(count, dtype=torch.bool, device=indices.device)
    keep[indices.long()] = False
    if not bool(keep.any()):
        raise ShapeError(f"Removing all {count} rows would leave nothing to predict from. Keep at least one.")
    return keep


def check_searchable(name: str, points: Tensor, *, among_themselves: bool = True) -> None:
    """Finite, and squared distances are numbers: not infinite, and not zero between different points.

    Queries may be as small as they like, since they are not compared among themselves.
    """
    low, high = torch.aminmax(points.detach())
    largest = max(-float(low), float(high))
    if not largest < math.inf:  # NaN is both smallest and largest
        check_finite(name, points)
    limits = torch.finfo(working_dtype(points.dtype))
    smallest = limits.tiny**0.5 if among_themselves and largest else -1.0
    if not smallest < largest < (limits.max / points.shape[1]) ** 0.5 / 4:
        raise InputError(
            f"{name} have entries up to {largest:.1e}, whose squares {limits.dtype} cannot hold. "
            "Scale the features, for instance with Standardize, or use float64."
        )


def check_exclude(exclude: Tensor, query: Tensor, num_points: int) -> None:
    check_index_tensor("exclude", exclude, query)
    if exclude.shape != query.shape[:1]:
        raise ShapeError(
            f"exclude must have shape ({len(query)},), one row to leave out for each query, got {tuple(exclude.shape)}."
        )
    check_index_range("exclude", exclude, num_points)


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
    if fused_search.obstacle(query, gathered) is None:  # the same sums as in the compiled search, to the last bit
        return fused_search.squared_distances(query, gathered)
    return gathered.sub_(query.unsqueeze(1)).square_().sum(-1)
