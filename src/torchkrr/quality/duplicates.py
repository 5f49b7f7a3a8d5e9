"""Rows that are copies of each other, or nearly so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ..estimators.encoding import Array
from ..neighbors import ExactIndex

NEAREST = 10  # rows that each is compared with


class DuplicateGroup(NamedTuple):
    """Rows that are nearly the same, in order, and the different labels that they have."""

    rows: Array
    labels: tuple[object, ...]

    @property
    def disagrees(self) -> bool:
        return len(self.labels) > 1


def near_pairs(points: Tensor, limit: float) -> tuple[Tensor, Tensor, float]:
    """Pairs `(2, P)` of different points nearer than `limit` times the median distance to the nearest.

    Also the distance of each to its nearest `(N,)`, and that median.
    """
    count = len(points)
    if count < 2:
        return torch.empty(2, 0, dtype=torch.int64), torch.full((count,), torch.inf), 0.0
    index = ExactIndex()
    index.build(points)
    own = torch.arange(count)
    found = index.search(points, min(NEAREST, count - 1), exclude=own)
    distances = found.distances
    typical = float(distances[:, 0].median())
    near = (distances < limit * typical).nonzero()
    pairs = torch.stack((near[:, 0], found.indices[near[:, 0], near[:, 1]]))
    return pairs, distances[:, 0], typical


def groups_of_pairs(pairs: Tensor, count: int) -> Array:
    """A number for each of `count` points; those that a chain of pairs connects have the same, `(N,)`."""
    links = coo_array((np.ones(pairs.shape[1]), (pairs[0].numpy(), pairs[1].numpy())), shape=(count, count))
    found: Array = connected_components(links, directed=False)[1]
    return found


def duplicate_groups(group_of_row: Array, labels: Sequence[object] | Array | None) -> list[DuplicateGroup]:
    """Groups of at least two rows: those whose labels differ first, then the larger ones; rows of group -1 are in none."""
    order = np.argsort(group_of_row, kind="stable")
    _, starts = np.unique(group_of_row[order], return_index=True)
    found = []
    for rows in np.split(order, starts[1:]):
        if len(rows) < 2 or group_of_row[rows[0]] < 0:
            continue
        names = () if labels is None else tuple(dict.fromkeys(labels[row] for row in rows.tolist()))
        found.append(DuplicateGroup(rows, names))
    return sorted(found, key=lambda group: (not group.disagrees, -len(group.rows), int(group.rows[0])))
