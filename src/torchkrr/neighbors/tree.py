"""Exact search in few dimensions by scipy's k-d tree."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._extras import import_extra
from .base import NeighborIndex, Neighbors
from .exact import SPARE_CANDIDATES, rank

TIE = 1e-6  # relative difference of distances within which a point may be as near as another, in whatever precision
QUERIES_AT_A_TIME = 1 << 16


class TreeIndex(NeighborIndex):
    """Exact nearest neighbors by a k-d tree: for points of few features, up to about eight, and many of them.

    A search takes time that grows with the logarithm of the number of points, but with the exponential of the number of
    features; `ExactIndex` compares all points, whatever they are. Both find the same. It needs scipy.

    Args:
        leaf_size: points of a leaf of the tree, which are compared one by one.

    Example:
        >>> index = TreeIndex().build(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> index.search(torch.tensor([[2.6]]), 2).indices
        tensor([[2, 1]])
    """

    _settings = ("leaf_size",)

    def __init__(self, *, leaf_size: int = 16) -> None:
        self.leaf_size = leaf_size
        self._tree: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tree = None

    def _build(self, points: Tensor) -> None:
        spatial = import_extra("scipy.spatial", "TreeIndex", extra="sklearn", instead="ExactIndex works without it.")
        # Without a median the tree is built in half the time, and searched as fast.
        self._tree = spatial.cKDTree(_array(points), leafsize=self.leaf_size, balanced_tree=False, compact_nodes=True)

    def _release(self) -> None:
        self._tree = None

    def find(self, query: Tensor, num_neighbors: int, exclude: Tensor | None = None) -> Neighbors:
        self._current_points()
        parts = [
            self._find_some(part, num_neighbors, None if exclude is None else exclude[start : start + len(part)])
            for start, part in zip(range(0, len(query), QUERIES_AT_A_TIME), query.split(QUERIES_AT_A_TIME), strict=True)
        ]
        distances, indices = zip(*parts, strict=True)
        return Neighbors(torch.cat(distances), torch.cat(indices))

    def _find_some(self, query: Tensor, num_neighbors: int, exclude: Tensor | None) -> Neighbors:
        points = self._current_points()
        distances = query.new_empty(len(query), num_neighbors)
        indices = torch.empty(len(query), num_neighbors, dtype=torch.int64, device=query.device)
        missing, count = torch.arange(len(query), device=query.device), num_neighbors + SPARE_CANDIDATES
        while len(missing):
            count = min(count, len(points))
            some = query[missing]
            far, proposed = self._tree.query(_array(some), k=np.arange(1, count + 1), workers=torch.get_num_threads())
            candidates, reach = torch.from_numpy(proposed).long().to(query.device), torch.from_numpy(far[:, -1])
            if exclude is not None:
                candidates[candidates == exclude[missing, None]] = len(points)
            found = rank(some, partial(_take, points), candidates, num_neighbors)
            distances[missing], indices[missing] = found.distances, found.indices
            if count == len(points):
                break
            # A point that was not proposed may be as near as the last neighbor, with a lower number.
            doubtful = found.distances[:, -1].cpu().double() >= reach * (1 - TIE)
            missing, count = missing[doubtful.to(missing.device)], 2 * count
        return Neighbors(distances, indices)

    def __repr__(self) -> str:
        return f"TreeIndex(leaf_size={self.leaf_size})"


def _array(points: Tensor) -> np.ndarray[Any, Any]:
    return points.detach().cpu().double().numpy()


def _take(points: Tensor, rows: Tensor) -> Tensor:
    """These rows of the points; excluded ones are infinitely far, and so ranked behind all others."""
    taken = points.index_select(0, rows.clamp_max(len(points) - 1))
    taken[rows == len(points)] = torch.inf
    return taken
