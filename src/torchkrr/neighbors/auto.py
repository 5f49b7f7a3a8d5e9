"""An index that chooses how to search, by the number of points, of features and of expected queries, and says why.

Exact search is quick for longer than one may think: its time grows with N, but a product of matrices is what a processor
does best. Where it is not quick enough, inverted lists are tried on a sample of the points themselves; where these would
have to visit too many lists, as for points without any structure, exact search stays, or a graph is built if there are
so many queries that its slow construction pays. The constants are measured by `benchmarks/search.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import native
from .._checks import check_at_least_one, check_points, check_positive
from ..errors import InputError, InputTypeError, MissingExtraError
from .base import NeighborIndex, Neighbors, Rows, evenly_spaced_rows
from .exact import ExactIndex
from .faiss_index import FaissIndex
from .streamed import StreamedIndex

QUICK_ENOUGH = 2.0  # seconds of exact search for all expected queries, beyond what inverted lists take to build
GROWTH = 4  # the choice is made anew after the number of points has changed by this factor
SAMPLE, SAMPLE_NEIGHBORS = 200, 100
WIDEST = 8  # inverted lists cost about as much as exact search if more than one in eight is visited


class Choice(NamedTuple):
    """How an `AutoIndex` searches, and why."""

    search: str  # "exact", "streamed", or what faiss calls it with its effort, for instance "IVF1024, nprobe 16"
    reason: str

    def __str__(self) -> str:
        return f"{self.search}: {self.reason}"


class AutoIndex(NeighborIndex):
    """Chooses exact search, inverted lists (IVF) or a graph (HNSW) when it is built, and states its choice.

    Layers take `index="auto"` for it. Exact search is chosen while it takes less than about two seconds more than inverted
    lists take to be built (some 300,000 points of 32 features at 10,000 queries), on accelerators, and without faiss.
    Otherwise inverted lists are built and their effort is raised until the recall, measured on 200 of the points, is
    reached. Where the embedded points would not fit into half of the memory, a layer streams its centers
    (`StreamedIndex`).

    Args:
        num_queries: how many queries are expected until the points change.
        recall: share of the true neighbors that an approximate search has to find.

    Attributes:
        choice: what was chosen and why; `None` until it is built. It is made anew when the number of points has
            changed by a factor of four.

    Example:
        >>> index = AutoIndex().build(torch.randn(1000, 8))
        >>> print(index.choice)  # doctest: +ELLIPSIS
        exact: N = 1,000, D = 8: 10,000 queries take about 0.0... s
    """

    _settings = ("num_queries", "recall")
    choice: Choice | None = None
    _index: NeighborIndex | None = None  # the chosen one
    _chosen_at: int = 0  # number of points

    def __init__(self, *, num_queries: int = 10_000, recall: float = 0.95) -> None:
        check_at_least_one("num_queries", num_queries)
        check_positive("recall", recall)
        if recall > 1:
            raise InputError(f"recall must be at most 1, a share of the true neighbors, got {recall}.")
        self.num_queries = num_queries
        self.recall = recall

    @property
    def streams(self) -> bool:
        return self._index is not None and self._index.streams

    def build_embedded(self, points: Tensor, embed: Callable[[Tensor], Tensor]) -> NeighborIndex:
        needed, limit = points.numel() * points.element_size(), memory_size() // 2
        if not limit or needed <= limit:
            return super().build_embedded(points, embed)
        self.release()
        self._index = StreamedIndex().build_embedded(points, embed)
        self.points = self._index.points
        self.choice = Choice("streamed", f"the points take {needed >> 20:,} MB, more than half of the memory")
        return self

    def append(self, points: Tensor) -> None:
        if not self.streams:
            return super().append(points)
        self._chosen().append(points)
        self.points = self._chosen().points

    def remove(self, indices: Rows) -> None:
        if not self.streams:
            return super().remove(indices)
        self._chosen().remove(indices)
        self.points = self._chosen().points

    def _build(self, points: Tensor) -> None:
        self._release()
        self._index, self.choice = _choose(points, self.num_queries, self.recall)
        self._chosen_at = len(points)

    def _append(self, points: Tensor, old_count: int) -> None:
        self._update(points, lambda index: index._append(points, old_count))

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        self._update(points, lambda index: index._remove(points, keep))

    def _update(self, points: Tensor, update: Callable[[NeighborIndex], None]) -> None:
        if not self._chosen_at / GROWTH <= len(points) <= self._chosen_at * GROWTH:
            self._build(points)
            return
        index = self._chosen()
        update(index)
        index.points, index._version = points, points._version

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        return self._chosen().find(query, num_neighbors, exclude)

    def take(self, rows: Tensor) -> Tensor:
        return self._chosen().take(rows)

    def _chosen(self) -> NeighborIndex:
        assert self._index is not None  # `points` are there only with it
        return self._index

    def _current_points(self) -> Tensor:
        return self._chosen()._current_points() if self.streams else super()._current_points()

    def _sample(self) -> Tensor:
        self._current_points()
        return self._chosen()._sample()

    def _release(self) -> None:
        self._index, self.choice = None, None

    def __repr__(self) -> str:
        return "AutoIndex()" if self.choice is None else f"AutoIndex({self.choice})"


def index_from(index: NeighborIndex | Literal["auto"] | None) -> NeighborIndex:
    """What a layer was given as `index`: `None` is exact search, `"auto"` an `AutoIndex`."""
    if index is None:
        return ExactIndex()
    if isinstance(index, str) and index == "auto":
        return AutoIndex()
    if not isinstance(index, NeighborIndex):
        got = repr(index) if isinstance(index, str) else type(index).__name__
        raise InputTypeError(
            f'index must be a torchkrr.neighbors index, "auto" or None, got {got}. '
            'For an index of faiss use torchkrr.neighbors.FaissIndex, for instance FaissIndex("IVF1024,Flat").'
        )
    return index


def exact_seconds(num_points: int, num_features: int, num_queries: int) -> float:
    """About what exact search takes on two cores: a selection and a product for each pair."""
    found = native.library()
    selection, product = (2.0, 0.016) if found is None else (0.3, 0.003 if found.quick_products else 0.016)
    return num_queries * num_points * (selection + product * num_features) * 1e-9


def lists_seconds(num_points: int) -> float:
    """About what inverted lists take to build on two cores."""
    return 2e-6 * num_points


def graph_seconds(num_points: int, num_features: int, num_queries: int) -> float:
    """About what a graph takes on two cores, construction included."""
    return num_points * 1e-4 * max(1.0, num_features / 64) + num_queries * 5e-4


def _choose(points: Tensor, num_queries: int, least_recall: float) -> tuple[NeighborIndex, Choice]:
    """The index, built, and what was chosen."""
    count, features = points.shape
    exact = ExactIndex().build(points)
    seconds = exact_seconds(count, features, num_queries)
    size = f"N = {count:,}, D = {features}"
    takes = f"{size}: {num_queries:,} queries take about {seconds:.2g} s"
    if points.device.type != "cpu":
        return exact, Choice("exact", f"{size}: on {points.device.type}")
    if seconds <= QUICK_ENOUGH + lists_seconds(count):
        return exact, Choice("exact", takes)
    lists = 1 << round(math.log2(count) / 2)
    try:
        candidates = [(FaissIndex(f"IVF{lists},Flat"), "nprobe", max(1, lists // 128), max(1, lists // WIDEST))]
    except MissingExtraError:
        return exact, Choice("exact", f'{takes}, and faiss is not installed: pip install "torchkrr[faiss]"')
    if 2 * graph_seconds(count, features, num_queries) < seconds:
        candidates.append((FaissIndex("HNSW32"), "ef_search", 128, 2048))
    rows = evenly_spaced_rows(count, SAMPLE, points.device)
    neighbors = min(SAMPLE_NEIGHBORS, count - 1)
    truth = exact.search(points[rows], neighbors, exclude=rows).indices
    failures = ""
    for index, effort, first, last in candidates:
        index.build(points)
        for step in range((last // first).bit_length()):  # each effort is twice the one before
            setattr(index, effort, first << step)
            share = _recall(index.search(points[rows], neighbors, exclude=rows).indices, truth)
            if share >= least_recall:
                name = f"{index.factory.removesuffix(',Flat')}, {effort} {first << step}"
                return index, Choice(name, f"{size}: recall {share:.3f} on {SAMPLE} of the points{failures}")
        tried = f"one list in {WIDEST}" if effort == "nprobe" else "a graph"
        failures = f"; {tried} has a recall of {share:.2f}"
    return exact, Choice("exact", f"{takes}, but {failures[2:]}")


def memory_size() -> int:
    """Bytes of memory of this machine, 0 if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def recall(index: NeighborIndex, query: Tensor, num_neighbors: int, *, sample: int = 1000) -> float:
    r"""The share of the true `num_neighbors` nearest points that `index` finds, measured on a sample of the queries.

    $$ \frac{1}{|S| M} \sum_{q \in S} |\text{index}(q) \cap \text{exact}(q)| $$

    Equivalent to

        exact = torchkrr.neighbors.nearest(query, index.points, num_neighbors)
        approximate = index.search(query, num_neighbors).indices
        result = float((approximate.unsqueeze(2) == exact.unsqueeze(1)).any(2).double().mean())

    Args:
        index: an index that is built; for that of a layer, `layer.index` after a first call.
        query: points as the index sees them: for a layer, `layer.kernel.embed(query)`.
        num_neighbors: as in the search that is to be judged.
        sample: at most this many queries are searched, evenly spaced, since exact search may be slow.

    Shape:
        - query: `(Q, E)`; output: a number in [0, 1]

    Example:
        >>> points = torch.randn(5000, 8)
        >>> index = torchkrr.neighbors.FaissIndex("IVF64,Flat", nprobe=64).build(points)
        >>> recall(index, torch.randn(100, 8), 10)
        1.0
    """
    check_points("query", query)
    check_at_least_one("sample", sample)
    query = query[evenly_spaced_rows(len(query), sample, query.device)]
    approximate = index.search(query, num_neighbors).indices
    if index.streams:  # which is exact
        return 1.0
    exact = ExactIndex().build(index._current_points()).search(query, num_neighbors).indices
    return _recall(approximate, exact)


def _recall(approximate: Tensor, exact: Tensor) -> float:
    """The mean share of each row of `exact` `(Q, M)` that is in the same row of `approximate`."""
    both = torch.cat((approximate, exact), dim=1).sort(dim=1).values
    return float((both[:, 1:] == both[:, :-1]).sum()) / exact.numel()
