"""Sensitivity of the local layer, from recorded runs, and a metric as it is learned.

python docs/figures/choosing.py        # the records come from: make bench-tuning DATA=FOLDER
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import torchkrr
from style import BLUE, DOCS, GRAY, GREEN, INK, ORANGE, save

RECORDS = DOCS.parent / "benchmarks" / "results" / "sensitivity.jsonl"
PROFILES = {"Exponential": BLUE, "Matern32": ORANGE, "Matern52": GREEN, "Gaussian": INK}
TABLES = {
    "airfoil": "airfoil, 1353 rows, 5 features",
    "elevators": "elevators, 14940 rows, 18",
    "kin40k": "kin40k, 36000 rows, 8",
}
NEIGHBORS = (5, 10, 20, 50, 100, 200)

Record = dict[str, Any]


def read(path: pathlib.Path) -> list[Record]:
    return [record for line in path.read_text().splitlines() if "table" in (record := json.loads(line))]


def draw_table(row: list[Axes], records: list[Record], title: str) -> None:
    for profile, color in PROFILES.items():
        own = sorted((r for r in records if r["profile"] == profile), key=lambda r: r["ridge"])
        style: dict[str, Any] = {"color": color, "marker": "o", "markersize": 3.2, "linewidth": 1.5, "label": profile}
        row[0].plot(NEIGHBORS, [min(r[f"rmse_{m}"] for r in own) for m in NEIGHBORS], **style)
        row[1].plot([r["ridge"] for r in own], [r["rmse_100"] for r in own], **style)
        best = min(own, key=lambda r: r["rmse_100"])
        row[2].plot(NEIGHBORS, [best[f"solve_us_{m}"] for m in NEIGHBORS], **style)
    search = [min(r[f"search_us_{m}"] for r in records) for m in NEIGHBORS]
    row[2].plot(NEIGHBORS, search, color=GRAY, linestyle="--", linewidth=1.5, label="search")
    row[0].set(xscale="log", yscale="log", ylabel=f"{title}\n\ntest RMSE")
    row[1].set(xscale="log", yscale="log")
    row[2].set(xscale="log", yscale="log", ylabel="µs per query")
    for axes in row:
        axes.grid(True)
        axes.minorticks_off()
    for axes in row[:2]:
        low, high = axes.get_ylim()
        ticks = [tick for tick in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0) if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    for axes in (row[0], row[2]):
        axes.set_xticks((5, 20, 50, 200), ("5", "20", "50", "200"))


def sensitivity() -> None:
    records = read(RECORDS)
    figure, grid = plt.subplots(len(TABLES), 3, figsize=(11, 8.6), layout="constrained", sharex="col")
    for row, (name, title) in zip(grid, TABLES.items(), strict=True):
        draw_table(list(row), [r for r in records if r["table"] == name], title)
    grid[0, 0].set_title("at the ridge that is best on the test rows")
    grid[0, 1].set_title("at M = 100")
    grid[0, 2].set_title("time to solve, and to search")
    for axes, label in zip(grid[-1], ("neighbors M", "ridge", "neighbors M"), strict=True):
        axes.set_xlabel(label)
    handles, labels = grid[0, 2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    best = {name: {profile: _best(records, name, profile) for profile in PROFILES} for name in TABLES}
    save(figure, "sensitivity", {"records": "benchmarks/results/sensitivity.jsonl", "best": best})


def _best(records: list[Record], name: str, profile: str) -> Record:
    own = [r for r in records if r["table"] == name and r["profile"] == profile]
    rmse, m, record = min(((r[f"rmse_{m}"], m, r) for r in own for m in NEIGHBORS), key=lambda found: found[0])
    return {"rmse": rmse, "num_neighbors": m, "ridge": record["ridge"], "lengthscale": record["lengthscale"]}


def learned_metric() -> None:
    """Eight features of which two matter, one more than the other."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 8, generator=generator)
    y = torch.sin(7 * x[:, :1]) + 0.5 * torch.cos(3 * x[:, 1:2]) + 0.05 * torch.randn(2000, 1, generator=generator)
    test = torch.rand(1000, 8, generator=generator)
    truth = torch.sin(7 * test[:, :1]) + 0.5 * torch.cos(3 * test[:, 1:2])
    first = torchkrr.select(x, y, num_samples=300)
    learned = torchkrr.learn_metric(x, y, kernel=first.kernel, ridge=max(first.ridge, 1e-4))
    errors = {}
    for name, layer in {"select": first.layer(x, y), "learned metric": learned.layer(x, y, 100)}.items():
        with torch.no_grad():
            errors[name] = float((layer(test) - truth).square().mean().sqrt())
    figure = learned.plot()
    lengthscales = learned.kernel.lengthscale.tolist()
    save(figure, "metric", {"rmse": errors, "lengthscales": lengthscales, "steps": learned.history[-1].step})
    figure = first.plot()
    save(figure, "select", {"num_neighbors": first.num_neighbors, "ridge": first.ridge, "mse": first.score})


if __name__ == "__main__":
    sensitivity()
    learned_metric()
