"""Twelve points on a line: the regressor on all of them, and on the nearest few, with its jumps.

python docs/figures/line.py
"""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from style import BLUE, GRAY, INK, ORANGE, save
from torchkrr import functional as F
from torchkrr import kernels, neighbors

KERNEL = kernels.Matern32(0.35)
QUERY = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
COUNTS = (12, 6, 4, 2)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = (torch.arange(12, dtype=torch.float64) + torch.rand(12, generator=generator, dtype=torch.float64)) / 12
    y = torch.sin(9 * x) + 0.5 * x + 0.25 * torch.randn(12, generator=generator, dtype=torch.float64)
    return x[:, None], y[:, None]


def draw(axes: Axes, x: Tensor, y: Tensor, count: int) -> dict[str, float]:
    """The prediction, broken where the set of neighbors changes."""
    cells = neighbors.nearest(QUERY, x, count)
    prediction = F.local_kernel_ridge(QUERY, x, y, cells, kernel=KERNEL)[:, 0]
    members = cells.sort(1).values
    borders = [0, *((members[1:] != members[:-1]).any(1).nonzero()[:, 0] + 1).tolist(), len(QUERY)]
    for start, stop in itertools.pairwise(borders):
        axes.plot(QUERY[start:stop, 0], prediction[start:stop], color=BLUE)
    jumps = [abs(float(prediction[at] - prediction[at - 1])) for at in borders[1:-1]]
    for at in borders[1:-1]:
        axes.plot(QUERY[[at, at], 0], prediction[at - 1 : at + 1], color=ORANGE, linewidth=3.2, zorder=4)
        axes.axvline(float(QUERY[at]), color=GRAY, linewidth=0.5, alpha=0.5)
    axes.plot(x, y, "o", color=INK, markersize=5)
    largest = max(jumps, default=0.0)
    name = "all 12 centers: one smooth curve" if count == len(x) else f"{count} nearest: largest jump {largest:.3f}"
    axes.set(xlim=(0, 1), title=name)
    return {"cells": len(borders) - 1, "largest_jump": largest}


def main() -> None:
    x, y = data()
    figure, grid = plt.subplots(2, 2, figsize=(10, 5), layout="constrained", sharex=True, sharey=True)
    numbers = {str(count): draw(axes, x, y, count) for axes, count in zip(grid.flat, COUNTS, strict=True)}
    for axes in grid[1]:
        axes.set_xlabel("x")
    for axes in grid[:, 0]:
        axes.set_ylabel("value")
    save(figure, "line", numbers)


if __name__ == "__main__":
    main()
