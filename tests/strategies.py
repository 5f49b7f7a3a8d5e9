"""Random problems for the identity tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tests import reference
from torch import Tensor

from torchkrr import kernels

TRENDS = [None, "constant"]


few = settings(derandomize=True, deadline=None, max_examples=60, database=None)


seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Setup:
    """A well-conditioned float64 problem with a kernel."""

    query: Tensor
    centers: Tensor
    values: Tensor
    indices: Tensor  # (Q, M)
    kernel: kernels.Kernel
    profile: reference.Profile
    name: str

    @property
    def everyone(self) -> Tensor:
        """All centers as neighbors of each query, nearest first."""
        return self.neighbors(len(self.centers))

    def neighbors(self, count: int, query: Tensor | None = None) -> Tensor:
        query = self.query if query is None else query
        return torch.from_numpy(reference.nearest(query.numpy(), self.centers.numpy(), count))


def spread_points(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    """Distinct cells of a unit lattice, shaken: no two points are close, so even smooth kernels are well conditioned."""
    side = 2
    while side**features < 2 * count:
        side += 1
    cells = rng.choice(side**features, size=count, replace=False)
    lattice = np.stack(np.unravel_index(cells, (side,) * features), 1).astype(float)
    return lattice + rng.uniform(-0.2, 0.2, size=lattice.shape)


@st.composite
def setups(draw: Any, *, min_centers: int = 1, names: tuple[str, ...] = tuple(reference.PROFILES)) -> Setup:
    rng = np.random.default_rng(draw(seeds, label="seed"))
    features = draw(st.integers(1, 4), label="D")
    count = draw(st.integers(min_centers, 20), label="N")
    neighbors = draw(st.integers(1, count), label="M")
    name = draw(st.sampled_from(names), label="kernel")
    options: dict[str, Any] = {"dimension": features} if name == "Wendland" else {}
    queries = draw(st.integers(1, 5), label="Q")
    centers = spread_points(rng, count, features)
    query = centers[rng.integers(count, size=queries)] + rng.uniform(-1, 1, size=(queries, features))
    return Setup(
        torch.from_numpy(query),
        torch.from_numpy(centers),
        torch.from_numpy(rng.normal(size=(count, 2))),
        torch.from_numpy(reference.nearest(query, centers, neighbors)),
        # A Wendland kernel of lengthscale 1 would see no neighbor at all.
        getattr(kernels, name)(2.5 if name == "Wendland" else 1.0, **options),
        lambda d: reference.PROFILES[name](d / 2.5 if name == "Wendland" else d, **options),
        name,
    )
