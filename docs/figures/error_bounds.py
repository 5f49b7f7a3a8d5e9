"""A function of known norm, its interpolant, the bound, and the power function on a square.

python docs/figures/error_bounds.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from style import BLUE, INK, ORANGE, save, unit_square
from torchkrr import functional as F
from torchkrr import kernels, neighbors

KERNEL = kernels.Matern52(0.22)
RIDGE = 1e-12
NUM_NEIGHBORS = 3
QUERY = torch.linspace(0, 1, 801, dtype=torch.float64).unsqueeze(1)
CENTERS = torch.tensor([0.03, 0.12, 0.2, 0.31, 0.38, 0.66, 0.75, 0.93], dtype=torch.float64).unsqueeze(1)


def known_function() -> tuple[Tensor, Tensor, float]:
    """Its values at the query and at the centers, and its norm: a sum of kernels has a norm in closed form."""
    generator = torch.Generator().manual_seed(0)
    knots = torch.linspace(0, 1, 10, dtype=torch.float64).unsqueeze(1)
    weights = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(5).unsqueeze(1)
    weights = weights + 0.5 * torch.randn(10, 1, dtype=torch.float64, generator=generator)
    norm = float((weights.T @ KERNEL(knots, knots) @ weights).sqrt())
    return KERNEL(QUERY, knots) @ weights, KERNEL(CENTERS, knots) @ weights, norm


def sharpness(at: Tensor) -> float:
    """Error over bound at one point, for the function that is worst there: it vanishes on the centers."""
    weights = F.cardinal_weights(at, CENTERS, kernel=KERNEL, ridge=RIDGE)
    knots, scales = torch.cat([at, CENTERS]), torch.cat([torch.ones(1, 1, dtype=at.dtype), -weights.T])
    norm = float((scales.T @ KERNEL(knots, knots) @ scales).sqrt())
    error = KERNEL(at, knots) @ scales
    return float(error / F.error_bound(at, CENTERS, kernel=KERNEL, norm=norm, ridge=RIDGE))


def draw_band(axes: Axes, truth: Tensor, fitted: Tensor, bound: Tensor, values: Tensor) -> None:
    x = QUERY[:, 0]
    axes.fill_between(x, fitted - bound, fitted + bound, color=BLUE, alpha=0.16, linewidth=0, label="prediction ± bound")
    axes.plot(x, fitted, color=BLUE, label="prediction")
    axes.plot(x, truth, color=INK, linewidth=1.3, linestyle="--", label="true function")
    axes.plot(CENTERS, values, "o", color=INK, markersize=5, label="data")
    axes.set(xlim=(0, 1), ylabel="value", title="The true function stays inside the band")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), columnspacing=1.2)


def draw_errors(axes: Axes, error: Tensor, bound: Tensor, local: Tensor, local_error: Tensor) -> None:
    x = QUERY[:, 0]
    axes.plot(x, bound, color=BLUE, label="bound, all")
    axes.plot(x, error, color=BLUE, linewidth=1, linestyle="--", label="error, all")
    axes.plot(x, local, color=ORANGE, label=f"bound, {NUM_NEIGHBORS} nearest")
    axes.plot(x, local_error, color=ORANGE, linewidth=1, linestyle="--", label=f"error, {NUM_NEIGHBORS} nearest")
    axes.set(xlim=(0, 1), yscale="log", ylim=(1e-4, 2), ylabel="absolute error")
    axes.set_title("Each error stays below its bound")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.1), columnspacing=1.0, handlelength=1.6)
    axes.grid()


def draw_map(axes: Axes) -> None:
    generator = torch.Generator().manual_seed(1)
    points = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    points = points[~((points - 0.62).norm(dim=1) < 0.22)]
    side = torch.linspace(0, 1, 101, dtype=torch.float64)
    power = F.power_function(torch.cartesian_prod(side, side), points, kernel=KERNEL)
    levels = np.linspace(0, 1, 11)
    filled = axes.contourf(side, side, power.reshape(101, 101).T, levels=levels)
    axes.plot(*points.T, "o", color=INK, markersize=4)
    unit_square(axes)
    axes.set(title="Power function: large where no data are", xlabel=r"$x_1$", ylabel=r"$x_2$")
    axes.figure.colorbar(filled, ax=axes, label=r"$\epsilon_k$  (0: known, 1: unknown)", shrink=0.75, ticks=(0, 0.5, 1))


def main() -> None:
    truth, values, norm = known_function()
    fitted = F.kernel_ridge(QUERY, CENTERS, values, kernel=KERNEL, ridge=RIDGE)
    bound = F.error_bound(QUERY, CENTERS, kernel=KERNEL, norm=norm, ridge=RIDGE)
    indicator = F.error_indicator(QUERY, CENTERS, values, kernel=KERNEL, ridge=RIDGE)[:, 0]
    cells = neighbors.nearest(KERNEL.embed(QUERY), KERNEL.embed(CENTERS), NUM_NEIGHBORS)
    local_fit = F.local_kernel_ridge(QUERY, CENTERS, values, cells, kernel=KERNEL, ridge=RIDGE)
    local = F.local_error_bound(QUERY, CENTERS, cells, kernel=KERNEL, norm=norm, ridge=RIDGE)
    error, local_error = (fitted - truth)[:, 0].abs(), (local_fit - truth)[:, 0].abs()

    figure = plt.figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplot_mosaic([["band", "map"], ["errors", "map"]], width_ratios=(1.35, 1))
    draw_band(axes["band"], truth[:, 0], fitted[:, 0], bound, values)
    draw_errors(axes["errors"], error, bound, local, local_error)
    draw_map(axes["map"])
    apart = bound > 1e-4  # at a center both are zero, up to rounding
    numbers = {
        "norm_of_f": norm,
        "norm_of_the_fit": float(F.rkhs_norm(CENTERS, values, kernel=KERNEL, ridge=RIDGE)),
        "share_below_bound": float((error <= bound + 1e-5).double().mean()),
        "share_below_local_bound": float((local_error <= local + 1e-5).double().mean()),
        "largest_error": float(error.max()),
        "largest_bound": float(bound.max()),
        "largest_error_over_bound": float((error / bound)[apart].max()),
        "median_error_over_bound": float((error / bound)[apart].median()),
        "median_local_bound_over_bound": float((local / bound)[apart].median()),
        "error_over_bound_of_the_worst_function": sharpness(torch.full((1, 1), 0.5, dtype=torch.float64)),
        "share_below_indicator": float((error <= indicator + 1e-5).double().mean()),
        "largest_error_over_indicator": float((error / indicator)[apart].max()),
    }
    save(figure, "error_bounds", numbers)


if __name__ == "__main__":
    main()
