"""The power function on a square, of all centers and of the nearest few, beside the error that was made.

python docs/figures/power_map.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from style import INK, ORANGE, save, unit_square
from torchkrr import functional as F
from torchkrr import kernels, neighbors

KERNEL = kernels.Matern52(0.3)
SIDE = 121
NUM_NEIGHBORS = 8
AXIS = torch.linspace(0, 1, SIDE, dtype=torch.float64)
GRID = torch.cartesian_prod(AXIS, AXIS)


def function(points: Tensor) -> Tensor:
    return torch.sin(7 * points[:, :1]) * torch.cos(5 * points[:, 1:])


def places() -> Tensor:
    """Points at random, but none inside a disk."""
    generator = torch.Generator().manual_seed(4)
    points = torch.rand(70, 2, generator=generator, dtype=torch.float64)
    return points[(points - torch.tensor([0.62, 0.55])).norm(dim=1) > 0.24]


def rank_correlation(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def main() -> None:
    centers = places()
    values = function(centers)
    cells = neighbors.nearest(GRID, centers, NUM_NEIGHBORS)
    local = F.local_kernel_ridge(GRID, centers, values, cells, kernel=KERNEL)
    error = (local - function(GRID)).abs()[:, 0]
    everywhere = F.power_function(GRID, centers, kernel=KERNEL)
    nearby = F.local_power_function(GRID, centers, cells, kernel=KERNEL)
    figure, row = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained", sharey=True)
    panels = (
        (everywhere, f"power function of all {len(centers)} centers", 0.6),
        (nearby, f"power function of the {NUM_NEIGHBORS} nearest", 0.6),
        (error, f"error of the {NUM_NEIGHBORS} nearest", 0.3),
    )
    for axes, (field, title, top) in zip(row, panels, strict=True):
        levels = np.linspace(0, top, 13)
        filled = axes.contourf(AXIS, AXIS, field.reshape(SIDE, SIDE).T, levels=levels, extend="max")
        axes.plot(*centers.T, "o", color=ORANGE, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
        unit_square(axes)
        axes.set_title(title, color=INK)
        figure.colorbar(filled, ax=axes, shrink=0.8, ticks=(0, top / 2, top))
    numbers = {
        "centers": len(centers),
        "largest_power": float(everywhere.max()),
        "largest_local_power": float(nearby.max()),
        "rank_correlation_of_local_power_and_error": rank_correlation(nearby, error),
        "share_where_local_power_is_not_smaller": float((nearby >= everywhere - 1e-6).double().mean()),
    }
    save(figure, "power_map", numbers)


if __name__ == "__main__":
    main()
