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
from .noise import discoveries

NEAREST = 10  # rows that each is compared with
RATE = 0.1  # of pairs that are near each other by chance
LEAST_DIMENSION = 1.0


class DuplicateGroup(NamedTuple):
    """Rows that are nearly the same, in order, and the different labels that they have."""

    rows: Array
    labels: tuple[object, ...]

    @property
    def disagrees(self) -> bool:
        return len(self.labels) > 1


def near_pairs(points: Tensor, most: float) -> Tensor:
    r"""Pairs `(2, P)` of points that are nearer to each other than chance would have it.

    Among points of local dimension $m$, spread evenly, the nearest is within a share $c$ of the distance of the $K$-th with
    probability $1-(1-c^m)^{K-1}$. The dimension comes from the same distances (Levina and Bickel). Points whose chance is
    small (Benjamini and Hochberg) and whose share is at most `most` are paired with all that are as near.
    """
    count = len(points)
    if count < 3:
        return torch.empty(2, 0, dtype=torch.int64)
    index = ExactIndex()
    index.build(points)
    found = index.search(points, min(NEAREST, count - 1), exclude=torch.arange(count))
    shares = (found.distances / found.distances[:, -1:].clamp_min(torch.finfo(points.dtype).tiny)).double()
    others = shares.shape[1] - 1
    inverse = -shares[:, :-1].clamp_min(1e-12).log().mean(1)
    dimension = max(LEAST_DIMENSION, 1 / max(float(inverse.median()), 1e-12))
    chances = 1 - (1 - shares[:, 0] ** dimension) ** others
    surprising = torch.from_numpy(discoveries(chances.numpy(), RATE)) & (shares[:, 0] <= most)
    if not bool(surprising.any()):
        return torch.empty(2, 0, dtype=torch.int64)
    near = (shares[:, :-1] <= shares[surprising, 0].max()).nonzero()
    return torch.stack((near[:, 0], found.indices[near[:, 0], near[:, 1]]))


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
