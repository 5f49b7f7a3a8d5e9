"""From the nearest rows of each shard to the nearest of all.

Every rank has searched its own shard for the queries of all. The lists of a query are merged on their way to its owner, in a
tree: neighboring ranks swap first, each keeping the queries of half of the ranks, then those two apart, and so on. After
log2(R) steps each rank has the final lists of its own queries. A rank sends lists of M entries for half of all queries, then
for a quarter, ...: together R - 1 lists for each query, whatever the number of rows.

Lists are in order of (squared distance, row), and ranks swap in an order in which all rows of one list come before those of
the other; then a stable sort by distance alone breaks ties by row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from ..neighbors.base import order_of
from .shards import Shards
from .wire import Wire


class Nearest(NamedTuple):
    """The nearest rows of some queries, in order."""

    squared: Tensor  # (q, W)
    rows: Tensor  # (q, W) int64, numbered over all shards


class Message(NamedTuple):
    """Lists that one rank sends to another in one step of the tree."""

    source: int
    target: int
    owners: tuple[int, ...]  # of the queries
    covered: range  # shards whose rows are in the lists


@functools.lru_cache
def tree(num_ranks: int) -> tuple[tuple[Message, ...], ...]:
    """The messages of each step.

    Example:
        >>> [[(m.source, m.target) for m in step] for step in tree(4)]
        [[(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 0), (1, 3), (3, 1)]]
    """
    groups, covered = [list(range(num_ranks))], [range(rank, rank + 1) for rank in range(num_ranks)]
    steps = []
    while any(len(group) > 1 for group in groups):
        step: list[Message] = []
        for group in groups:
            even, odd = group[0::2], group[1::2]
            for at, rank in enumerate(even[: len(group) - 1]):
                partner = odd[min(at, len(odd) - 1)]  # of an odd number of ranks the last has none of its own
                step.append(Message(rank, partner, tuple(odd), covered[rank]))
                if at < len(odd):
                    step.append(Message(partner, rank, tuple(even), covered[partner]))
        groups = [half for group in groups for half in (group[0::2], group[1::2]) if half]
        after = list(covered)
        for message in step:
            both = (after[message.target], message.covered)
            after[message.target] = range(min(part.start for part in both), max(part.stop for part in both))
        covered = after
        steps.append(tuple(step))
    return tuple(steps)


def merge_over_ranks(found: Nearest, counts: list[int], most: int, shards: Shards, wire: Wire) -> Nearest:
    """The `most` nearest rows of this rank's queries, from what each rank found in its own shard for all queries.

    Args:
        found: nearest rows of this shard for the queries of all ranks, rank after rank.
        counts: queries of each rank.
        most: how many rows to keep; fewer in a list only where the shards it covers have no more.
    """
    held = {rank: Nearest(*parts) for rank, parts in enumerate(zip(*(part.split(counts) for part in found), strict=True))}
    covered = range(wire.rank, wire.rank + 1)
    for step in tree(wire.size):
        outgoing = {m.target: _joined([held[owner] for owner in m.owners]) for m in step if m.source == wire.rank}
        arriving = [m for m in step if m.target == wire.rank]
        incoming = [_room(found, sum(counts[owner] for owner in m.owners), m.covered, most, shards) for m in arriving]
        received = {m.source: list(room) for m, room in zip(arriving, incoming, strict=True)}
        wire.send({rank: list(part) for rank, part in outgoing.items()}, received, "lists")
        sent = {owner for m in step if m.source == wire.rank for owner in m.owners}
        kept = [owner for owner in held if owner not in sent]
        parts = [(covered, _joined([held[owner] for owner in kept]))]
        parts += [(m.covered, room) for m, room in zip(arriving, incoming, strict=True)]
        parts.sort(key=lambda part: part[0].start)
        merged = _merged([part for _, part in parts], most)
        split = zip(*(part.split([counts[owner] for owner in kept]) for part in merged), strict=True)
        held = {owner: Nearest(*own) for owner, own in zip(kept, split, strict=True)}
        covered = range(parts[0][0].start, parts[-1][0].stop)
    return held[wire.rank]


def _joined(parts: list[Nearest]) -> Nearest:
    return Nearest(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _room(like: Nearest, queries: int, covered: range, most: int, shards: Shards) -> Nearest:
    width = min(most, sum(shards.sizes[rank] for rank in covered))
    return Nearest(like.squared.new_empty(queries, width), like.rows.new_empty(queries, width))


def _merged(parts: list[Nearest], most: int) -> Nearest:
    """Lists whose rows all come before those of the next."""
    parts = [part for part in parts if part.rows.shape[1]] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    squared, rows = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    order = order_of(squared)[:, :most]
    return Nearest(squared.gather(1, order), rows.gather(1, order))
