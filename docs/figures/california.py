"""House values of California at real coordinates: a map with its standard deviation, and how well places left out are found.

python docs/figures/california.py
"""

from __future__ import annotations

import csv
import pathlib
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from style import BLUE, GRAY, INK, save
from torchkrr.interpolate import RBFInterpolator

FILE = pathlib.Path(__file__).parents[1] / "data" / "california.csv"
SMOOTHINGS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
NEIGHBORS, HELD_OUT, SIDE = 100, 300, 220
KILOMETERS = (87.0, 111.0)  # of a degree of longitude and of latitude, in the middle of California


def load() -> tuple[Tensor, Tensor]:
    """Places in hundreds of kilometers, and the logarithm of the value, base ten."""
    with FILE.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    table = torch.tensor(
        [[float(row[name]) for name in ("longitude", "latitude", "value")] for row in rows], dtype=torch.float64
    )
    return table[:, :2] * torch.tensor(KILOMETERS) / 100, table[:, 2].log10()


def main() -> None:
    places, values = load()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    choices: dict[str, Any] = {"neighbors": NEIGHBORS, "kernel": "linear"}
    errors = {}
    for smoothing in SMOOTHINGS:
        f = RBFInterpolator(places[train], values[train], smoothing=smoothing, **choices)
        mean = f(places[test])
        errors[smoothing] = float((mean - values[test]).square().mean().sqrt())
    best = min(errors, key=errors.__getitem__)
    f = RBFInterpolator(places, values, smoothing=best, fade=True, **choices)
    (left, bottom), (right, top) = places.amin(0), places.amax(0)
    x, y = torch.linspace(left, right, SIDE, dtype=torch.float64), torch.linspace(bottom, top, SIDE, dtype=torch.float64)
    mean, deviation = f(torch.cartesian_prod(x, y), return_std=True)
    far = torch.cdist(torch.cartesian_prod(x, y), places).amin(1) > 0.4
    figure, (first, second, third) = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained")
    extent = (float(left), float(right), float(bottom), float(top))
    shown: dict[str, Any] = {"origin": "lower", "extent": extent, "aspect": "equal"}
    for axes, surface, title, look in (
        (first, 10**mean / 1000, "value of a house, thousands of dollars", {"vmin": 50, "vmax": 400}),
        (second, deviation, "standard deviation of its logarithm", {"cmap": "Oranges"}),
    ):
        drawn = axes.imshow(surface.masked_fill(far, torch.nan).view(SIDE, SIDE).T, **shown, **look)
        axes.plot(*places.T, ".", color=INK, markersize=0.6)
        axes.set(title=title, xticks=(), yticks=())
        figure.colorbar(drawn, ax=axes, shrink=0.7)
    third.plot(list(errors), list(errors.values()), marker="o", color=BLUE)
    third.axhline(float(values[test].std()), color=GRAY, linewidth=1)
    third.annotate(
        "the mean of all", (SMOOTHINGS[0], float(values[test].std())), xytext=(0, -12), textcoords="offset points"
    )
    third.set(xscale="log", xlabel="smoothing", title=f"error at {HELD_OUT} places left out")
    save(figure, "california", {"places": len(places), "neighbors": NEIGHBORS, "error": errors, "chosen": best})


if __name__ == "__main__":
    main()
