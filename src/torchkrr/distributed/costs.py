r"""What a prediction costs: bytes on the wire and operations, for each query.

With $R$ ranks, $N$ centers in all, $M$ neighbors, $D$ features ($E$ when embedded), $C$ outputs, $s$ bytes per number, and
$u \le M$ different rows fetched per query (neighbors that queries of a rank share in one round travel once):

| what travels | bytes per query, all ranks together |
|---|---|
| queries, to all | $(R-1)\,E\,s$ |
| lists of the nearest rows, in a tree | $(R-1)\,M\,(s+8)$ |
| numbers of the rows that are asked for | $(1-\tfrac1R)\,8u$ |
| these rows | $(1-\tfrac1R)\,u\,(D+C)\,s$ |
| gradients, back to the owners, of $G$ learned columns | $(1-\tfrac1R)\,u\,G\,s$ |

$N$ is in none of them. It assumes that rows are spread over ranks whatever their place, and shards of at least M rows.
"""

from __future__ import annotations

from typing import NamedTuple

ROW_NUMBER = 8  # bytes


class Traffic(NamedTuple):
    """Bytes that a query makes ranks send, all of them together."""

    queries: float
    lists: float
    requests: float
    rows: float
    gradients: float

    @property
    def total(self) -> float:
        return sum(self)


def traffic_per_query(
    num_ranks: int,
    num_neighbors: int,
    num_features: int,
    num_outputs: int,
    *,
    embedded_features: int | None = None,
    element_size: int = 4,
    different_rows: float | None = None,
    learned_columns: int = 0,
) -> Traffic:
    """The model of this file.

    Args:
        embedded_features: $E$; `None` is as many as features.
        element_size: $s$: 4 for float32, 8 for float64.
        different_rows: $u$; `None` is its bound, as for queries without common neighbors.
        learned_columns: $G$: features, outputs or both of what is learned; 0 without a backward pass.

    Example:
        >>> traffic_per_query(4, 100, 32, 1).total
        14484.0
    """
    embedded = num_features if embedded_features is None else embedded_features
    rows = num_neighbors if different_rows is None else different_rows
    away = rows * (1 - 1 / num_ranks)  # that some other rank owns
    return Traffic(
        queries=(num_ranks - 1) * embedded * element_size,
        lists=(num_ranks - 1) * num_neighbors * (element_size + ROW_NUMBER),
        requests=away * ROW_NUMBER,
        rows=away * (num_features + num_outputs) * element_size,
        gradients=away * learned_columns * element_size,
    )


class Operations(NamedTuple):
    """Multiplications and additions for each query, all ranks together."""

    search: float  # each rank does its part of them, on its own shard
    solve: float  # on the rank of the query


def operations_per_query(num_centers: int, num_neighbors: int, num_features: int, num_outputs: int) -> Operations:
    """Of exact search and a local solve without gradients.

    Example:
        >>> operations_per_query(1_000_000, 100, 32, 1)
        Operations(search=64000000, solve=653533.3333333333)
    """
    solve = num_neighbors**2 * num_features + num_neighbors**3 / 3 + 2 * num_neighbors * num_outputs
    return Operations(2 * num_centers * num_features, solve)
