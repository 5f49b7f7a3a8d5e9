r"""Training rows, and the different points among them.

Rows that agree in every feature are one center: with ridge $\lambda/w_i$ for row $i$, copies of a point predict exactly
what one center with the sum $w$ of their weights, the mean of their values and ridge $\lambda/w$ predicts. So a weight of
two is a row given twice and a weight of zero is a row left out, repeated rows make nothing singular, and leaving one out
leaves its copies out too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


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
    return Centers(torch.from_numpy(different), totals / sums.unsqueeze(1), sums, of_row)
