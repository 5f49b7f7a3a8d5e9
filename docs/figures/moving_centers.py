"""Sixteen learned centers on a function with a steep arc: where they start, where they go, and what it brings.

python docs/figures/moving_centers.py
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from style import BLUE, GRAY, INK, ORANGE, save, unit_square
from torchkrr import kernels, nn

SIDE = 61
AXIS = torch.linspace(0, 1, SIDE)
GRID = torch.cartesian_prod(AXIS, AXIS)
PER_SIDE, STEPS = 4, 400


def steep(points: Tensor) -> Tensor:
    return torch.tanh(10 * (points.norm(dim=1, keepdim=True) - 0.7))


def learn(*, centers_too: bool) -> tuple[Tensor, list[float]]:
    """The path of the centers, `(steps + 1, 16, 2)`, and the RMSE on a grid after each step."""
    inside = (torch.arange(PER_SIDE) + 0.5) / PER_SIDE
    start = torch.cartesian_prod(inside, inside)
    layer = nn.KernelRidge(
        start,
        steep(start),
        kernel=kernels.Matern32(0.5),
        ridge=1e-4,
        learn_centers=centers_too,
        learn_values=True,
    )
    points = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    targets = steep(points)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    path, errors = [], []
    for step in range(STEPS + 1):
        with torch.no_grad():
            path.append(layer.centers.clone())
            errors.append(float((layer(GRID) - steep(GRID)).square().mean().sqrt()))
        if step < STEPS:
            loss = (layer(points) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.stack(path), errors


def main() -> None:
    path, errors = learn(centers_too=True)
    _, fixed = learn(centers_too=False)
    figure, (trails, curves) = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained", width_ratios=(1, 1.3))
    levels = np.linspace(-1, 1, 11)
    trails.contourf(AXIS, AXIS, steep(GRID).reshape(SIDE, SIDE).T, levels=levels, cmap="Greys", vmin=-1, vmax=4)
    for center in path.unbind(1):
        trails.plot(*center.T, color=BLUE, linewidth=1.2)
    style: dict[str, Any] = {"linestyle": "", "marker": "o", "zorder": 3}
    trails.plot(*path[0].T, color="white", markeredgecolor=BLUE, markersize=5, label="start", **style)
    trails.plot(*path[-1].T, color=ORANGE, markeredgecolor="white", markersize=7, label=f"after {STEPS} steps", **style)
    unit_square(trails)
    low, high = path.flatten(0, 1).min(0).values - 0.04, path.flatten(0, 1).max(0).values + 0.04
    trails.set(xlim=(min(0, float(low[0])), max(1, float(high[0]))), ylim=(min(0, float(low[1])), max(1, float(high[1]))))
    trails.set_title("centers move to where the function is steep")
    trails.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    curves.plot(fixed, color=GRAY, label="values learned, centers fixed")
    curves.plot(errors, color=ORANGE, label="values and centers learned")
    curves.set(yscale="log", xlabel="step", ylabel="RMSE on a grid", xlim=(0, STEPS))
    curves.set_title(f"RMSE {fixed[-1]:.3f} with fixed centers, {errors[-1]:.3f} with learned ones", color=INK)
    curves.grid(True, which="both")
    curves.legend()
    save(figure, "moving_centers", {"start": errors[0], "centers_fixed": fixed[-1], "centers_learned": errors[-1]})


if __name__ == "__main__":
    main()
