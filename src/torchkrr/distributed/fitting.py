"""Normalizing maps fitted on the rows of all ranks: their statistics are those of one process that has all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from .._chunking import SEARCH_BYTES, rows_per_chunk
from .._state import usable
from ..errors import InputError
from ..kernels import Exponential, Kernel
from ..transforms import Compose, MeanDistance, Standardize, StandardMean, Transform, UnitCube
from .wire import Wire

T = TypeVar("T", bound=Transform)


def default_kernel_over_ranks(centers: Tensor, wire: Wire) -> Kernel:
    """`torchkrr.kernels.default_kernel` of the centers of all ranks."""
    return Exponential(input_transform=fit_over_ranks(StandardMean(), centers.detach(), wire))


def fit_over_ranks(transform: T, x: Tensor, wire: Wire) -> T:
    """`transform.fit` on the rows `x` `(n, D)` of all ranks; `n` may be zero on some."""
    if isinstance(transform, Compose):
        for part in transform.transforms:
            fit_over_ranks(part, x, wire)  # type: ignore[type-var]
            with torch.no_grad():
                x = part(x)
    elif transform.statistics:
        if type(transform) not in RULES:
            raise InputError(
                f"{type(transform).__name__} cannot be fitted on several ranks. Fit it on a sample, the same on every rank."
            )
        for name, statistic in zip(transform.statistics, RULES[type(transform)](x, wire), strict=True):
            transform._buffers[name] = usable(statistic)
    return transform


def _unit_cube(x: Tensor, wire: Wire) -> tuple[Tensor, ...]:
    nothing = x.new_full((1, x.shape[1]), torch.inf)
    low, high = torch.cat((x, nothing)).amin(0), torch.cat((x, -nothing)).amax(0)
    count = x.new_full((1,), len(x), dtype=torch.float64)
    each = wire.gather(torch.cat((low.double(), high.double(), count))[None], [1] * wire.size, "statistics")
    lows, highs, counts = each.split((x.shape[1], x.shape[1], 1), dim=1)
    return lows.amin(0), highs.amax(0) - lows.amin(0), counts.sum()


def _standardize(x: Tensor, wire: Wire) -> tuple[Tensor, ...]:
    mean, variance = _moments(x, wire)
    std = variance.sqrt()
    return mean, torch.where(std > 0, std, 1.0)


def _mean_distance(x: Tensor, wire: Wire) -> tuple[Tensor, ...]:
    scale = (2 * _moments(x, wire)[1].sum()).sqrt()
    return (torch.where(scale > 0, scale, 1.0),)


def _moments(x: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
    """Mean and variance of each feature, in float64, and the same to the last bit on every rank."""
    blocks = [_block(part) for part in x.split(rows_per_chunk(8 * x.shape[1], SEARCH_BYTES)) if len(part)]
    own = _combined(torch.stack(blocks)) if blocks else x.new_zeros(1 + 2 * x.shape[1], dtype=torch.float64)
    count, mean, spread = _combined(wire.gather(own[None], [1] * wire.size, "statistics")).split((1, x.shape[1], x.shape[1]))
    return mean, spread / count


def _block(rows: Tensor) -> Tensor:
    """Number of rows, mean, and sum of squared differences from it."""
    rows = rows.double()
    mean = rows.mean(0)
    return torch.cat((rows.new_tensor([len(rows)]), mean, (rows - mean).square_().sum(0)))


def _combined(parts: Tensor) -> Tensor:
    """What `_block` gives for the rows of all parts together (Chan, Golub and LeVeque)."""
    features = parts.shape[1] // 2
    counts, means, spreads = parts.split((1, features, features), dim=1)
    mean = (counts * means).sum(0) / counts.sum()
    return torch.cat((counts.sum(0), mean, (spreads + counts * (means - mean).square()).sum(0)))


RULES: dict[type[Transform], Callable[[Tensor, Wire], tuple[Tensor, ...]]] = {
    UnitCube: _unit_cube,
    Standardize: _standardize,
    MeanDistance: _mean_distance,
}
