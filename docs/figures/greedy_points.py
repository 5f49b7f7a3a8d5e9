"""Three greedy rules on one function: the points they choose, and the error against their number.

python docs/figures/greedy_points.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from style import BLUE, GRAY, GREEN, ORANGE, save, unit_square
from torchkrr import functional as F
from torchkrr import kernels

KERNEL = kernels.Matern52(0.5)
SHOWN = 60
COUNTS = (5, 10, 20, 40, 60, 80, 120, 160)
RANDOM_DRAWS = 10
NOISE = 0.2
SIDE = 81
AXIS = torch.linspace(0, 1, SIDE, dtype=torch.float64)
GRID = torch.cartesian_prod(AXIS, AXIS)
STYLES = {
    "farthest": ("Farthest points", BLUE, "o"),
    "power": ("P-greedy: power function", GREEN, "s"),
    "residual": ("f-greedy: residual", ORANGE, "D"),
}


def ridge_and_plain(points: Tensor) -> Tensor:
    """A steep quarter circle on a gentle slope."""
    radius = points.norm(dim=1)
    return (torch.tanh(20 * (radius - 0.6)) + 0.5 * points[:, 0]).unsqueeze(1)


def error(points: Tensor, values: Tensor, rows: Tensor) -> tuple[float, float]:
    """Root mean square and largest error on the grid of the interpolant on some rows."""
    fitted = F.kernel_ridge(GRID, points[rows], values[rows], kernel=KERNEL)
    gap = (fitted - ridge_and_plain(GRID)).abs()
    return float(gap.square().mean().sqrt()), float(gap.max())


def draw_points(axes: Axes, points: Tensor, rows: Tensor, rule: str, rmse: float) -> None:
    title, color, _ = STYLES[rule]
    field = ridge_and_plain(GRID).reshape(SIDE, SIDE).T
    axes.contourf(AXIS, AXIS, field, levels=np.linspace(-1, 1.5, 11), cmap="Greys", vmin=-1, vmax=7)
    axes.plot(*points[rows[:SHOWN]].T, "o", color=color, markersize=5.5, markeredgecolor="white", clip_on=False)
    unit_square(axes)
    axes.set_title(title)
    axes.set_xlabel(f"{SHOWN} points: RMSE {rmse:.3f}")


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2000, 2, generator=generator, dtype=torch.float64)
    values = ridge_and_plain(points)
    most = COUNTS[-1]
    chosen = {
        "farthest": F.farthest_points(points, most),
        "power": F.power_greedy(points, most, kernel=KERNEL),
        "residual": F.residual_greedy(points, values, most, kernel=KERNEL),
    }
    draws = [torch.randperm(len(points), generator=generator) for _ in range(RANDOM_DRAWS)]
    errors = {rule: {count: error(points, values, rows[:count]) for count in COUNTS} for rule, rows in chosen.items()}
    errors["random"] = {}
    for count in COUNTS:
        mean = np.mean([error(points, values, rows[:count]) for rows in draws], axis=0)
        errors["random"][count] = (float(mean[0]), float(mean[1]))

    noisy = values + NOISE * torch.randn(values.shape, generator=generator, dtype=torch.float64)
    noisy_rows = F.residual_greedy(points, noisy, most, kernel=KERNEL)
    errors["farthest, noisy values"] = {n: error(points, noisy, chosen["farthest"][:n]) for n in COUNTS}
    errors["residual, noisy values"] = {n: error(points, noisy, noisy_rows[:n]) for n in COUNTS}

    figure = plt.figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplot_mosaic("aabbcc;rrrlll", height_ratios=(1.3, 1))
    for key, (rule, rows) in zip("abc", chosen.items(), strict=True):
        draw_points(axes[key], points, rows, rule, errors[rule][SHOWN][0])
    for panel, part, name in (("r", 0, "RMSE on a grid"), ("l", 1, "largest error on a grid")):
        curve = [errors["random"][count][part] for count in COUNTS]
        axes[panel].plot(COUNTS, curve, color=GRAY, linestyle="--", label=f"random (mean of {RANDOM_DRAWS})")
        for rule, (title, color, marker) in STYLES.items():
            curve = [errors[rule][count][part] for count in COUNTS]
            axes[panel].plot(COUNTS, curve, color=color, marker=marker, markersize=4, label=title.split(":")[0])
        axes[panel].set(xscale="log", yscale="log", xlabel="number of points", ylabel=name)
        axes[panel].set_xticks((5, 10, 20, 40, 80, 160), ("5", "10", "20", "40", "80", "160"))
        axes[panel].minorticks_off()
        axes[panel].grid()
    axes["r"].legend(loc="lower left")
    numbers = {
        rule: {str(count): {"rmse": pair[0], "largest": pair[1]} for count, pair in by_count.items()}
        for rule, by_count in errors.items()
    }
    save(figure, "greedy_points", numbers)


if __name__ == "__main__":
    main()
