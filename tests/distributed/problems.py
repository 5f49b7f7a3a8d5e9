"""Shards, queries and layers for these tests: whole on every rank, so that each can compare with one process."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchkrr import kernels, nn
from torchkrr.distributed import ShardedLocalKernelRidge, Shards

NUM_CENTERS, NUM_FEATURES, NUM_OUTPUTS, NUM_NEIGHBORS = 90, 4, 2, 12
# Uneven, with fewer centers than neighbors on some rank, and none on another; and so are the queries.
SHARDS = {1: (90,), 2: (5, 85), 3: (60, 3, 27), 4: (50, 3, 0, 37)}
QUERIES = {1: (21,), 2: (8, 13), 3: (9, 0, 12), 4: (5, 7, 0, 9)}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


class World(NamedTuple):
    """The ranks that a check runs on, and what it may write to."""

    group: Any
    rank: int
    size: int
    folder: str

    def own(self, rows: Tensor, sizes: dict[int, tuple[int, ...]] = SHARDS) -> Tensor:
        return rows[Shards(sizes[self.size]).own(self.rank)]


def data(dtype: torch.dtype, count: int = NUM_CENTERS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Centers, values and queries."""
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes(count))
    centers, values, query = (tensor.to(dtype) for tensor in made)
    return centers, values, query


def shapes(count: int) -> list[tuple[int, int]]:
    return [(count, NUM_FEATURES), (count, NUM_OUTPUTS), (21, NUM_FEATURES)]


def learned_kernel(dtype: torch.dtype) -> kernels.Kernel:
    """Everything in it is learned, in the dtype of the data: lengthscales in the embedding, alpha in the profile."""
    scales = torch.linspace(1.0, 2.0, NUM_FEATURES)
    return kernels.RationalQuadratic(scales, alpha=1.5, learn_alpha=True, learn_lengthscale=True).to(dtype)


def plain(centers: Tensor, values: Tensor, **choices: Any) -> nn.LocalKernelRidge:
    return nn.LocalKernelRidge(centers, values, NUM_NEIGHBORS, **{"ridge": 1e-2, **choices})


def sharded(world: World, centers: Tensor, values: Tensor, **choices: Any) -> ShardedLocalKernelRidge:
    """The layer on this rank's part of all centers."""
    return ShardedLocalKernelRidge(
        world.own(centers), world.own(values), NUM_NEIGHBORS, process_group=world.group, **{"ridge": 1e-2, **choices}
    )


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest entry where that is above one; infinite if shapes or dtypes differ."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not found.numel():
        return 0.0
    return float((found - expected).detach().abs().max() / expected.detach().abs().max().clamp_min(1.0))
