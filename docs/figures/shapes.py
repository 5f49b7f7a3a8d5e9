"""The tensors of one local prediction, drawn to their letters.

python docs/figures/shapes.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from style import BLUE, GRAY, GREEN, INK, ORANGE, save

Q, N, M, D, C = 1.5, 3.4, 1.1, 0.9, 0.6  # sides on the picture


def box(axes: Axes, x: float, y: float, height: float, width: float, name: str, shape: str, color: str) -> None:
    axes.add_patch(
        Rectangle((x, y - height / 2), width, height, facecolor=color, alpha=0.22, edgecolor=color, linewidth=1.4)
    )
    axes.text(x + width / 2, y + height / 2 + 0.12, name, ha="center", va="bottom", color=INK, fontsize=10)
    axes.text(
        x + width / 2, y - height / 2 - 0.14, shape, ha="center", va="top", color=color, family="monospace", fontsize=9.5
    )


def arrow(axes: Axes, start: tuple[float, float], stop: tuple[float, float], text: str) -> None:
    axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=12, color=GRAY, linewidth=1.2))
    middle = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2
    above = 0.12 + 0.3 * (start[1] != stop[1])
    axes.text(middle[0] + 0.1, middle[1] + above, text, ha="center", va="bottom", color=GRAY, fontsize=9)


def main() -> None:
    figure, axes = plt.subplots(figsize=(11, 4.6), layout="constrained")
    box(axes, 0.2, 3.6, Q, D, "query", "(Q, D)", BLUE)
    box(axes, 0.2, 0, N, D, "centers", "(N, D)", GREEN)
    arrow(axes, (1.3, 3.4), (3.5, 2.3), "search")
    arrow(axes, (1.3, 0.9), (3.5, 1.7), "")
    box(axes, 3.7, 2.0, Q, M, "neighbor_indices", "(Q, M)", INK)
    arrow(axes, (5.0, 2.0), (7.0, 2.0), "kernel, solve")
    for shift in (0.24, 0.12, 0.0):
        axes.add_patch(Rectangle((7.2 + shift, 1.45 + shift), M, M, facecolor="white", edgecolor=GRAY, linewidth=1.2))
    axes.text(7.75, 2.95, "a small matrix\nfor each query", ha="center", va="bottom", color=INK, fontsize=10)
    axes.text(7.75, 1.3, "M x M", ha="center", va="top", color=GRAY, family="monospace", fontsize=9.5)
    arrow(axes, (8.8, 2.0), (10.2, 2.0), "")
    box(axes, 10.4, 2.0, Q, M, "weights", "(Q, M)", ORANGE)
    box(axes, 10.65, -1.3, N * 0.55, C, "values", "(N, C)", GREEN)
    arrow(axes, (11.7, 2.0), (13.3, 1.3), "weigh")
    arrow(axes, (11.4, -0.9), (13.3, 0.5), "")
    box(axes, 13.5, 0.9, Q, C, "prediction", "(Q, C)", BLUE)
    axes.set(xlim=(0, 14.6), ylim=(-2.9, 5.0), aspect="equal")
    axes.set_axis_off()
    save(figure, "shapes", {"letters": {"Q": "queries", "N": "centers", "M": "neighbors", "D": "features", "C": "outputs"}})


if __name__ == "__main__":
    main()
