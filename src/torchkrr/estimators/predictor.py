"""What a fitted estimator predicts with: its rows, and the members solved on them when something is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..neighbors import nearest
from ..tuning.leave_one_out import sample_rows
from .columns import Array
from .explaining import rows_behind
from .members import Member, Solved, mixed, neighbors_of, solve
from .rows import ROUNDING, Centers, Rows, Sample, different_points, sample_of
from .uncertainty import SAMPLES, Residuals, residuals_at

EXPLAINED_AT_ONCE = 256  # queries
EXPLAINED_WEIGHTS = 4_000_000  # of all centers, at once


class Predictor:
    """Rows, members, and the unit of the values; solved lazily, and anew after rows came or went.

    Values are kept less `offset` and divided by `unit`, so that nothing depends on where they lie.
    """

    def __init__(self, rows: Rows, members: tuple[Member, ...], offset: Tensor, unit: Tensor, seed: int) -> None:
        self.rows, self.members, self.offset, self.unit, self.seed = rows, members, offset, unit, seed
        self.centers: Centers | None = None
        self._solved: list[Solved] | None = None
        self._residuals: Residuals | None = None

    def append(self, rows: Rows) -> None:
        self.check_whole()
        self._changed(self.rows.append(rows))

    def forget(self, which: Tensor) -> None:
        keep = torch.ones(len(self.rows.points), dtype=torch.bool)
        keep[which] = False
        left = self.rows.keep(keep)
        if not bool((left.weights > 0).any()):
            raise InputError("Forgetting these rows would leave none. Keep at least one row of positive weight.")
        self._changed(left)

    def check_whole(self) -> None:
        """That every row is here, for whatever needs them all; a predictor that holds a part of them raises."""

    def _changed(self, rows: Rows) -> None:
        self.rows = rows
        self.centers = self._solved = self._residuals = None

    def sampled(self) -> Tensor:
        """Centers to leave out."""
        return sample_rows(len(self.different().points), SAMPLES, self.seed, torch.device("cpu"))

    def different(self) -> Centers:
        """The different points among the rows."""
        if self.centers is None:
            self.centers = different_points(self.rows)
        return self.centers

    def solved(self) -> list[Solved]:
        if self._solved is None:
            self._solved = [solve(member, self.different()) for member in self.members]
        return self._solved

    def num_neighbors(self) -> int | None:
        """How many rows take part in a prediction of the first member; `None` for all."""
        first, rows = self.members[0], int((self.rows.weights > 0).sum())
        neighbors = neighbors_of(first, rows)
        if first.num_neighbors is None and neighbors is not None:  # too many for all, unless there are copies among them
            neighbors = neighbors_of(first, len(self.different().points))
        return neighbors

    @torch.no_grad()
    def predict(self, query: Tensor) -> Tensor:
        """`(Q, D)` to `(Q, C)`, in the units of the values given."""
        total: Tensor | None = None
        for member, solved in zip(self.members, self.solved(), strict=True):
            part = member.share * solved.predict(query)
            total = part if total is None else total + part
        assert total is not None
        return (total.double() * self.unit + self.offset).to(query.dtype)

    @torch.no_grad()
    def std(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and their standard deviations `(Q, C)`, float64."""
        found = mixed(self.members, [solved.find(query) for solved in self.solved()])
        std = self.residuals().std(self.members[0].kernel.embed(query), found.variance)
        return found.mean.double() * self.unit + self.offset, std * self.unit

    @torch.no_grad()
    def residuals(self) -> Residuals:
        """Of leave-one-out, over some of the centers."""
        if self._residuals is None:
            self._residuals = residuals_at(self.sample(), self.solved(), self.members, len(self.different().points))
        return self._residuals

    def sample(self) -> Sample:
        """Centers to leave out, and rows of them."""
        return sample_of(self.rows, self.different(), self.sampled(), SAMPLES, self.seed)

    @torch.no_grad()
    def explain(self, query: Tensor, most: int | None) -> tuple[Array, Array]:
        """Rows and weights of each prediction, largest weight first, `(Q, R)` each."""
        rows, weights = rows_behind(self._center_weights(query), self.rows, self.different(), most)
        return rows, weights.astype(query.numpy().dtype)

    def _center_weights(self, query: Tensor) -> Iterator[tuple[Array, Array]]:
        """Centers, each once, and their weights in each prediction, for some queries after others."""
        count = len(self.different().points)
        most = EXPLAINED_AT_ONCE if len(self.members) == 1 else EXPLAINED_WEIGHTS // count
        for found in self._member_weights(query, max(1, min(EXPLAINED_AT_ONCE, most))):
            if len(found) == 1:
                (indices, weights), share = found[0], self.members[0].share
                yield indices.numpy(), share * weights.double().numpy()
                continue
            total = torch.zeros(len(found[0][0]), count, dtype=torch.float64)
            for member, (indices, weights) in zip(self.members, found, strict=True):
                total.scatter_add_(1, indices, member.share * weights.double())
            yield torch.arange(count).expand(len(total), -1).numpy(), total.numpy()

    def _member_weights(self, query: Tensor, at_once: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Centers and weights of each member, for `at_once` queries after others."""
        for part in query.split(at_once):
            yield [solved.weights(part) for solved in self.solved()]

    def nearest_rows(self, query: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
        """Distances in the metric of the first member, and rows, `(Q, count)`; without a query, to the nearest others."""
        kernel = self.members[0].kernel
        points = kernel.embed(self.rows.points)
        own = query is None
        wanted = points if query is None else kernel.embed(query)
        indices = nearest(wanted, points, count, exclude_self=own)
        distances = torch.linalg.vector_norm(points[indices] - wanted.unsqueeze(1), dim=-1)
        return distances, indices

    def __getstate__(self) -> dict[str, Any]:
        self.check_whole()
        return {**self.__dict__, "centers": None, "_solved": None, "_residuals": None}


class Unit(NamedTuple):
    """Where the values of the centers lie, and how far apart."""

    offset: Tensor  # (C,)
    unit: Tensor  # (C,)


def unit_of(centers: Centers) -> Unit:
    total = centers.weights.sum()
    shares, values = (centers.weights / total).unsqueeze(1), centers.values
    offset = (shares * values).sum(0)
    spread = ((shares * (values - offset).square()).sum(0) + centers.scatter.sum(0) / total).sqrt()
    # What is left of a constant after rounding is no spread.
    real = spread > ROUNDING * values.abs().amax(0)
    if not math.isfinite(float(spread.sum())):
        raise InputError("y is too large to compute its variance. Divide it by a constant first.")
    return Unit(offset, torch.where(real, spread, 1.0))
