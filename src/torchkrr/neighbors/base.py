"""The interface of an index: build, search, append, remove.

An index works on embedded points. It proposes candidates; their distances are then computed by difference and sorted by
(distance, index), here and for every index, so that the order of neighbors never depends on how the search was done.
"""

from __future__ import annotations

import contextlib
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import (
    INDEX_DTYPES,
    check_alike,
    check_index_range,
    check_index_tensor,
    check_num_neighbors,
    check_points,
    check_same_features,
    check_searchable,
    check_tensor,
)
from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from .._state import usable
from .._tensors import working_dtype
from ..errors import InputError, InputTypeError, NotFittedError, ShapeError

GROUP = 4
Rows = int | Sequence[int] | Sequence[bool] | Tensor


class Neighbors(NamedTuple):
    """Neighbors of each query, nearest first, ties by lowest index."""

    distances: Tensor  # (Q, M)
    indices: Tensor  # (Q, M) int64


class NeighborIndex(ABC):
    """Base of all indexes. Its points are never pickled or copied along: whoever owns them builds it again."""

    points: Tensor | None = None  # (N, E) in the working dtype
    _version: int = 0  # of `points` when they were indexed
    _settings: tuple[str, ...] = ()  # names of the attributes that are pickled and copied

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
        """Index `embed(points)`, row by row. The previous points are released first, so that both never coexist."""
        self.release()
        return self.build(embed_in_blocks(points, embed))

    def release(self) -> None:
        """Free the points and everything computed from them; build again before the next search."""
        self.points = None
        self._release()

    def append(self, points: Tensor) -> None:
        """Add rows; they get the indices after the present ones."""
        old = self._current_points()
        check_points("points", points)
        points = points.detach().to(working_dtype(points.dtype))
        check_alike(points=points, present=old)
        check_same_features("points", points, "the index", old)
        check_searchable("points", points)
        with torch.inference_mode(False):
            points = torch.cat((old, points))
        self._append(points, len(old))
        self.points, self._version = points, points._version

    def remove(self, indices: Rows) -> None:
        """Drop rows; the rows after a dropped one move up."""
        old = self._current_points()
        keep = kept_rows(indices, len(old), old.device)
        with torch.inference_mode(False):
            points = old[keep]
        self._remove(points, keep)
        self.points, self._version = points, points._version

    def search(self, query: Tensor, num_neighbors: int, *, exclude: Tensor | None = None) -> Neighbors:
        """The `num_neighbors` nearest rows of each query `(Q, E)`; `exclude` `(Q,)` names one row to leave out of each.

        Shape:
            - query: `(Q, E)`; exclude: `(Q,)`
            - distances and indices: `(Q, M)`
        """
        points = self._current_points()
        check_points("query", query, maybe_empty=True)
        query = query.detach().to(working_dtype(query.dtype))
        sample = self._sample()
        check_alike(query=query, points=sample)
        check_same_features("query", query, "the index", sample)
        what = "the number of centers"
        if exclude is not None:
            what += " that are not excluded"
            expected = f"({len(query)},), one row to leave out for each query"
            check_index_tensor("exclude", exclude, query, (len(query),), expected)
            check_index_range("exclude", exclude, len(points))
        check_num_neighbors(num_neighbors, len(points) - (exclude is not None), what=what)
        if len(query) == 0:
            nothing = query.new_empty(0, num_neighbors)
            return Neighbors(nothing, nothing.long())
        check_searchable("query", query, among_themselves=False)
        with torch.no_grad():
            return self.find(query, num_neighbors, exclude)

    def take(self, rows: Tensor) -> Tensor:
        """The points with these row numbers `(n,)` as they are searched, a copy."""
        assert self.points is not None
        return self.points.index_select(0, rows)

    @abstractmethod
    def _build(self, points: Tensor) -> None: ...

    def _append(self, points: Tensor, old_count: int) -> None:
        """Index all `points`, of which the first `old_count` are indexed already."""
        self._build(points)

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        """Index the remaining `points`; `keep` is their mask among the previous ones."""
        self._build(points)

    @abstractmethod
    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        """As `search`, for a caller that has checked its arguments: rows without a graph, in the dtype of the points."""

    def _release(self) -> None:  # noqa: B027 - some have nothing
        """Free what was computed from the points."""

    def _sample(self) -> Tensor:
        """Some of the points as they are searched: their dtype, device and features."""
        return self._current_points()

    def _current_points(self) -> Tensor:
        """The points, indexed again if the caller has written into them."""
        if self.points is None:
            raise NotFittedError(f"{type(self).__name__} is not built. Call build(points) first.")
        if self.points._version != self._version:
            self.build(self.points)
        return self.points

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._settings}


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


def row_numbers(indices: Rows, count: int) -> Tensor:
    """Rows named by a number, a list of numbers, a mask `(count,)` or an index tensor, as `(n,)` int64."""
    if isinstance(indices, numbers.Integral) and not isinstance(indices, bool):
        indices = [int(indices)]
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # what is no list of numbers is named below
        indices = torch.as_tensor(indices, dtype=None if len(indices) else torch.int64)  # type: ignore[arg-type]
    check_tensor("indices", indices)
    rows: Tensor = indices  # type: ignore[assignment]
    if rows.dtype == torch.bool and rows.shape == (count,):
        return rows.nonzero().squeeze(1)
    if rows.dtype not in INDEX_DTYPES or rows.ndim != 1:
        raise InputTypeError(
            "indices must be a row number, a 1-D list or tensor of row numbers, or a boolean mask of shape "
            f"({count},), got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    check_index_range("indices", rows, count, then="Rows are counted from 0, and move up after a removal.")
    return rows.long()


def kept_rows(indices: Rows, count: int, device: torch.device, *, maybe_none: bool = False) -> Tensor:
    """The mask of the rows that stay when the rows `indices` are removed."""
    rows = row_numbers(indices, count).to(device)
    if not len(rows):
        raise InputError("indices name no row to remove. Give at least one.")
    keep = torch.ones(count, dtype=torch.bool, device=device)
    keep[rows] = False
    if not maybe_none and not bool(keep.any()):
        raise ShapeError(f"Removing all {count} rows would leave nothing to predict from. Keep at least one.")
    return keep


# On a CPU numpy selects and sorts several times faster than torch, and releases the interpreter while it does.


def smallest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest of each row of `scores` `(q, B)`, in no particular order, and their columns."""
    if _array(scores) is None:
        values, columns = scores.topk(count, largest=False, sorted=False)
        return values, columns
    columns = _smallest_columns(scores, count)
    return scores.gather(1, columns), columns


def _smallest_columns(scores: Tensor, count: int) -> Tensor:
    rows, width = scores.shape
    if count == width:
        return torch.arange(width).expand(rows, width)
    if width <= 3 * GROUP * count:
        return torch.from_numpy(np.argpartition(scores.numpy(), count - 1, axis=1))[:, :count]
    # The `count` smallest lie in the `count` groups whose own smallest entries are smallest. Column j is in group j modulo
    # the number of groups, so that minima are taken over whole stretches of memory.
    groups = width // GROUP
    grouped = scores[:, : GROUP * groups].unflatten(1, (GROUP, groups))
    best = _smallest_columns(grouped.amin(1), count)  # (q, count)
    columns = (best.unsqueeze(1) + groups * torch.arange(GROUP).unsqueeze(1)).flatten(1)
    left_over = torch.arange(GROUP * groups, width).expand(rows, -1)
    columns = torch.cat((columns, left_over), dim=1)
    return columns.gather(1, _smallest_columns(scores.gather(1, columns), count))


def sort_rows(rows: Tensor) -> Tensor:
    """Each row of integers in order."""
    array = _array(rows)
    return rows.sort(dim=1).values if array is None else torch.from_numpy(np.sort(array, axis=1))


def order_of(values: Tensor) -> Tensor:
    """The columns of each row of `values` `(q, K)` in order of value, equal ones by column."""
    array = _array(values)
    if array is None:
        return values.argsort(dim=1, stable=True)
    order = np.argsort(array, axis=1)
    ordered = np.take_along_axis(array, order, axis=1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    # A stable sort costs three times as much, and few rows need it.
    if tied.any():
        order[tied] = np.argsort(array[tied], axis=1, kind="stable")
    return torch.from_numpy(order)


def square_root(values: Tensor) -> Tensor:
    """As `torch.sqrt`, which wakes all threads even for a handful of numbers."""
    array = _array(values)
    return values.sqrt() if array is None else torch.from_numpy(np.sqrt(array))


def _array(values: Tensor) -> np.ndarray[Any, Any] | None:
    """The same numbers for numpy; `None` on another device, and inside `torch.func`, whose tensors have no memory."""
    if values.device.type != "cpu":
        return None
    try:
        return values.numpy()
    except RuntimeError:
        return None
