"""How many of the true neighbors an index finds."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import check_at_least_one, check_points
from .base import NeighborIndex, evenly_spaced_rows
from .exact import ExactIndex


def recall(index: NeighborIndex, query: Tensor, num_neighbors: int, *, sample: int = 1000) -> float:
    r"""The share of the true `num_neighbors` nearest points that `index` finds, measured on a sample of the queries.

    $$ \frac{1}{|S| M} \sum_{q \in S} |\text{found}(q) \cap \text{exact}(q)| $$

    Equivalent to

        exact = torchkrr.neighbors.nearest(query, index.points, num_neighbors)
        found = index.search(query, num_neighbors).indices
        result = float((found.unsqueeze(2) == exact.unsqueeze(1)).any(2).double().mean())

    Args:
        index: an index that is built; for that of a layer, `layer.index` after a first call.
        query: points as the index sees them: for a layer, `layer.kernel.embed(query)`.
        num_neighbors: as in the search that is to be judged.
        sample: at most so many queries are asked, evenly spaced, since exact search may be slow.

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
    asked = evenly_spaced_rows(len(query), sample, query.device)
    found = index.search(query[asked], num_neighbors).indices
    if index.streams:  # which is exact
        return 1.0
    exact = ExactIndex().build(index._built()).search(query[asked], num_neighbors).indices
    return share_found(found, exact)


def share_found(found: Tensor, exact: Tensor) -> float:
    """The mean share of each row of `exact` `(Q, M)` that is in the same row of `found`."""
    both = torch.cat((found, exact), dim=1).sort(dim=1).values
    return float((both[:, 1:] == both[:, :-1]).sum()) / exact.numel()
