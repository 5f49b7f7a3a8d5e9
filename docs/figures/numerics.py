"""Float32 on a Gaussian kernel that grows wider: the textbook formula fails, cells solved again in float64 do not.

python docs/figures/numerics.py
"""

from __future__ import annotations

import math
import warnings

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from style import BLUE, GRAY, INK, ORANGE, save
from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.errors import RidgeRaisedWarning

LENGTHSCALES = tuple(0.0125 * 2**step for step in range(9))
RIDGE = 1e-9  # the default of the library
NUM_CENTERS, NUM_QUERIES, NUM_NEIGHBORS = 1000, 200, 30


def function(points: Tensor) -> Tensor:
    return torch.sin(6 * points[:, :1]) * torch.cos(4 * points[:, 1:])


def squared(a: Tensor, b: Tensor) -> Tensor:
    """By differences: nothing cancels."""
    return (a[:, :, None] - b[:, None]).square().sum(-1)


def textbook(query: Tensor, centers: Tensor, values: Tensor, cells: Tensor, lengthscale: float) -> Tensor:
    """The formula as it is written, in the dtype of the data; NaN where Cholesky fails."""
    points, near = centers[cells] / lengthscale, query[:, None] / lengthscale
    gram = torch.exp(-squared(points, points) / 2) + RIDGE * torch.eye(NUM_NEIGHBORS, dtype=query.dtype)
    row = torch.exp(-squared(near, points) / 2)
    factor, info = torch.linalg.cholesky_ex(gram)
    found = (row @ torch.cholesky_solve(values[cells], factor))[:, 0]
    return torch.where(info[:, None] == 0, found, torch.nan)


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    centers, query = torch.rand(NUM_CENTERS, 2, generator=generator), torch.rand(NUM_QUERIES, 2, generator=generator)
    values = function(centers)
    cells = neighbors.nearest(query, centers, NUM_NEIGHBORS)
    exact = (query.double(), centers.double(), values.double())
    errors: dict[str, list[float | None]] = {"textbook, float32": [], "torchkrr, float32": []}
    failed, warned = [], 0
    for lengthscale in LENGTHSCALES:
        kernel = kernels.Gaussian(lengthscale)
        wanted = F.local_kernel_ridge(*exact, cells, kernel=kernel, ridge=RIDGE)
        plain = textbook(query, centers, values, cells, lengthscale)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RidgeRaisedWarning)
            ours = F.local_kernel_ridge(query, centers, values, cells, kernel=kernel, ridge=RIDGE)
        warned += len(caught)
        failed.append(float(plain.isnan().double().mean()))
        gap = (plain - wanted).abs()
        solved = gap[~gap.isnan()]
        errors["textbook, float32"].append(float(solved.max()) if len(solved) else None)
        errors["torchkrr, float32"].append(float((ours - wanted).abs().max()))

    figure, (largest, share) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1.5, 1))
    for (name, curve), color in zip(errors.items(), (ORANGE, BLUE), strict=True):
        shown = [math.nan if error is None else error for error in curve]
        largest.plot(LENGTHSCALES, shown, marker="o", markersize=4, color=color, label=name)
    largest.axhline(float(values.abs().max()), color=GRAY, linestyle=":", label="largest value")
    largest.set(xscale="log", yscale="log", xlabel="lengthscale", ylabel="largest difference to float64")
    largest.set_title(f"{NUM_NEIGHBORS} neighbors, Gaussian kernel, ridge {RIDGE:g}", color=INK)
    largest.grid(True)
    largest.legend()
    share.plot(LENGTHSCALES, [100 * part for part in failed], marker="o", markersize=4, color=ORANGE)
    share.set(xscale="log", xlabel="lengthscale", ylabel="%", ylim=(-3, 103))
    share.set_title("cells in which the textbook's Cholesky fails", color=INK)
    share.grid(True)
    numbers = {"lengthscales": LENGTHSCALES, "largest_difference": errors, "share_failed": failed, "warnings": warned}
    save(figure, "numerics", numbers)


if __name__ == "__main__":
    main()
