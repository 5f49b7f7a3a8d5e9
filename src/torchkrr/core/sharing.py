"""Queries with the same neighbors share one factorization: gridded data, repeated queries, streams."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Floating-point operations, per query, that sharing has to save to be worth its bookkeeping.
WORTHWHILE = 1e5
MIXERS = (-7046029254386353131, -4658895280553007687)  # odd, from the golden ratio and splitmix64


class Shared(NamedTuple):
    """Queries grouped by their set of neighbors."""

    cells: Tensor  # (G, M): the different sets, sorted
    starts: Tensor  # (G + 1,): queries order[starts[g]:starts[g + 1]] have set g
    order: Tensor  # (Q,)
    ranks: Tensor  # (Q, M): where column j of the neighbors of a query is in its sorted set


def shared_cells(indices: Tensor, num_features: int) -> Shared | None:
    """The groups of the rows of `indices` `(Q, M)` with equal sets, or `None` where too few are equal to gain from it."""
    count, neighbors = indices.shape
    factorization = neighbors**2 * num_features + neighbors**3 / 3
    if count < 2 or factorization < WORTHWHILE:
        return None
    # A hash of each set tells, for a hundredth of the price of a factorization, whether to look any further.
    different = len(torch.unique(_hash_of_set(indices)))
    if (1 - different / count) * factorization < WORTHWHILE:
        return None
    ordered, positions = indices.sort(dim=1)
    ranks = torch.empty_like(positions).scatter_(1, positions, torch.arange(indices.shape[1]).expand_as(positions))
    cells, group, counts = torch.unique(ordered, dim=0, return_inverse=True, return_counts=True)
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    return Shared(cells, starts, group.argsort(stable=True), ranks)


def _hash_of_set(indices: Tensor) -> Tensor:
    """One number for each row, whatever the order in it; equal sets have equal numbers. Integers overflow on purpose."""
    mixed = (indices + 1) * MIXERS[0]
    mixed = (mixed ^ (mixed >> 29)) * MIXERS[1]
    return (mixed ^ (mixed >> 32)).sum(1)
