r"""Training rows, and the different points among them.

Rows that agree in every feature are one center: with ridge $\lambda/w_i$ for row $i$, copies of a point predict exactly
what one center with the sum $w$ of their weights, the mean of their values and ridge $\lambda/w$ predicts. So a weight of
two is a row given twice and a weight of zero is a row left out, repeated rows make nothing singular, and leaving one out
leaves its copies out too.

How far the values of copies lie apart is noise, whatever the function is: each center keeps the squares of what its values
differ from their mean, and how many of its rows are free to differ. Where the values of all copies agree, they may be one
observation written several times, or a weight, and none is free; unless there are so few points that nothing else is known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..tuning.leave_one_out import sample_rows

FEW_POINTS = 10
ROUNDING = 1e-12  # of values, in parts of the largest


class Rows(NamedTuple):
    """What was given, row by row, in order."""

    points: Tensor  # (n, D)
    values: Tensor  # (n, C)
    weights: Tensor  # (n,) float64

    def append(self, other: Rows) -> Rows:
        return Rows(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def keep(self, mask: Tensor) -> Rows:
        return Rows(*(tensor[mask] for tensor in self))


class Centers(NamedTuple):
    """The different points, in lexicographic order, so that nothing depends on the order of the rows."""

    points: Tensor  # (N, D)
    values: Tensor  # (N, C) float64, weighted means
    weights: Tensor  # (N,) float64, sums
    of_row: Tensor  # (n,) the center of each row, -1 for rows of weight zero
    scatter: Tensor  # (N, C) float64, weighted squares of the differences between the values and their mean
    freedom: Tensor  # (N,) float64, rows but one

    def some(self, which: Tensor | slice) -> Centers:
        """Some of the centers, which rows they are of forgotten."""
        points, values, weights, scatter, freedom = (
            tensor[which] for tensor in (self.points, self.values, self.weights, self.scatter, self.freedom)
        )
        return Centers(points, values, weights, self.of_row[:0], scatter, freedom)


class Sample(NamedTuple):
    """Centers to leave out, and some of the rows of those that stand for several."""

    which: Tensor  # (n,)
    centers: Centers
    values: Tensor  # (m, C) of rows
    weights: Tensor  # (m,)
    of_row: Tensor  # (m,) places in `which`
    counts: Tensor  # (m,) how many rows each stands for; together the freedom of the centers


def different_points(rows: Rows) -> Centers:
    used = rows.weights > 0
    points = rows.points[used].numpy() + 0.0  # minus zero is zero
    different, inverse = np.unique(points, axis=0, return_inverse=True)
    index = torch.from_numpy(np.asarray(inverse).reshape(-1))
    count = len(different)
    weights = rows.weights[used]
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, index, weights)
    values = rows.values[used].double() * weights.unsqueeze(1)
    totals = torch.zeros(count, values.shape[1], dtype=torch.float64).index_add_(0, index, values)
    of_row = torch.full((len(rows.points),), -1, dtype=torch.int64)
    of_row[used] = index
    means = totals / sums.unsqueeze(1)
    given = rows.values[used].double()
    apart = given - means[index]
    # What is left of equal values after rounding is no difference.
    apart = torch.where(apart.abs() > ROUNDING * given.abs().amax(0), apart, 0.0)
    scatter = torch.zeros_like(means).index_add_(0, index, weights.unsqueeze(1) * apart.square())
    told = count < FEW_POINTS or bool(scatter.any())
    freedom = (sums - 1).clamp_min(0) if told else torch.zeros_like(sums)
    return Centers(torch.from_numpy(different), means, sums, of_row, scatter, freedom)


def sample_of(rows: Rows, centers: Centers, which: Tensor, most: int, seed: int) -> Sample:
    """The centers `which`, and at most `most` rows of those whose copies tell about the noise."""
    place = torch.full((len(centers.points) + 1,), -1, dtype=torch.int64)  # the last for rows of weight zero
    place[which] = torch.arange(len(which))
    told = torch.cat((centers.freedom > 0, torch.zeros(1, dtype=torch.bool)))
    known = ((place[centers.of_row] >= 0) & told[centers.of_row]).nonzero().squeeze(1)
    chosen = known[sample_rows(len(known), most, seed, torch.device("cpu"))]
    of_row, weights, own = place[centers.of_row[chosen]], rows.weights[chosen], centers.some(which)
    counts = weights * own.freedom[of_row] / own.weights[of_row]
    if len(chosen):
        counts = counts * (len(known) / len(chosen))
    return Sample(which, own, rows.values[chosen].double(), weights, of_row, counts)
