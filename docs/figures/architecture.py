"""The rooms of the package in the order of their imports, and the rooms that four calls enter.

python docs/figures/architecture.py
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from style import BLUE, GRAY, GREEN, INK, ORANGE, save

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from tools.walk import calls, walk

ROOMS = {
    "errors": "one tree of errors and warnings",
    "_checks, _tensors, ...": "helpers: validation, precision, byte budgets, files, threads",
    "distances, transforms, kernels": "embed the points; a profile of their distance",
    "native": "the compiled solver and search",
    "neighbors": "search: exact, streamed, faiss, auto",
    "core": "form, factor and solve systems on embedded points",
    "functional": "the mathematics, stateless",
    "nn": "the same as modules, with what they cache",
    "tuning, losses": "everything chosen, and trained, by leave-one-out",
    "storage": "one file for a layer or an estimator",
    "interpolate": "scipy's vocabulary for scattered data",
    "estimators": "scikit-learn's vocabulary, for features, tables and text",
    "models": "features of a network, and networks that end in a kernel",
    "distributed": "centers sharded over processes",
    "stores": "rows in PostgreSQL or LanceDB, heads on them",
    "runs, vision, text": "images and sentences to features, readouts, probing",
    "quality": "label errors, outliers, duplicates, what to label next",
    "diagnosis, cli": "the command torchkrr",
}
CALLS = {"forward": BLUE, "backward": ORANGE, "fit": GREEN, "predict": INK}


def room_of(file: str) -> str:
    name = file.split("/")[0].removesuffix(".py")
    return next(room for room in ROOMS if name in room.split(", ") or (name.startswith("_") and room.startswith("_")))


def draw_room(axes: Axes, y: float, name: str, purpose: str, *, installed: bool = True) -> None:
    look: Any = {"facecolor": "#eef3f6"} if installed else {"facecolor": "white", "linestyle": "--"}
    axes.add_patch(FancyBboxPatch((0, y - 0.32), 3.5, 0.64, boxstyle="round,pad=0.03", edgecolor=GRAY, **look))
    axes.text(1.75, y, name, ha="center", va="center", color=INK, fontsize=9.5, family="monospace")
    axes.text(3.8, y, purpose, va="center", color=INK, fontsize=9.5)


def main() -> None:
    prepared = calls()
    ways = {name: walk(prepared[name]).files for name in CALLS}
    places = {room: -1.0 * row for row, room in enumerate(ROOMS)}

    figure, axes = plt.subplots(figsize=(11, 7.4), layout="constrained")
    for room, purpose in ROOMS.items():
        draw_room(axes, places[room], room, purpose)
    last = min(places.values())
    draw_room(axes, last - 1.2, "paper", "the paper's experiments, outside the installed package", installed=False)
    axes.add_patch(FancyArrowPatch((-0.35, last - 1.2), (-0.35, 0), arrowstyle="-|>", mutation_scale=14, color=GRAY))
    axes.text(-0.6, last / 2, "imports", rotation=90, ha="center", va="center", color=GRAY)
    for column, (name, color) in enumerate(CALLS.items()):
        x = 10.2 + 1.25 * column
        rooms = list(dict.fromkeys(map(room_of, ways[name])))
        axes.text(x, 0.85, name, ha="center", color=color, fontsize=10.5)
        axes.plot([x, x], [0.3, last - 0.3], color=GRAY, linewidth=0.6, alpha=0.4, zorder=0)
        for number, room in enumerate(rooms, 1):
            axes.plot(x, places[room], "o", markersize=17, color=color)
            axes.text(x, places[room], str(number), ha="center", va="center_baseline", color="white", fontsize=9)
    axes.set(xlim=(-0.9, 14.6), ylim=(last - 1.8, 1.4))
    axes.set_axis_off()
    save(figure, "architecture", {"files": ways})


if __name__ == "__main__":
    main()
