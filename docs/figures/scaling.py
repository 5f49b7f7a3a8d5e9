"""How time grows with queries, centers and neighbors, from recorded runs.

python docs/figures/scaling.py        # the records come from: make bench
"""

from __future__ import annotations

import json
import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from style import BLUE, DOCS, GRAY, INK, ORANGE, save

RESULTS = DOCS.parent / "benchmarks" / "results"
COLORS = {"end to end": INK, "search": ORANGE, "solve": BLUE}

Record = dict[str, Any]


def read(name: str) -> list[Record]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def power(x: list[float], y: list[float]) -> float:
    """The slope in a plot of logarithms, from the first point to the last."""
    return math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])


def draw(axes: Axes, x: list[float], curves: dict[str, list[float]], steepest: float) -> dict[str, float]:
    for name, y in curves.items():
        axes.plot(x, y, marker="o", markersize=4, color=COLORS[name], label=name)
    first = next(reversed(curves.values()))[0] if steepest > 1 else next(iter(curves.values()))[0]
    axes.plot(x, [first * (at / x[0]) ** steepest for at in x], color=GRAY, linestyle=":", label=f"power {steepest:g}")
    axes.set(xscale="log", yscale="log")
    axes.grid(True)
    axes.legend()
    return {name: power(x, y) for name, y in curves.items()}


def main() -> None:
    growth = [record for record in read("core.jsonl") if record["case"].startswith("growth")]
    figure, row = plt.subplots(1, 3, figsize=(11.5, 3.9), layout="constrained")
    powers = {}
    for axes, varied, fixed, value in ((row[0], "queries", "centers", 20_000), (row[1], "centers", "queries", 2_000)):
        chosen = sorted((record for record in growth if record[fixed] == value), key=lambda record: record[varied])
        curves = {name: [record["seconds"][name] for record in chosen] for name in COLORS}
        powers[varied] = draw(axes, [record[varied] for record in chosen], curves, 1)
        axes.set(xlabel=varied, ylabel="seconds", title=f"{value:,} {fixed}, 100 neighbors")
    stages = [record for record in read("peers.jsonl") if record["case"].startswith("stages") and record["features"] == 32]
    neighbors = [record["neighbors"] for record in stages]
    curves = {name: [record["microseconds"][name] for record in stages] for name in ("search", "solve")}
    powers["neighbors"] = draw(row[2], neighbors, curves, 2)
    powers["neighbors"]["solve, last doubling"] = power(neighbors[-2:], curves["solve"][-2:])
    row[2].set(xlabel="neighbors", ylabel="microseconds per query", title="20,000 centers of 32 features")
    records = ["benchmarks/results/core.jsonl", "benchmarks/results/peers.jsonl"]
    save(figure, "scaling", {"records": records, "powers": powers})


if __name__ == "__main__":
    main()
