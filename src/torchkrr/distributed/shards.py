"""Who owns which rows.

Rows are numbered shard after shard: those of rank 0 first, then those of rank 1, and so on. So the sizes of the shards say
it all, and rows in order are sorted by owner as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Shards(NamedTuple):
    """How many rows each rank has."""

    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        """The number of the first row of a rank."""
        return sum(self.sizes[:rank])

    def own(self, rank: int) -> slice:
        return slice(self.start(rank), self.start(rank + 1))

    def per_owner(self, rows: Tensor) -> list[int]:
        """How many of the rows `(n,)`, in order, each rank owns."""
        ends = torch.tensor(self.sizes, device=rows.device).cumsum(0)
        upto = torch.searchsorted(rows, ends)
        return upto.diff(prepend=upto.new_zeros(1)).tolist()


def even_shards(count: int, num_ranks: int) -> Shards:
    """`count` rows in shards that differ by one row at most, the larger ones first.

    Example:
        >>> even_shards(10, 4).sizes
        (3, 3, 2, 2)
    """
    each, left = divmod(count, num_ranks)
    return Shards(tuple(each + (rank < left) for rank in range(num_ranks)))


def own_rows(count: int, *, process_group: Any = None) -> slice:
    """Which of `count` rows are this rank's, if they are shared out evenly: `centers[own_rows(len(centers))]`.

    Example:
        >>> with torchkrr.distributed.launched():  # without torchrun one process, which owns all
        ...     own_rows(10)
        slice(0, 10, None)
    """
    shards = even_shards(count, dist.get_world_size(process_group))
    return shards.own(dist.get_rank(process_group))
