"""What helps the kernel agent: every run of the recorded study, one dot for each seed.

python docs/figures/lander_study.py
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from style import BLUE, DOCS, GRAY, ORANGE, save

RECORDS = DOCS / "results" / "lander-study.jsonl"
WORDS = {
    "dqn": "plain Double DQN",
    "dqk": "with kernels, as by default",
    "first-only": "only the first kernel part",
    "last-only": "only the last kernel part",
    "last-only-fast": "only the last, rate 5e-2",
    "fast-last": "rate of the last 5e-2",
    "fast-first": "rate of the first 1e-3",
    "values-only": "centers fixed",
    "slow-centers": "rate of centers 1e-4",
    "farthest-centers": "centers at farthest points",
    "half-lengthscale": "half the lengthscale",
    "double-lengthscale": "twice the lengthscale",
    "learned-lengthscale": "lengthscale learned",
    "small-ridge": "ridge 1e-4",
    "gromov-monge": "Gromov-Monge regularizer",
    "last-on-hidden": "last part on the hidden layer",
}
Record = dict[str, Any]


def scores(key: str, records: list[Record]) -> dict[str, list[float]]:
    """The mean of `key` in each run, by the name of the setting."""
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record["label"], []).append(float(np.mean(record[key])))
    return found


def draw(axes: Axes, found: dict[str, list[float]], order: list[str], title: str) -> None:
    for row, name in enumerate(order):
        color = {"dqn": ORANGE, "dqk": BLUE}.get(name, GRAY)
        axes.plot(found[name], [row] * len(found[name]), "o", color=color, alpha=0.55, markersize=5)
        axes.plot([np.mean(found[name])], [row], "|", color=color, markersize=16, markeredgewidth=2.4)
    axes.axvline(float(np.mean(found["dqn"])), color=ORANGE, linewidth=0.9, linestyle=":")
    axes.set(title=title, xlabel="reward", ylim=(len(order) - 0.4, -0.6))
    axes.set_yticks(range(len(order)), [WORDS[name] for name in order])
    axes.grid(axis="x")


def main() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    training, evaluation = scores("rewards", records), scores("evaluation", records)
    order = sorted(training, key=lambda name: -np.mean(training[name]))
    games = len(records[0]["rewards"])
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    draw(panels[0], training, order, f"All {games} training games")
    draw(panels[1], evaluation, order, "100 games after them, without exploration")
    save(figure, "lander_study", {"mean_of_training_games": training, "mean_of_evaluation": evaluation})


if __name__ == "__main__":
    main()
