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
from ..estimators.encoding import Centers, Rows, different_points, sample_of
from ..estimators.predictor import (
    EXPLAINED_AT_ONCE,
    DenseMember,
    LocalMember,
    Member,
    Prediction,
    Predictor,
    dtypes_of,
    neighbors_of,
)
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
    estimator.predictor_.check_whole()
    estimator.predictor_ = ShardedPredictor(estimator.predictor_, Communicator(process_group))


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
        fitted: list[DenseMember | LocalMember] = []
        for member in whole.members:
            neighbors = neighbors_of(member, count)
            if neighbors is None:
                fitted.append(DenseMember(member, centers))
            else:
                fitted.append(ShardedMember(member, part, neighbors, equal, shards, comm))
        self.fitted = fitted
        self.centers = centers._replace(points=centers.points.new_empty(count, 0), values=centers.values.new_empty(count, 0))
        self.sample = sample_of(whole.rows, centers, whole.seed)

    def member_weights(self, query: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
        # All queries of a member in one call: ranks with more queries must not call more often.
        weights = [fitted.weights(query) for fitted in self.fitted]
        for part in torch.arange(len(query)).split(EXPLAINED_AT_ONCE):
            yield [(indices[part], own[part]) for indices, own in weights]

    def check_whole(self) -> None:
        raise InputError("A sharded estimator holds a part of its rows. Save, copy, change or ask the one it was made from.")


class ShardedMember(LocalMember):
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

    def leave_out(self, which: Tensor) -> Prediction:
        """Each rank predicts some of these rows without themselves, and all ranks get the results."""
        split = even_shards(len(which), self.comm.size)
        own = which[split.own(self.comm.rank)]
        rows, positions = torch.unique(own, return_inverse=True)
        tensors = (self.points,) if self.ridges is None else (self.points, self.ridges)
        points, *ridges = fetch_rows(rows, self.shards, self.comm, *tensors)
        mean, power_squared, _ = self.solve(points[positions], "mean", exclude=own)
        variance = power_squared + (ridges[0][positions] if ridges else self.ridge)
        return Prediction(*(self.comm.gather(column, split.sizes, "left out") for column in (mean, variance)))

    def solve(self, query: Tensor, kind: Kind, exclude: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
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
        first, squared, rows = solve_over_ranks(query, neighborhoods, num_neighbors, self.values.shape[1], options, kind)
        return first, squared.clamp_min(0).double(), rows
