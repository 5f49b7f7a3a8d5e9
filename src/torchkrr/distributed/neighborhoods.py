"""The neighbors of the queries of this rank, brought here: searched over all shards, and their rows fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .exchange import fetch, route_to
from .searching import Shard, nearest_over_ranks, round_size, rounds
from .shards import Shards
from .wire import Wire


class Neighborhood(NamedTuple):
    """Of some of this rank's queries, maybe none."""

    own: slice  # which queries
    rows: Tensor  # (q, M) neighbors, numbered over all shards
    positions: Tensor  # (q, M) where they are in what was fetched
    fetched: tuple[Tensor, ...]  # (u, ...) their rows of the tensors asked for, each once


def neighborhoods(
    query: Tensor,
    counts: list[int],
    most: int,
    shard: Shard,
    shards: Shards,
    wire: Wire,
    *,
    tensors: tuple[Tensor, ...] = (),
    share: float = 1.0,
    exclude: Tensor | None = None,
) -> Iterator[Neighborhood]:
    """For embedded queries `(Q, E)`, in rounds of bounded memory; all ranks go through as many rounds.

    Args:
        counts: queries of each rank.
        most: neighbors of each.
        tensors: this rank's shard of what to fetch rows of; without any, nothing is fetched.
        share: of gradients, see `exchange`.
        exclude: one row, numbered over all shards, to leave out for each query; on all ranks or none.
    """
    row_bytes = sum(tensor.shape[1:].numel() * tensor.element_size() for tensor in tensors)
    size = round_size(row_bytes, most, query.shape[1], query.element_size(), shards)
    for own, each in rounds(counts, size, wire.rank):
        rows = nearest_over_ranks(query[own], each, most + (exclude is not None), shard, shards, wire)
        if exclude is not None:
            rows = _without(rows, exclude[own])
        if not tensors:
            yield Neighborhood(own, rows, rows, ())
            continue
        used, positions = torch.unique(rows, return_inverse=True)
        yield Neighborhood(own, rows, positions, fetch(route_to(used, shards, wire, share=share), *tensors))


def _without(rows: Tensor, exclude: Tensor) -> Tensor:
    """All but the excluded one of each list `(q, M + 1)`, or all but the last where it is not there."""
    keep = rows != exclude.unsqueeze(1)
    keep[keep.all(1), -1] = False
    return rows[keep].view(len(rows), rows.shape[1] - 1)
