"""Learned centers that clump, and what spreads them.

    python examples/spread_centers.py --out runs/spread_centers

A kernel ridge layer with 25 learned centers and values is fitted by gradient descent to noisy samples on the unit square.
Its centers start in a clump, and the fit alone does not spread them well. Two transport penalties are tried beside it:
Gromov-Monge between centers and values, and Monge between centers and a spread sample of the training inputs. The target
has one output (a wave) or two (a warp). Prints a table and writes `spread_centers.png` and `spread_centers.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, nn

NUM_CENTERS = 25
NUM_SAMPLES = 400
NOISE = 0.02
STEPS = 300
LEARNING_RATE = 0.05
SEEDS = 3
SIDE = 61
GRID = torch.cartesian_prod(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE))

Map = Callable[[Tensor], Tensor]


def warp(points: Tensor) -> Tensor:
    """Two outputs: the square, bent. Distances between values are close to those between points."""
    return points + 0.12 * torch.sin(2 * math.pi * points.flip(1))


def wave(points: Tensor) -> Tensor:
    """One output: far points may have equal values."""
    a, b = points.T
    return (torch.sin(2 * math.pi * a) * torch.cos(math.pi * b)).unsqueeze(1)


@dataclass(frozen=True)
class Variant:
    """How a layer is started and penalised; the weight is per center (Monge) or per pair of centers (Gromov-Monge)."""

    penalty: str
    weight: float = 0.0
    start: str = "clump"


MAPS: dict[str, Map] = {"wave": wave, "warp": warp}
VARIANTS = {
    "fit alone": Variant("none"),
    "Gromov-Monge 0.01": Variant("gromov-monge", 0.01),
    "Gromov-Monge 0.1": Variant("gromov-monge", 0.1),
    "Monge 0.1": Variant("monge", 0.1),
    "fit alone, spread start": Variant("none", start="spread"),
}


@dataclass
class Record:
    """One fit: its quality on the whole square, and how its centers lie there."""

    target: str
    variant: str
    seed: int
    rmse: float
    fill_distance: float  # from the worst point of the square to its nearest center
    separation: float  # between the two closest centers
    outside: int  # centers that left the square


def fill_distance(centers: Tensor) -> float:
    return float(torch.cdist(GRID, centers).min(1).values.max())


def separation(centers: Tensor) -> float:
    return float(torch.pdist(centers).min())


def outside(centers: Tensor) -> int:
    return int(((centers < 0) | (centers > 1)).any(1).sum())


def begin(target: Map, variant: Variant, seed: int) -> tuple[Tensor, Tensor, Tensor, nn.KernelRidge]:
    """Samples, their noisy values, the spread sample, and the layer before any step."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(NUM_SAMPLES, 2, generator=generator)
    clean = target(points)
    values = clean + NOISE * torch.randn(clean.shape, generator=generator)
    reference = points[F.farthest_points(points, NUM_CENTERS)]
    clump = 0.3 + 0.03 * torch.randn(NUM_CENTERS, 2, generator=generator)
    centers = reference.clone() if variant.start == "spread" else clump
    nearest = torch.cdist(centers, points).argmin(1)
    kernel = kernels.Exponential(0.5)
    layer = nn.KernelRidge(centers, values[nearest], kernel=kernel, ridge=1e-4, learn_centers=True, learn_values=True)
    return points, values, reference, layer


def fit(name: str, label: str, seed: int) -> tuple[Record, nn.KernelRidge]:
    variant = VARIANTS[label]
    points, values, reference, layer = begin(MAPS[name], variant, seed)
    monge, gromov_monge = nn.MongeLoss(), nn.GromovMongeLoss()
    optimizer = torch.optim.Adam(layer.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        loss = (layer(points) - values).square().mean()
        if variant.penalty == "monge":
            loss = loss + variant.weight * monge(layer.centers, reference) / NUM_CENTERS
        elif variant.penalty == "gromov-monge":
            loss = loss + variant.weight * gromov_monge(layer.centers, layer.values) / NUM_CENTERS**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    centers = layer.centers.detach()
    rmse = float(errors(name, layer).square().mean().sqrt())
    spread = fill_distance(centers), separation(centers), outside(centers)
    return Record(name, label, seed, rmse, *spread), layer


@torch.no_grad()
def errors(name: str, layer: nn.KernelRidge) -> Tensor:
    """The length of the error at each point of the grid."""
    gap: Tensor = layer(GRID) - MAPS[name](GRID)
    return gap.square().sum(1).sqrt()


def mean_of(records: list[Record], name: str, label: str) -> dict[str, float]:
    chosen = [asdict(record) for record in records if record.target == name and record.variant == label]
    keys = ("rmse", "fill_distance", "separation", "outside")
    return {key: float(np.mean([record[key] for record in chosen])) for key in keys}


def draw(layers: dict[str, nn.KernelRidge]) -> Figure:
    titles = {
        "start": "Start",
        "fit alone": "Fit alone",
        "Gromov-Monge 0.1": "Fit + Gromov-Monge\nof centers and values",
        "Monge 0.1": "Fit + Monge\nof centers and data",
    }
    figure, row = plt.subplots(1, 4, figsize=(11.5, 3.75), layout="constrained", sharey=True)
    axis = torch.linspace(0, 1, SIDE)
    for axes, (label, title) in zip(np.atleast_1d(row), titles.items(), strict=True):
        layer = layers[label]
        centers = layer.centers.detach()
        error = errors("wave", layer)
        levels = np.linspace(0, 0.3, 13)
        filled = axes.contourf(axis, axis, error.reshape(SIDE, SIDE).T, levels=levels, cmap="Blues", extend="max")
        axes.scatter(*centers.T, s=36, color="#d9730d", edgecolors="white", linewidths=0.9, zorder=3)
        axes.set_title(title, fontsize=10.5)
        caption = f"test RMSE {float(error.square().mean().sqrt()):.3f}\nfill distance {fill_distance(centers):.2f}"
        axes.set_xlabel(f"{caption}\nseparation {separation(centers):.3f}", fontsize=9.5)
        axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor="#6b6b6b", linewidth=0.8))
        axes.set(xlim=(-0.3, 1.15), ylim=(-0.23, 1.08), xticks=(), yticks=(), aspect="equal")
        axes.spines[:].set_visible(False)
    bar = figure.colorbar(filled, ax=row, label="absolute error of the fit", shrink=0.7, pad=0.01, ticks=(0, 0.1, 0.2, 0.3))
    bar.outline.set_visible(False)
    return figure


def table(records: list[Record]) -> list[list[str]]:
    rows = [["target", "variant", "test RMSE", "fill distance", "separation", "outside"]]
    for name in MAPS:
        for label in VARIANTS:
            mean = mean_of(records, name, label)
            rows.append([name, label, *(f"{value:.{d}f}" for value, d in zip(mean.values(), (3, 2, 3, 1), strict=True))])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/spread_centers"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    records: list[Record] = []
    layers = {"start": begin(wave, VARIANTS["fit alone"], 0)[3]}
    for name in MAPS:
        for label in VARIANTS:
            for seed in range(SEEDS):
                record, layer = fit(name, label, seed)
                records.append(record)
                if (name, seed) == ("wave", 0):
                    layers[label] = layer
    rows = table(records)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    out.mkdir(parents=True, exist_ok=True)
    draw(layers).savefig(out / "spread_centers.png", dpi=150)
    means = {name: {label: mean_of(records, name, label) for label in VARIANTS} for name in MAPS}
    report = {"seeds": SEEDS, "means": means, "records": [asdict(record) for record in records]}
    (out / "spread_centers.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {out / 'spread_centers.png'} and {out / 'spread_centers.json'}")


if __name__ == "__main__":
    main()
