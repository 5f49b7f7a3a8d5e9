"""Accuracy against depth, as in the paper's section 4.3, and the curves of training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .._files import replacing
from .figures import LIGHT, MARKERS, Look, accuracy_bars, color_axes, new_figure
from .learn_summary import Cell

COLORS = {"linear": "linear", "loo": "sk-select", "split": "han-sk", "centers": "blended"}  # to names of the palette


def write_figure(path: str | os.PathLike[str], cells: Sequence[Cell]) -> None:
    """`figure.png`: test accuracy against the number of discarded stages."""
    with replacing(path) as temporary:
        draw_depths(cells, LIGHT).savefig(temporary, dpi=150, format="png", facecolor="white")


def draw_depths(cells: Sequence[Cell], look: Look) -> Any:
    """A line for each head: mean, least and most over seeds."""
    figure = new_figure((6.4, 4.0))
    axes = figure.subplots()
    heads = _heads(cells)
    for number, head in enumerate(heads):
        own = [cell for cell in cells if cell.head == head]
        # A little apart, so that the bars of different heads do not hide each other.
        places = [cell.discard + 0.04 * (number - (len(heads) - 1) / 2) for cell in own]
        means, spread = accuracy_bars(own)  # type: ignore[arg-type]  # a cell with the same three numbers
        style = {"capsize": 3, "linewidth": 2, "marker": MARKERS[number], **_color(head, look)}
        axes.errorbar(places, means, yerr=spread, label=own[0].title, **style)
    axes.set(xlabel="discarded top stages", ylabel="test accuracy (%)")
    axes.set_xticks(sorted({cell.discard for cell in cells}))
    axes.legend(frameon=False, fontsize=9, labelcolor=look.ink)
    color_axes(axes, look)
    return figure


def draw_curves(cells: Sequence[Cell], look: Look) -> Any:
    """Validation accuracy after each epoch, a panel for each depth."""
    depths = sorted({cell.discard for cell in cells})
    figure = new_figure((2.3 * len(depths) + 1.2, 2.9))
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for panel, depth in zip(panels, depths, strict=True):
        for cell in cells:
            if cell.discard == depth:
                epochs = range(1, len(cell.curve) + 1)
                panel.plot(epochs, [100 * value for value in cell.curve], label=cell.title, **_color(cell.head, look))
        panel.set(xlabel="epoch")
        panel.set_title(f"{depth} discarded", fontsize=10, color=look.ink)
        color_axes(panel, look)
    panels[0].set_ylabel("validation accuracy (%)")
    panels[-1].legend(frameon=False, fontsize=8, labelcolor=look.ink)
    return figure


def _heads(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.head for cell in cells))


def _color(head: str, look: Look) -> dict[str, str]:
    return {"color": look.palette[COLORS[head]]}
