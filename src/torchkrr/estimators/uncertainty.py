r"""Standard deviations and intervals from leave-one-out residuals, for any mixture of members.

As in `torchkrr.tuning.intervals`, but from a sample of the rows that is kept: the scale $s$ at a query follows the residuals
of the sampled rows nearest to it, drawn towards those of all. An observation has the variance $s^2\epsilon^2 + \nu$ with the
power function $\epsilon$. Its noise $\nu$ is $s^2\lambda$ where every row is different and they are more than a few. Where
rows are repeated their values tell it directly, and the more of them there are, the less the ridge, chosen for the sake of
the mean, counts. A few rows tell nothing about it: then it is drawn towards the variance of the values.

A center that stands for several rows is left out with all of them. Leaving out one row of weight one only, the others, of
weight $w - 1$ and mean $m'$, are given back to what the other centers predict, a mean $\mu$ with squared power function $q$:

$$ \mu + g\,(m' - \mu), \qquad g = \frac{q}{q + \lambda/(w-1)}, \qquad \epsilon^2 = g\lambda/(w-1). $$
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.stats import t as student
from torch import Tensor

from ..neighbors import nearest
from .members import Found, Member, Solved, mixed
from .rows import Sample

SAMPLES = 2000
NEARBY = 30
PRIOR = 10.0  # weight of all residuals in the scale at a query, in rows
PER_CENTER = 0.02  # what a center left out tells about the noise, in repeated rows: hardly anything but where to begin
NOTHING_KNOWN = 0.3  # weight of the variance of the values in the noise, divided by the number of centers
SMALLEST = 1e-30
FEWEST = 3  # centers of which one is left out: two say nothing about each other


class LeftOutRows(NamedTuple):
    """What is predicted for sampled centers without them, and for sampled rows without one of their copies."""

    centers: Found
    rows: Found


def leave_out(sample: Sample, solved: Sequence[Solved], members: Sequence[Member], count: int) -> LeftOutRows:
    """Of `count` centers in all."""
    if count > 1:
        found = [one.left_out(sample.which) for one in solved]
    else:  # nothing is known without it
        found = [Found(sample.centers.values, torch.full_like(sample.centers.weights, math.inf)) for _ in solved]
    rows = [_without_one(member.ridge, part, sample) for member, part in zip(members, found, strict=True)]
    return LeftOutRows(mixed(members, found), mixed(members, rows))


def _without_one(ridge: float, found: Found, sample: Sample) -> Found:
    weights, values = sample.centers.weights[sample.of_row], sample.centers.values[sample.of_row]
    one = sample.weights.clamp_max(1.0)
    rest = weights - one
    mean = (weights.unsqueeze(1) * values - one.unsqueeze(1) * sample.values) / rest.unsqueeze(1)
    power = (found.variance - ridge / sample.centers.weights).clamp_min(0)[sample.of_row]
    gain = (1 / (1 + ridge / rest / power)).nan_to_num(0.0)
    others = found.mean.double()[sample.of_row]
    return Found(others + gain.unsqueeze(1) * (mean - others), gain * ridge / rest + ridge)


class Residuals(NamedTuple):
    points: Tensor  # (n, E) embedded, in the metric of the first member
    sizes: Tensor  # (n, C) |r|
    spreads: Tensor  # (n,) sqrt(v)
    scatter: Tensor  # (n, C) as of centers
    freedom: Tensor  # (n,)
    ridge: float  # the mean of the members
    nearby: int
    scores: Tensor  # (m, C) normalized residuals, sorted
    counts: Tensor  # (m, C) how many residuals there are up to each

    def std(self, embedded: Tensor, variance: Tensor) -> Tensor:
        """Deviations `(Q, C)` of observations at queries `(Q, E)`, whose variances `(Q,)` are in units of the scale."""
        return self.std_from(nearest(embedded, self.points, self.nearby), variance)

    def std_from(
        self, indices: Tensor, variance: Tensor, rows: Tensor | float = 1.0, known: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """As `std`, of the means of so many rows `(Q,)`, from residuals `(Q, K)`, less the scatter and freedom `known`."""
        sizes = self.sizes[indices].sum(1) + PRIOR * self.sizes.mean(0)
        spreads = self.spreads[indices].sum(1) + PRIOR * self.spreads.mean()
        scale = (math.sqrt(math.pi / 2) * sizes / spreads.unsqueeze(1)).clamp_min(SMALLEST).square()
        power = (variance - self.ridge / rows).clamp_min(0)
        noise = self._noise(indices, self.ridge * scale, known)
        return (scale * power.unsqueeze(1) + noise / torch.as_tensor(rows).reshape(-1, 1)).sqrt()

    def _noise(self, indices: Tensor, tied: Tensor, known: tuple[Tensor, Tensor] | None) -> Tensor:
        """A mean of `tied` `(Q, C)`, of what repeated rows tell, and of the variance of the values, which is one.

        On a logarithmic scale, since each of them may be off by far, weighted by how much each is known.
        """
        total, count = float(self.freedom.sum()), len(self.points)
        prior = min(PRIOR, total)
        freedom = self.freedom[indices].sum(1, keepdim=True) + prior
        scatter = self.scatter[indices].sum(1) + prior / max(total, 1.0) * self.scatter.sum(0)
        if known is not None:
            scatter, freedom = scatter - known[0], freedom - known[1]
        within = scatter.clamp_min(0) / freedom.clamp_min(SMALLEST)
        logs = freedom * within.clamp_min(SMALLEST**2).log() + PER_CENTER * count * tied.clamp_min(SMALLEST**2).log()
        return torch.exp(logs / (freedom + PER_CENTER * count + NOTHING_KNOWN / count))

    def quantile(self, coverage: float) -> Tensor:
        """How many standard deviations an interval reaches, `(C,)`.

        With too few residuals for the coverage it is that of Student's distribution, and no less than the largest of them.
        """
        known = float(self.counts[-1, 0]) if len(self.counts) else 0.0
        rank = math.ceil((known + 1) * coverage - 1e-9)
        if rank <= known:
            at = (self.counts < rank - 1e-9).sum(0, keepdim=True)
            return self.scores.gather(0, at.clamp_max(len(self.scores) - 1)).squeeze(0)
        reach = torch.full_like(self.sizes[0], float(student.ppf((1 + coverage) / 2, max(1.0, known))))
        return torch.maximum(reach, self.scores[-1]) if len(self.scores) else reach


def residuals_at(sample: Sample, solved: Sequence[Solved], members: Sequence[Member], count: int) -> Residuals:
    """Of a sample of `count` centers."""
    centers = sample.centers
    points = members[0].kernel.embed(centers.points)
    ridge = sum(member.share * member.ridge for member in members)
    left_out = leave_out(sample, solved, members, count)
    few = count < FEWEST
    if few:  # nothing to leave out: as uncertain as the spread of the values
        sizes, spreads = torch.ones_like(centers.values), torch.ones_like(centers.weights)
    else:
        sizes = (left_out.centers.mean.double() - centers.values).abs()
        spreads = left_out.centers.variance.clamp_min(1e-12).sqrt()
    nearby = len(points) if few else min(NEARBY, max(1, len(points) // 4))
    known = Residuals(points, sizes, spreads, centers.scatter, centers.freedom, ridge, nearby, sizes[:0], sizes[:0])
    scores, counts = [_row_scores(known, sample, left_out.rows)], [sample.counts]
    if not few:
        # Its own residual takes no part in the scale of a row.
        own = nearest(points, points, nearby, exclude=torch.arange(len(points)))
        scores.append(sizes / known.std_from(own, spreads.square(), centers.weights).clamp_min(SMALLEST))
        counts.append(torch.ones(len(points), dtype=torch.float64))
    ordered, order = torch.cat(scores).sort(0)
    return known._replace(scores=ordered, counts=torch.cat(counts)[order].cumsum(0))


def _row_scores(known: Residuals, sample: Sample, rows: Found) -> Tensor:
    """Of sampled rows, each left out of what the others of its center tell about the noise."""
    near = nearest(known.points, known.points, known.nearby)[sample.of_row]
    inside = (near == sample.of_row.unsqueeze(1)).any(1, keepdim=True).double()
    weights, one = sample.centers.weights[sample.of_row], sample.weights.clamp_max(1.0)
    apart = sample.values - sample.centers.values[sample.of_row]
    scatter = (one * weights / (weights - one)).unsqueeze(1) * apart.square()
    std = known.std_from(near, rows.variance, 1.0, (inside * scatter, inside * one.unsqueeze(1)))
    return (rows.mean - sample.values).abs() / std.clamp_min(SMALLEST)
