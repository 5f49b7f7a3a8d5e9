"""Fitted estimators whose training rows are spread over ranks: each predicts its own queries, as one process would.

Members of a model that use the neighbors of a query keep this rank's part of the centers. Members that use all of at most
5000 rows, in one factorization, are kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.options import Kind, SolveOptions
from ..errors import InputError
from ..estimators.members import DenseSolved, Found, Member, Solved, dtypes_of, neighbors_of
from ..estimators.predictor import Predictor
from ..estimators.rows import Centers, Rows, Sample, different_points, sample_of
from ..estimators.uncertainty import SAMPLES
from ..functional.local import solve_local
from ..neighbors import ExactIndex
from .exchange import fetch, route_to
from .neighborhoods import neighborhoods
from .searching import Shard
from .shards import Shards, even_shards
from .wire import Wire


def shard(estimator: Any, *, process_group: Any = None) -> None:
    """Let a fitted estimator, loaded on every rank, keep only this rank's part of its rows; it predicts as before.

    From then on predictions are collective: every rank asks for its own rows, at least one each, by the same method.
    The estimator takes no new rows, forgets none, and cannot be saved or copied.

    Example:
        >>> import numpy as np
        >>> from torchkrr.distributed import launched
        >>> from torchkrr.estimators import LocalKernelRidgeRegressor
        >>> X = np.linspace(0, 1, 50)[:, None]
        >>> model = LocalKernelRidgeRegressor(10, kernel="matern32", metric=None, alpha=1e-3).fit(X, X[:, 0] ** 2)
        >>> expected = model.predict([[0.3]])
        >>> with launched():
        ...     shard(model)
        ...     bool(np.allclose(model.predict([[0.3]]), expected))
        True
    """
    estimator._predictor.check_whole()
    estimator._predictor = ShardedPredictor(estimator._predictor, Wire(process_group))


class ShardedPredictor(Predictor):
    """What a predictor does, by the ranks of a group."""

    def __init__(self, whole: Predictor, wire: Wire) -> None:
        centers = different_points(whole.rows)
        count = len(centers.points)
        shards = even_shards(count, wire.size)
        own = shards.own(wire.rank)
        # Nothing that is left of the points and values has all rows.
        super().__init__(
            Rows(whole.rows.points[:0], whole.rows.values[:0], whole.rows.weights),
            whole.members,
            whole.offset,
            whole.unit,
            whole.seed,
        )
        equal = bool((centers.weights == 1).all())
        part = centers.some(own)
        part = part._replace(points=part.points.clone(), values=part.values.clone())
        solved: list[Solved] = []
        for member in whole.members:
            neighbors = neighbors_of(member, count)
            if neighbors is None:
                solved.append(DenseSolved(member, centers))
            else:
                solved.append(ShardedSolved(member, part, neighbors, equal, shards, wire))
        self._solved = solved
        self.centers = centers._replace(points=centers.points.new_empty(count, 0), values=centers.values.new_empty(count, 0))
        self._sample = sample_of(whole.rows, centers, self.sampled(), SAMPLES, whole.seed)

    def sample(self) -> Sample:
        return self._sample  # all that is ever asked for

    def _member_weights(self, query: Tensor, at_once: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        # All queries of a member at once: ranks with more of them must not ask more often.
        found = [solved.weights(query) for solved in self.solved()]
        for part in torch.arange(len(query)).split(at_once):
            yield [(indices[part], weights[part]) for indices, weights in found]

    def check_whole(self) -> None:
        raise InputError("A sharded estimator holds a part of its rows. Save, copy, change or ask the one it was made from.")


class ShardedSolved:
    """A member with neighbors, on this rank's part of the centers."""

    def __init__(self, member: Member, own: Centers, num_neighbors: int, equal: bool, shards: Shards, wire: Wire) -> None:
        searched, self.dtype = dtypes_of(member, own.points)
        self.kernel, self.ridge, self.num_neighbors = member.kernel, member.ridge, num_neighbors
        self.points, self.values = own.points.to(self.dtype), own.values.to(self.dtype)
        self.ridges = None if equal else member.ridge / own.weights
        self.searched, self.shards, self.wire = searched, shards, wire
        self.index = ExactIndex()
        if len(self.points):
            self.index.build(self.kernel.embed(self.points).to(searched))

    def predict(self, query: Tensor) -> Tensor:
        return self.find(query).mean

    def find(self, query: Tensor) -> Found:
        mean, power, _ = self._solve(query, "mean")
        return Found(mean, power.double().square() + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        weights, _, rows = self._solve(query, "weights")
        return rows, weights

    def left_out(self, which: Tensor) -> Found:
        """Each rank predicts its share of them, and tells the others."""
        shares = even_shards(len(which), self.wire.size)
        asked = which[shares.own(self.wire.rank)]
        rows, positions = torch.unique(asked, return_inverse=True)
        tensors = (self.points,) if self.ridges is None else (self.points, self.ridges)
        points, *ridges = fetch(route_to(rows, self.shards, self.wire), *tensors)
        mean, power, _ = self._solve(points[positions], "mean", exclude=asked)
        variance = power.double().square() + (ridges[0][positions] if ridges else self.ridge)
        return Found(*(self.wire.gather(part, list(shares.sizes), "left out") for part in (mean, variance)))

    def _solve(self, query: Tensor, kind: Kind, exclude: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        query = query.to(self.dtype)
        embedded = self.kernel.embed(query).to(self.searched)
        counts = self.wire.table([len(query)]).squeeze(1).tolist()
        most = self.num_neighbors if exclude is None else min(self.num_neighbors, self.shards.total - 1)
        tensors: tuple[Tensor, ...] = (self.points, self.values) if kind == "mean" else (self.points,)
        tensors += () if self.ridges is None else (self.ridges,)
        shard = Shard(self.index, self._take)
        width = self.values.shape[1] if kind == "mean" else most
        parts = [(query.new_empty(0, width), query.new_empty(0), torch.empty(0, most, dtype=torch.int64))]
        for own, rows, positions, fetched in neighborhoods(
            embedded, counts, most, shard, self.shards, self.wire, tensors=tensors, exclude=exclude
        ):
            if len(rows):
                first, power = solve_local(
                    query[own],
                    fetched[0],
                    fetched[1] if kind == "mean" else None,
                    positions,
                    SolveOptions(self.kernel, self.ridge if self.ridges is None else fetched[-1], "constant"),
                    kind,
                )
                parts.append((first, power, rows))
        first, power, rows = (torch.cat(column) for column in zip(*parts, strict=True))
        return first, power, rows

    def _take(self, rows: Tensor) -> Tensor:
        assert self.index.points is not None
        return self.index.points.index_select(0, rows)
