"""Franke's function from 150 scattered values: all data sites, 20 neighbors, the same faded, and where each is wrong.

python docs/figures/scattered.py
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from style import INK, save, unit_square
from torchkrr.interpolate import RBFInterpolator

SIDE, SITES, NEIGHBORS = 200, 150, 20
WAYS: dict[str, dict[str, Any]] = {
    "all data sites": {},
    f"{NEIGHBORS} neighbors": {"neighbors": NEIGHBORS},
    f"{NEIGHBORS} neighbors, faded": {"neighbors": NEIGHBORS, "fade": True},
}


def franke(x: Tensor) -> Tensor:
    a, b = 9 * x[:, 0], 9 * x[:, 1]
    hills = 0.75 * torch.exp(-((a - 2).square() + (b - 2).square()) / 4)
    hills = hills + 0.75 * torch.exp(-(a + 1).square() / 49 - (b + 1) / 10)
    hills = hills + 0.5 * torch.exp(-((a - 7).square() + (b - 3).square()) / 4)
    return hills - 0.2 * torch.exp(-(a - 4).square() - (b - 7).square())


def main() -> None:
    places = torch.rand(SITES, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    axis = torch.linspace(0, 1, SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    truth = franke(grid)
    figure, panels = plt.subplots(2, 4, figsize=(11, 5.4), layout="constrained")
    numbers: dict[str, Any] = {"sites": SITES}
    shown: dict[str, Any] = {"origin": "lower", "extent": (0, 1, 0, 1), "interpolation": "nearest"}
    for column, (name, choices) in enumerate([("the function", None), *WAYS.items()]):
        found = truth if choices is None else RBFInterpolator(places, franke(places), **choices)(grid)
        above, below = panels[:, column]
        surface = above.imshow(found.view(SIDE, SIDE).T, vmin=0, vmax=1.25, **shown)
        above.set_title(name)
        unit_square(above)
        if choices is None:
            below.plot(*places.T, ".", color=INK, markersize=4)
            below.set_title(f"{SITES} data sites")
        else:
            error = (found - truth).abs()
            numbers[name] = {"root_mean_square": float(error.square().mean().sqrt()), "largest": float(error.max())}
            wrong = below.imshow(error.view(SIDE, SIDE).T, vmin=0, vmax=0.06, cmap="Oranges", **shown)
            below.set_title(f"its error: {numbers[name]['root_mean_square']:.4f} on average")
        unit_square(below)
    figure.colorbar(surface, ax=panels[0].tolist(), shrink=0.8)
    figure.colorbar(wrong, ax=panels[1].tolist(), shrink=0.8)
    save(figure, "scattered", numbers)


if __name__ == "__main__":
    main()
