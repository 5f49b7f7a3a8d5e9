r"""Standard deviations and intervals from leave-one-out residuals, for any mixture of members.

As in `torchkrr.tuning.intervals`, but from a sample of the rows that is kept: the scale at a query follows the residuals of
the sampled rows nearest to it, drawn towards those of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..neighbors import nearest
from .members import Member, Solved, mixed

SAMPLES = 2000
NEARBY = 30
PRIOR = 10.0  # weight of all residuals in the scale at a query, in rows
SMALLEST = 1e-30


class Residuals(NamedTuple):
    points: Tensor  # (n, E) embedded, in the metric of the first member
    sizes: Tensor  # (n, C) |r|
    spreads: Tensor  # (n,) sqrt(v)
    scores: Tensor  # (n, C) normalized residuals, sorted
    nearby: int

    def scale(self, embedded: Tensor) -> Tensor:
        """`(Q, C)` for queries `(Q, E)`."""
        return self._scale_of(nearest(embedded, self.points, self.nearby))

    def _scale_of(self, indices: Tensor) -> Tensor:
        sizes = self.sizes[indices].sum(1) + PRIOR * self.sizes.mean(0)
        spreads = self.spreads[indices].sum(1) + PRIOR * self.spreads.mean()
        return (math.sqrt(math.pi / 2) * sizes / spreads.unsqueeze(1)).clamp_min(SMALLEST)

    def quantile(self, coverage: float) -> Tensor:
        """How many standard deviations an interval reaches, `(C,)`; infinite where too few residuals are known."""
        rank = math.ceil((len(self.scores) + 1) * coverage - 1e-9)
        return self.scores[rank - 1] if rank <= len(self.scores) else torch.full_like(self.scores[0], math.inf)


def residuals_at(
    which: Tensor, points: Tensor, values: Tensor, solved: Sequence[Solved], members: Sequence[Member]
) -> Residuals:
    """Of the centers `which`, whose points and values are given."""
    points = members[0].kernel.embed(points)
    if len(which) < 3:  # nothing to leave out: as uncertain as the spread of the values
        sizes = torch.ones(len(which), values.shape[1], dtype=torch.float64)
        return Residuals(points, sizes, torch.ones(len(which), dtype=torch.float64), sizes, len(which))
    means, variances = mixed(members, [one.left_out(which) for one in solved])
    sizes = (means.double() - values).abs()
    spreads = variances.clamp_min(1e-12).sqrt()
    nearby = min(NEARBY, max(1, len(which) // 4))
    known = Residuals(points, sizes, spreads, sizes[:0], nearby)
    # Its own residual takes no part in the scale of a row.
    own = nearest(points, points, nearby, exclude=torch.arange(len(points)))
    scale = known._scale_of(own)
    return known._replace(scores=(sizes / (scale * spreads.unsqueeze(1))).sort(0).values)
