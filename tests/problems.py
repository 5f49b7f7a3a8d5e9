"""Named problems with known answers.

Each function returns a `Problem` in float64; `.float()` rounds it. Where the truth is known in closed form, `answer` is its
value at the queries and `norm` its norm in the native space of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from tests import reference
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    query: Tensor  # (Q, D)
    centers: Tensor  # (N, D)
    values: Tensor  # (N, C)
    num_neighbors: int
    answer: Tensor | None = None  # (Q, C): the function the values came from, at the queries
    norm: Tensor | None = None  # (C,): its norm

    def to(self, dtype: torch.dtype) -> Problem:
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: tensor.to(dtype) for name, tensor in tensors.items()})

    def float(self) -> Problem:
        return self.to(torch.float32)

    def double(self) -> Problem:
        return self.to(torch.float64)

    @property
    def neighbor_indices(self) -> Tensor:
        """`(Q, M)`, by full sort in float64, so that both precisions of a problem have the same neighbors."""
        return self.neighbors(self.num_neighbors)

    def neighbors(self, count: int) -> Tensor:
        return torch.from_numpy(reference.nearest(self.query.double().numpy(), self.centers.double().numpy(), count))


def random_points(
    seed: int = 0,
    *,
    num_queries: int = 7,
    num_centers: int = 40,
    num_features: int = 3,
    num_outputs: int = 2,
    num_neighbors: int = 12,
) -> Problem:
    """Standard normal points and values: nothing is special."""
    rng = np.random.default_rng(seed)
    return _problem(
        rng.normal(size=(num_queries, num_features)),
        rng.normal(size=(num_centers, num_features)),
        rng.normal(size=(num_centers, num_outputs)),
        num_neighbors,
    )


def finite_expansion(
    seed: int = 0,
    *,
    profile: reference.Profile = reference.exponential,
    num_terms: int = 5,
    num_queries: int = 7,
    num_centers: int = 30,
    num_features: int = 2,
    num_outputs: int = 2,
    num_neighbors: int = 10,
    known_terms: bool = False,
) -> Problem:
    r"""$f = \sum_j c_j k(\cdot, u_j)$, with $\|f\|^2 = c^\top k(u, u) c$ known exactly.

    With `known_terms` the points $u_j$ are among the centers, and $f$ is found again.
    """
    rng = np.random.default_rng(seed)
    terms, coefficients = rng.normal(size=(num_terms, num_features)), rng.normal(size=(num_terms, num_outputs))
    query, centers = rng.normal(size=(num_queries, num_features)), rng.normal(size=(num_centers, num_features))
    if known_terms:
        centers[:num_terms] = terms
    gram = profile(reference.distances(terms, terms))
    return _problem(
        query,
        centers,
        profile(reference.distances(centers, terms)) @ coefficients,
        num_neighbors,
        answer=profile(reference.distances(query, terms)) @ coefficients,
        norm=np.sqrt(np.einsum("jc,jk,kc->c", coefficients, gram, coefficients)),
    )


def constant(seed: int = 0, *, level: float = 3.0) -> Problem:
    """One value everywhere; reproduced exactly with a trend."""
    problem = random_points(seed)
    like = torch.full_like
    return replace(problem, values=like(problem.values, level), answer=like(problem.query[:, :2], level))


def linear(seed: int = 0) -> Problem:
    """An affine function of the features."""
    problem = random_points(seed)
    rng = np.random.default_rng([seed, 1])
    slope, level = torch.from_numpy(rng.normal(size=(3, 2))), torch.from_numpy(rng.normal(size=2))
    return replace(problem, values=problem.centers @ slope + level, answer=problem.query @ slope + level)


def far_clusters(seed: int = 0, *, gap: float = 40.0, per_cluster: int = 8) -> Problem:
    """Two clusters `gap` apart, each query inside one: local on that cluster equals dense up to the kernel of the gap."""
    rng = np.random.default_rng(seed)
    sides = np.repeat([0.0, gap], per_cluster)[:, None] * np.array([1.0, 0.0])
    query = rng.uniform(-1, 1, size=(6, 2)) + np.repeat([0.0, gap], 3)[:, None] * np.array([1.0, 0.0])
    centers = rng.uniform(-1, 1, size=(2 * per_cluster, 2)) + sides
    return _problem(query, centers, rng.normal(size=(2 * per_cluster, 1)), per_cluster)


def grid_with_ties(side: int = 5, *, num_neighbors: int = 6) -> Problem:
    """A regular grid; the queries are nodes and midpoints, so that neighbors tie exactly and the cut goes through a tie."""
    axis = np.arange(side, dtype=float)
    centers = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    query = np.array([[2.0, 2.0], [1.5, 1.5], [2.0, 1.5], [0.0, 0.0], [0.5, 3.0]])
    values = np.stack([np.sin(centers.sum(1)), np.arange(side**2) % 3 - 1.0], 1)
    return _problem(query, centers, values, num_neighbors)


def conflicting_duplicates(seed: int = 0, *, copies: int = 3) -> Problem:
    """Every center occurs `copies` times with different values; `answer` is their mean, and the queries are the places."""
    rng = np.random.default_rng(seed)
    places, values = rng.normal(size=(6, 2)), rng.normal(size=(6, copies, 1))
    return _problem(places, np.repeat(places, copies, axis=0), values.reshape(-1, 1), 6 * copies, answer=values.mean(1))


def one_center(seed: int = 0) -> Problem:
    """The prediction is the profile of the distance times the only value."""
    return random_points(seed, num_centers=1, num_neighbors=1)


def as_many_neighbors_as_centers(seed: int = 0) -> Problem:
    """M = N: local is dense."""
    return random_points(seed, num_centers=15, num_neighbors=15)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "random": random_points,
    "finite expansion": finite_expansion,
    "constant": constant,
    "linear": linear,
    "two far clusters": far_clusters,
    "grid with ties": grid_with_ties,
    "conflicting duplicates": conflicting_duplicates,
    "one center": one_center,
    "as many neighbors as centers": as_many_neighbors_as_centers,
}


def _problem(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    num_neighbors: int,
    answer: np.ndarray | None = None,
    norm: np.ndarray | None = None,
) -> Problem:
    optional = {"answer": answer, "norm": norm}
    known = {name: torch.from_numpy(array) for name, array in optional.items() if array is not None}
    return Problem(torch.from_numpy(query), torch.from_numpy(centers), torch.from_numpy(values), num_neighbors, **known)
