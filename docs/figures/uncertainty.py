"""Intervals from leave-one-out, with one scale and with a scale per cell.

python docs/figures/uncertainty.py
"""

from __future__ import annotations

from typing import Any, Literal

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import torchkrr
from style import BLUE, INK, ORANGE, save
from torchkrr import kernels

CHOICES: dict[str, Any] = {"kernel": kernels.Matern32(0.3), "ridge": 0.05, "trend": "constant"}
COVERAGE = 0.9
SEEDS = 20


def noise_at(x: Tensor) -> Tensor:
    return torch.where(x > 0.55, 0.45, 0.08)


def data(count: int, seed: int, *, gap: bool) -> tuple[Tensor, Tensor]:
    """A wave; little noise on the left, much on the right; with `gap` nothing is known in between."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2 * count, 1, generator=generator, dtype=torch.float64)
    x = x[~((x > 0.3) & (x < 0.42))][:, None][:count] if gap else x[:count]
    noise = torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(8 * x) + noise_at(x) * noise


def shares(scale: Literal["global", "cell"]) -> dict[str, float]:
    """Share of new values inside the interval, left and right of the change of noise, over several draws."""
    left, right = [], []
    for seed in range(SEEDS):
        layer = torchkrr.nn.LocalKernelRidge(*data(400, seed, gap=False), 30, **CHOICES)
        x, y = data(2000, 1000 + seed, gap=False)
        found = torchkrr.calibrate(layer, scale=scale).interval(x, COVERAGE)
        inside = ((found.lower <= y) & (y <= found.upper)).double()
        left.append(float(inside[x < 0.55].mean()))
        right.append(float(inside[x > 0.55].mean()))
    mean_left, mean_right = sum(left) / SEEDS, sum(right) / SEEDS
    return {"all": 0.55 * mean_left + 0.45 * mean_right, "left": mean_left, "right": mean_right}


@torch.no_grad()
def main() -> None:
    x, y = data(250, 0, gap=True)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 30, **CHOICES)
    query = torch.linspace(0, 1, 801, dtype=torch.float64)[:, None]
    figure, row = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained", sharey=True)
    numbers: dict[str, Any] = {"coverage_asked_for": COVERAGE, "draws": SEEDS}
    titles = {"global": "one scale for all queries", "cell": "a scale per cell"}
    scales: tuple[Literal["global", "cell"], ...] = ("global", "cell")
    for axes, scale, color in zip(row, scales, (ORANGE, BLUE), strict=True):
        found = torchkrr.calibrate(layer, scale=scale).interval(query, COVERAGE)
        lower, mean, upper = found.lower[:, 0], found.mean[:, 0], found.upper[:, 0]
        axes.fill_between(query[:, 0], lower, upper, color=color, alpha=0.2, linewidth=0, label="90 % interval")
        axes.plot(query[:, 0], mean, color=color, label="prediction")
        axes.plot(x[:, 0], y[:, 0], ".", color=INK, markersize=3.5, label="data")
        numbers[scale] = shares(scale)
        share = numbers[scale]
        caption = f"new values inside: {100 * share['left']:.0f} % left of 0.55, {100 * share['right']:.0f} % right of it"
        axes.set(xlim=(0, 1), xlabel=f"x\n{caption}", title=titles[scale])
        axes.axvline(0.55, color=INK, linewidth=0.7, linestyle=":")
    row[0].set_ylabel("value")
    row[0].legend(loc="lower left", ncols=3, columnspacing=1)
    row[0].set_ylim(-2.9, 2.6)
    save(figure, "uncertainty", numbers)


if __name__ == "__main__":
    main()
