"""Fitted estimators whose training rows are sharded over ranks: each rank predicts its own queries, as one process would.

Members of the ensemble that use the neighbors of a query keep this rank's shard of the centers. Members that use all rows
(at most 5000) in one factorization hold them all on every rank.
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
from ..neighbors import ExactIndex
from .launch import Communicator, Shards, even_shards
from .search import ShardedIndex, fetch_rows, solve_over_ranks


def shard(estimator: Any, *, process_group: Any = None) -> None:
    """Reduce a fitted estimator, loaded on every rank, to this rank's shard of its training rows; it predicts as before.

    From then on predictions are collective: all ranks call the same method, each with its own queries, at least one. The
    estimator can no longer learn or forget rows, and cannot be saved or copied.

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
    estimator._predictor = ShardedPredictor(estimator._predictor, Communicator(process_group))


class ShardedPredictor(Predictor):
    """A predictor that works with the other ranks of a process group."""

    def __init__(self, whole: Predictor, comm: Communicator) -> None:
        centers = different_points(whole.rows)
        count = len(centers.points)
        shards = even_shards(count, comm.size)
        own = shards.own(comm.rank)
        # No tensor of the predictor holds the points or values of all rows.
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
                solved.append(ShardedSolved(member, part, neighbors, equal, shards, comm))
        self._solved = solved
        self.centers = centers._replace(points=centers.points.new_empty(count, 0), values=centers.values.new_empty(count, 0))
        self._sample = sample_of(whole.rows, centers, self.sampled(), SAMPLES, whole.seed)

    def sample(self) -> Sample:
        return self._sample  # the only one that is requested

    def _member_weights(self, query: Tensor, at_once: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        # All queries of a member in one call: ranks with more queries must not call more often.
        found = [solved.weights(query) for solved in self.solved()]
        for part in torch.arange(len(query)).split(at_once):
            yield [(indices[part], weights[part]) for indices, weights in found]

    def check_whole(self) -> None:
        raise InputError("A sharded estimator holds a part of its rows. Save, copy, change or ask the one it was made from.")


class ShardedSolved:
    """A member with neighbors, on this rank's shard of the centers."""

    def __init__(
        self, member: Member, own: Centers, num_neighbors: int, equal: bool, shards: Shards, comm: Communicator
    ) -> None:
        searched, self.dtype = dtypes_of(member, own.points)
        self.kernel, self.ridge, self.num_neighbors = member.kernel, member.ridge, num_neighbors
        self.points, self.values = own.points.to(self.dtype), own.values.to(self.dtype)
        self.ridges = None if equal else member.ridge / own.weights
        self.searched, self.shards, self.comm = searched, shards, comm
        self.index = ExactIndex()
        if len(self.points):
            self.index.build(self.kernel.embed(self.points).to(searched))

    def predict(self, query: Tensor) -> Tensor:
        return self.find(query).mean

    def find(self, query: Tensor) -> Found:
        mean, power_squared, _ = self._solve(query, "mean")
        return Found(mean, power_squared.clamp_min(0).double() + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        weights, _, rows = self._solve(query, "weights")
        return rows, weights

    def left_out(self, which: Tensor) -> Found:
        """Each rank predicts some of these rows without themselves, and all ranks get the results."""
        split = even_shards(len(which), self.comm.size)
        own = which[split.own(self.comm.rank)]
        rows, positions = torch.unique(own, return_inverse=True)
        tensors = (self.points,) if self.ridges is None else (self.points, self.ridges)
        points, *ridges = fetch_rows(rows, self.shards, self.comm, *tensors)
        mean, power_squared, _ = self._solve(points[positions], "mean", exclude=own)
        variance = power_squared.clamp_min(0).double() + (ridges[0][positions] if ridges else self.ridge)
        return Found(*(self.comm.gather(column, split.sizes, "left out") for column in (mean, variance)))

    def _solve(self, query: Tensor, kind: Kind, exclude: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        query = query.to(self.dtype)
        num_neighbors = self.num_neighbors if exclude is None else min(self.num_neighbors, self.shards.total - 1)
        tensors = (self.points, self.values) if kind == "mean" else (self.points,)
        neighborhoods = ShardedIndex(self.index, self.shards, self.comm).neighborhoods(
            self.kernel.embed(query).to(self.searched),
            self.comm.table([len(query)]).squeeze(1).tolist(),
            num_neighbors,
            tensors=tensors if self.ridges is None else (*tensors, self.ridges),
            exclude=exclude,
        )
        options = SolveOptions(self.kernel, self.ridge, "constant")
        return solve_over_ranks(query, neighborhoods, num_neighbors, self.values.shape[1], options, kind)
