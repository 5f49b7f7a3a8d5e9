r"""Regressors that a prediction is made of, each with a kernel, a ridge and a number of neighbors, solved on given centers.

A member without a number of neighbors uses every center: then one factorization, kept here, serves all queries.
All members have a constant trend, so that the weights of each prediction sum to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..core.dense import DenseRegressor
from ..core.local import solve_local
from ..core.options import Kind, SolveOptions
from ..kernels import Kernel
from ..neighbors import ExactIndex
from .rows import Centers

MOST_DENSE = 5000  # different rows in one factorization: its time grows with their cube
DENSE_BUT_LOCAL = 400  # nearest rows in each prediction of a member for every row, where they are more than that
SOLVED_IN_SINGLE = 1e-3  # least ridge that is solved in float32


class Member(NamedTuple):
    kernel: Kernel
    ridge: float
    num_neighbors: int | None  # None: every center
    share: float  # of the prediction
    search_in_single: bool = False  # neighbors are searched in float32 whatever the data


class Found(NamedTuple):
    mean: Tensor  # (Q, C)
    variance: Tensor  # (Q,) in units of the scale: of an observation, or of the mean of rows that a left-out center is


class Solved(Protocol):
    """A member on its centers."""

    def predict(self, query: Tensor) -> Tensor: ...

    def find(self, query: Tensor) -> Found: ...

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]: ...

    def left_out(self, which: Tensor) -> Found: ...


def mixed(members: Sequence[Member], parts: Sequence[Found]) -> Found:
    """The prediction that several members make together; its variance is the mean of theirs."""
    mean = torch.stack([member.share * part.mean for member, part in zip(members, parts, strict=True)]).sum(0)
    variance = torch.stack([member.share * part.variance for member, part in zip(members, parts, strict=True)]).sum(0)
    return Found(mean, variance)


def solve(member: Member, centers: Centers) -> Solved:
    neighbors = neighbors_of(member, len(centers.points))
    return DenseSolved(member, centers) if neighbors is None else LocalSolved(member, centers, neighbors)


def neighbors_of(member: Member, count: int) -> int | None:
    """How many of `count` centers take part in a prediction of a member; `None` for all of them, in one factorization."""
    if member.num_neighbors is None and count <= MOST_DENSE:
        return None
    return min(DENSE_BUT_LOCAL if member.num_neighbors is None else member.num_neighbors, count)


def dtypes_of(member: Member, points: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """What neighbors are searched in, and what is solved in."""
    searched = torch.float32 if member.search_in_single else points.dtype
    # Below this ridge float32 resolves hardly any cell: each would be solved twice.
    return searched, torch.float64 if member.ridge < SOLVED_IN_SINGLE else searched


class DenseSolved:
    """Every center takes part; in float64, whatever the dtype of the data."""

    def __init__(self, member: Member, centers: Centers) -> None:
        self.dtype, self.ridge, self.ridges = centers.points.dtype, member.ridge, member.ridge / centers.weights
        options = SolveOptions(member.kernel, self.ridges, "constant")
        self.regressor = DenseRegressor(centers.points, centers.values, options)

    def predict(self, query: Tensor) -> Tensor:
        return self.regressor.predict(query).to(self.dtype)

    def find(self, query: Tensor) -> Found:
        mean, power = self.regressor.predict_with_power(query)
        return Found(mean.to(self.dtype), power.clamp_min(0) + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.regressor.weights(query)
        return torch.arange(weights.shape[1]).expand(len(query), -1), weights.to(self.dtype)

    def left_out(self, which: Tensor) -> Found:
        means, diagonal = self.regressor.leave_one_out()
        # 1 / P_ii is the variance of the center itself, with its own ridge in it.
        return Found(means[which].to(self.dtype), torch.maximum(1 / diagonal, self.ridges)[which])


class LocalSolved:
    """The nearest centers of each query, found anew for each."""

    def __init__(self, member: Member, centers: Centers, num_neighbors: int) -> None:
        searched, self.dtype = dtypes_of(member, centers.points)
        self.kernel, self.num_neighbors = member.kernel, num_neighbors
        self.points, self.values = centers.points.to(self.dtype), centers.values.to(self.dtype)
        self.ridge = member.ridge
        equal = bool((centers.weights == 1).all())
        self.ridges: float | Tensor = member.ridge if equal else member.ridge / centers.weights
        self.embedded = self.kernel.embed(self.points)
        self.index = ExactIndex()
        self.index.build(self.embedded.to(searched))

    def predict(self, query: Tensor) -> Tensor:
        return self.find(query).mean

    def find(self, query: Tensor) -> Found:
        query, embedded, indices = self._nearest(query)
        mean, power = self._solve(query, embedded, indices, "mean")
        return Found(mean, power.double().square() + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        query, embedded, indices = self._nearest(query)
        return indices, self._solve(query, embedded, indices, "weights")[0]

    def left_out(self, which: Tensor) -> Found:
        query, embedded = self.points[which], self.embedded[which]
        others = min(self.num_neighbors, len(self.points) - 1)
        assert self.index.points is not None
        indices = self.index.search(self.index.points[which], others, exclude=which).indices
        mean, power = self._solve(query, embedded, indices, "mean")
        ridges = self.ridges[which] if isinstance(self.ridges, Tensor) else self.ridges
        return Found(mean, power.double().square() + ridges)

    def _nearest(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query in the dtype of the solve, its embedding, and its neighbors."""
        assert self.index.points is not None
        query = query.to(self.dtype)
        embedded = self.kernel.embed(query)
        return query, embedded, self.index.search(embedded.to(self.index.points.dtype), self.num_neighbors).indices

    def _solve(self, query: Tensor, embedded: Tensor, indices: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
        first, power_squared = solve_local(
            query,
            self.points,
            self.values,
            indices,
            SolveOptions(self.kernel, self.ridges, "constant"),
            kind,
            embedded=(embedded, self.embedded),
        )
        return first, power_squared.clamp_min(0).sqrt()
