"""Neighbors before and after a metric is learned: the function changes along one diagonal only.

python docs/figures/learned_metric.py
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import torchkrr
from style import BLUE, GRAY, INK, ORANGE, save, unit_square
from torchkrr import kernels, neighbors

NUM_NEIGHBORS, NOISE = 30, 0.1
SIDE = 101
AXIS = torch.linspace(0, 1, SIDE)
ASKED = torch.tensor([[0.5, 0.5]])


def wave(points: Tensor) -> Tensor:
    return torch.sin(9 * (points[:, :1] + 0.6 * points[:, 1:]))


def error(layer: torchkrr.nn.LocalKernelRidge) -> float:
    with torch.no_grad():
        grid = torch.cartesian_prod(AXIS, AXIS)
        return float((layer(grid) - wave(grid)).square().mean().sqrt())


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 2, generator=generator)
    y = wave(x) + NOISE * torch.randn(600, 1, generator=generator)
    start = kernels.Matern32(0.5)
    learned = torchkrr.learn_metric(x, y, kernel=start, metric="linear", ridge=1e-2, steps=200, num_neighbors=NUM_NEIGHBORS)
    choices: dict[str, Any] = {"ridge": learned.ridge, "trend": "constant"}
    figure, row = plt.subplots(1, 2, figsize=(9.4, 4.6), layout="constrained", sharey=True)
    numbers = {}
    field = wave(torch.cartesian_prod(AXIS, AXIS)).reshape(SIDE, SIDE).T
    for axes, (name, kernel) in zip(row, {"Euclidean": start, "learned": learned.kernel}.items(), strict=True):
        layer = torchkrr.nn.LocalKernelRidge(x, y, NUM_NEIGHBORS, kernel=kernel, **choices)
        numbers[name] = error(layer)
        near = x[neighbors.nearest(ASKED, x, NUM_NEIGHBORS, kernel=kernel)[0]]
        axes.contourf(AXIS, AXIS, field, levels=11, cmap="Greys", vmin=-1, vmax=4)
        axes.plot(*x.T, ".", color=GRAY, markersize=2.5)
        axes.plot(*near.T, "o", color=BLUE, markersize=5, markeredgecolor="white", label=f"its {NUM_NEIGHBORS} neighbors")
        axes.plot(*ASKED.T, "*", color=ORANGE, markersize=15, markeredgecolor="white", label="a query", zorder=4)
        unit_square(axes)
        axes.set_title(f"{name} metric: RMSE {numbers[name]:.3f}", color=INK)
    row[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    save(figure, "learned_metric", {"rmse": numbers, "ridge": learned.ridge})


if __name__ == "__main__":
    main()
