"""Approximate search by faiss, behind the same interface.

faiss proposes candidates; distances and order come from the points themselves. Rows removed from the middle shift the ones
after them, whatever faiss does with its own numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_at_least_one
from .._extras import import_extra
from ..errors import InputError, SearchError
from .base import NeighborIndex, Neighbors
from .exact import SPARE_CANDIDATES, rank


class FaissIndex(NeighborIndex):
    """Any index that faiss's factory can build, for example `"IVF1024,Flat"` or `"HNSW32"`.

    Neighbors may be missed, but those found are ranked exactly. An index that finds fewer than requested widens its search
    by itself, and raises `SearchError` if even the widest one does not find them.

    Args:
        factory: faiss's index factory string.
        nprobe: inverted lists to visit (IVF indexes).
        ef_search: size of the search front (HNSW indexes).

    Example:
        >>> points = torch.randn(2000, 16)
        >>> FaissIndex("IVF16,Flat", nprobe=4).build(points).search(points[:3], 5).indices[:, 0]
        tensor([0, 1, 2])
    """

    _settings = ("factory", "nprobe", "ef_search")

    def __init__(self, factory: str = "Flat", *, nprobe: int = 32, ef_search: int = 256) -> None:
        check_at_least_one("nprobe", nprobe)
        check_at_least_one("ef_search", ef_search)
        self.factory, self.nprobe, self.ef_search = factory, nprobe, ef_search
        self._faiss = _import_faiss()

    def _build(self, points: Tensor) -> None:
        rows = _rows(points)
        try:
            index = self._faiss.index_factory(points.shape[1], self.factory)
        except RuntimeError as error:
            raise InputError(f"faiss does not know the index {self.factory!r}: {error}") from None
        lists = self._inverted_lists(index)
        if lists is not None and len(rows) < lists.nlist:
            raise InputError(
                f"{self.factory!r} has {lists.nlist} lists but there are only {len(rows)} points. "
                "Use fewer lists (about the square root of the number of points), or ExactIndex."
            )
        if lists is not None:  # as good as faiss's own choice for lists, in a tenth of the time
            lists.cp.niter, lists.cp.max_points_per_centroid = 10, 64
        try:
            index.train(rows)
        except RuntimeError as error:
            raise InputError(f"faiss cannot train {self.factory!r} on {len(rows)} points: {error}") from None
        # Inverted lists carry numbers of their own; everything else needs a map to keep them through removals.
        self._index = index if lists is not None else self._faiss.IndexIDMap2(index)
        self._numbers = np.empty(0, dtype=np.int64)
        self._add(rows)

    def _append(self, points: Tensor, old_count: int) -> None:
        self._add(_rows(points[old_count:]))

    def _add(self, rows: np.ndarray[Any, Any]) -> None:
        first = int(self._numbers[-1]) + 1 if len(self._numbers) else 0
        numbers = np.arange(first, first + len(rows), dtype=np.int64)
        try:
            self._index.add_with_ids(rows, numbers)
        except RuntimeError as error:
            raise InputError(f"faiss cannot add points to {self.factory!r}: {error}") from None
        self._numbers = np.concatenate((self._numbers, numbers))

    def _remove(self, points: Tensor, keep: Tensor) -> None:
        mask = keep.cpu().numpy()
        try:
            self._index.remove_ids(self._numbers[~mask])
        except RuntimeError:  # graph indexes cannot forget
            self._build(points)
            return
        self._numbers = self._numbers[mask]

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        points = self._current_points()
        count = min(num_neighbors + SPARE_CANDIDATES + (exclude is not None), len(points))
        # Missing candidates have a row past the end.
        candidates = torch.full((len(query), count), len(points), dtype=torch.int64)
        missing = np.arange(len(query))
        rows, barred = _rows(query), None if exclude is None else exclude.cpu().numpy()
        for widening in range(64):
            proposed = self._propose(rows[missing], count, 1 << widening)
            if barred is not None:
                proposed[proposed == barred[missing, None]] = len(points)
            candidates[torch.from_numpy(missing)] = torch.from_numpy(proposed)
            missing = missing[(proposed < len(points)).sum(1) < num_neighbors]
            if len(missing) == 0:
                return rank(query, partial(_take, points), candidates.to(query.device), num_neighbors)
            if self._is_exhaustive(1 << widening):
                break
        raise SearchError(
            f"{self.factory!r} finds fewer than {num_neighbors} neighbors for {len(missing)} queries even in its widest "
            "search. Lower num_neighbors, use an index with fewer lists, or ExactIndex."
        )

    def _release(self) -> None:
        self._index = None
        self._numbers = np.empty(0, dtype=np.int64)

    def _propose(self, rows: np.ndarray[Any, Any], count: int, widening: int) -> np.ndarray[Any, Any]:
        """Rows of the points for each query, `len(points)` where faiss found none."""
        lists = self._inverted_lists(self._index)
        if lists is not None:
            lists.nprobe = min(self.nprobe * widening, lists.nlist)
        graph = self._graph()
        if graph is not None:
            graph.hnsw.efSearch = max(self.ef_search, count) * widening
        _, numbers = self._index.search(rows, count)
        proposed: np.ndarray[Any, Any] = np.searchsorted(self._numbers, numbers)
        proposed[numbers < 0] = len(self._numbers)
        return proposed

    def _is_exhaustive(self, widening: int) -> bool:
        lists = self._inverted_lists(self._index)
        if lists is not None:
            return bool(self.nprobe * widening >= lists.nlist)
        return self._graph() is None or self.ef_search * widening >= len(self._numbers)

    def _inverted_lists(self, index: Any) -> Any:
        return self._faiss.try_extract_index_ivf(index)

    def _graph(self) -> Any:
        inner = getattr(self._index, "index", None)
        inner = None if inner is None else self._faiss.downcast_index(inner)
        return inner if hasattr(inner, "hnsw") else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._faiss = _import_faiss()

    def __repr__(self) -> str:
        return f"FaissIndex({self.factory!r})"


def _rows(points: Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(points.detach().to(device="cpu", dtype=torch.float32).numpy())


def _import_faiss() -> Any:
    return import_extra("faiss", "FaissIndex", extra="faiss", instead="ExactIndex gives the exact neighbors without it.")


def _take(points: Tensor, rows: Tensor) -> Tensor:
    """These rows of the points; missing ones are infinitely far, and so ranked behind all others."""
    taken = points.index_select(0, rows.clamp_max(len(points) - 1))
    taken[rows == len(points)] = torch.inf
    return taken
