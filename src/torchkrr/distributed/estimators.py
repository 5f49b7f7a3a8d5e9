"""Fitted estimators whose training rows are sharded over ranks: each rank predicts its own queries, as one process would.

Members of the ensemble that use the neighbors of a query keep this rank's shard of the centers. Members that use all rows
(at most 5000) in one factorization hold them all on every rank. The prior is fitted by every rank, to the rows of all of
them, before they are sharded; its coefficients are those of one process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.options import Kind, Trend
from ..errors import InputError
from ..estimators.encoding import Centers, Groups, Rows
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
        centers, left_over = whole.centers, whole.left_over
        count = len(centers.points)
        # No tensor of the predictor holds the points or values of all rows.
        rows = Rows(whole.rows.points[:0], whole.rows.values[:0], whole.rows.weights, whole.rows.groups[:0])
        super().__init__(rows, whole.members, whole.offset, whole.unit, whole.seed, whole.prior)
        self.centers = centers._replace(points=centers.points.new_empty(count, 0), values=centers.values.new_empty(count, 0))
        self.groups, self.sample, self.positive = whole.groups, whole.sample, whole.positive
        self.prior_left_out = whole.prior_left_out
        self.fitted_prior = copy.copy(whole.fitted_prior)
        if self.fitted_prior is not None:
            del self.fitted_prior.spectrum  # it holds all rows, and only a fit needs it
        shards, equal = even_shards(count, comm.size), bool((centers.weights == 1).all())
        part = left_over.some(shards.own(comm.rank))
        part = part._replace(points=part.points.clone(), values=part.values.clone())
        fitted: list[DenseMember | LocalMember] = []
        for member in whole.members:
            neighbors = neighbors_of(member, count)
            if neighbors is None:
                fitted.append(DenseMember(member, left_over, self.sample.which, self.trend))
            else:
                fitted.append(ShardedMember(member, part, neighbors, self.trend, equal, shards, comm))
        self.fitted = fitted

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
        self,
        member: Member,
        own: Centers,
        num_neighbors: int,
        trend: Trend,
        equal: bool,
        shards: Shards,
        comm: Communicator,
    ) -> None:
        super().__init__(member, own, num_neighbors, trend)
        self.searched, _ = dtypes_of(member, own.points)
        self.ridges = None if equal else member.ridge / own.weights
        self.shards, self.comm = shards, comm

    def leave_out(self, which: Tensor, groups: Groups | None = None, hat: Any = None) -> Prediction:
        """Each rank predicts some of these rows without themselves, and all ranks get the results."""
        split = even_shards(len(which), self.comm.size)
        own = which[split.own(self.comm.rank)]
        rows, positions = torch.unique(own, return_inverse=True)
        tensors = (self.points,) if self.ridges is None else (self.points, self.ridges)
        points, *ridges = fetch_rows(rows, self.shards, self.comm, *tensors)
        mean, power_squared, _ = self.solve(points[positions], "mean", own, groups)
        variance = power_squared + (ridges[0][positions] if ridges else self.ridge)
        return Prediction(*(self.comm.gather(column, split.sizes, "left out") for column in (mean, variance)))

    def solve(
        self, embedded: Tensor, kind: Kind, exclude: Tensor | None = None, groups: Groups | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        apart = 0 if exclude is None else 1 if groups is None else groups.largest
        num_neighbors = min(self.num_neighbors, self.shards.total - apart)
        tensors = (self.points, self.values) if kind == "mean" else (self.points,)
        neighborhoods = ShardedIndex(self.index, self.shards, self.comm).neighborhoods(
            embedded.to(self.searched),
            self.comm.table([len(embedded)]).squeeze(1).tolist(),
            num_neighbors,
            tensors=tensors if self.ridges is None else (*tensors, self.ridges),
            exclude=exclude,
            groups=groups,
        )
        outputs = self.values.shape[1]
        first, squared, rows = solve_over_ranks(embedded, neighborhoods, num_neighbors, outputs, self.options, kind)
        return first, squared.clamp_min(0).double(), rows
