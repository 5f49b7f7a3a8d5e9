"""The plain local predictor jumps between cells; three forms do not.

python docs/figures/continuity.py
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from style import BLUE, GRAY, GREEN, INK, ORANGE, save
from torchkrr import kernels, nn

NUM_FEATURES = 4
QUERY = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
STEPS = tuple(2**power for power in range(8, 17))
COLORS = {"plain": GRAY, "faded": BLUE, "blended": ORANGE, "hierarchical": GREEN}
TITLES = {
    "plain": "plain: jumps where neighbors change",
    "faded": "faded: neighbors fade before they leave",
    "blended": "blended: mean of fixed local fits",
    "hierarchical": "hierarchical: coarse fit + local parts",
}


def layers(
    centers: Tensor, values: Tensor, num_neighbors: int, num_coarse: int, kernel: kernels.Kernel, ridge: float = 1e-6
) -> dict[str, torch.nn.Module]:
    choices: dict[str, Any] = {"kernel": kernel, "ridge": ridge}
    return {
        "plain": nn.LocalKernelRidge(centers, values, num_neighbors, **choices),
        "faded": nn.LocalKernelRidge(centers, values, num_neighbors, fade=True, **choices),
        "blended": nn.BlendedKernelRidge(centers, values, num_neighbors, num_blended=3, **choices),
        "hierarchical": nn.HierarchicalKernelRidge(centers, values, num_neighbors, num_coarse=num_coarse, **choices),
    }


def line() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A few noisy values on a line, and what the four layers make of them with four neighbors."""
    generator = torch.Generator().manual_seed(3)
    centers = torch.rand(26, 1, generator=generator, dtype=torch.float64).sort(0).values
    values = torch.sin(9 * centers) + 0.35 * torch.randn(26, 1, generator=generator, dtype=torch.float64)
    made = layers(centers, values, 4, 6, kernels.Matern32(0.5), ridge=0.03)
    return centers, values, {name: layer(QUERY)[:, 0] for name, layer in made.items()}


def largest_steps() -> dict[str, list[float]]:
    """The largest change along a segment through many cells, against the length of the steps."""
    generator = torch.Generator().manual_seed(1)
    centers = torch.rand(300, NUM_FEATURES, generator=generator, dtype=torch.float64)
    values = torch.sin(4 * centers.sum(1, keepdim=True)) + 0.3 * torch.randn(
        300, 1, generator=generator, dtype=torch.float64
    )
    start, stop = torch.rand(2, NUM_FEATURES, generator=generator, dtype=torch.float64)
    found: dict[str, list[float]] = {}
    for name, layer in layers(centers, values, 20, 30, kernels.Matern32(1.0)).items():
        found[name] = []
        for steps in STEPS:
            path = torch.lerp(start, stop, torch.linspace(0, 1, steps + 1, dtype=torch.float64)[:, None])
            found[name].append(float(layer(path).diff(dim=0).abs().max()))
    return found


@torch.no_grad()
def main() -> None:
    centers, values, curves = line()
    jumps = largest_steps()
    figure = plt.figure(figsize=(11, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(1, 1, 1.05))
    for number, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[number // 2, number % 2])
        axes.plot(QUERY[:, 0], curve, ".", markersize=1.6, color=COLORS[name] if name != "plain" else INK)
        axes.plot(centers[:, 0], values[:, 0], "o", color=INK, markersize=4)
        axes.set(xlim=(0, 1), ylim=(-1.35, 1.6), xticks=(0, 0.5, 1), yticks=(-1, 0, 1), title=TITLES[name])
    axes = figure.add_subplot(grid[:, 2])
    for name, found in jumps.items():
        axes.plot([1 / steps for steps in STEPS], found, marker="o", markersize=3.5, color=COLORS[name], label=name)
    axes.set(xscale="log", yscale="log", xlabel="step, as a share of the segment", ylabel="largest change in one step")
    axes.set_title(f"A segment in {NUM_FEATURES} dimensions")
    axes.grid(True)
    axes.legend()
    save(figure, "continuity", {"steps": STEPS, "largest_change": jumps})


if __name__ == "__main__":
    main()
