"""Accuracy and error indicator against depth, as in section 4.2 of the paper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .._files import replacing
from .figures import LIGHT, Look, accuracy_bars, color_axes, line_style, new_figure
from .probe_summary import DepthCell, Grid, grids

DASHES = ("-", "--", ":", "-.")


def write_depths_figure(path: str | os.PathLike[str], cells: Sequence[DepthCell]) -> None:
    """`figure.png`."""
    with replacing(path) as temporary:
        draw_depths(cells, LIGHT).savefig(temporary, dpi=150, format="png", facecolor="white")


def draw_depths(cells: Sequence[DepthCell], look: Look) -> Any:
    """A panel of accuracies for each size (mean, least and most over seeds), and one of mean error indicators."""
    found = grids(cells)
    has_indicator = any(grid.indicators() for grid in found)
    count = len(found) + has_indicator
    figure = new_figure((3.6 * count + 1.6, 3.9))
    figure.get_layout_engine().set(w_pad=0.1)  # inches: labels of one panel stay clear of the next
    panels = figure.subplots(1, count, squeeze=False)[0]
    for panel, grid in zip(panels, found, strict=False):
        _accuracies(panel, grid, look)
        _dress(panel, look, grid.columns, _size_title(grid), "test accuracy (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    if has_indicator:
        _indicators(panels[-1], found, look)
        _dress(panels[-1], look, found[0].columns, "Local error indicator", "mean over the test examples")
        panels[-1].legend(frameon=False, fontsize=8, labelcolor=look.ink)
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, labelcolor=look.ink)
    return figure


def _accuracies(panel: Any, grid: Grid, look: Look) -> None:
    for number, (title, row) in enumerate(grid.rows.items()):
        own = [cell for cell in row if cell is not None]
        # A little apart, so that the bars of different readouts do not hide each other.
        places = [cell.discarded + 0.05 * (number - (len(grid.rows) - 1) / 2) for cell in own]
        means, spread = accuracy_bars([cell.cell for cell in own])
        bars = spread if grid.num_seeds > 1 else None
        style = line_style(own[0].cell.readout, number, look)
        panel.errorbar(places, means, yerr=bars, label=title, elinewidth=0.8, capsize=2, **style)


def _indicators(panel: Any, found: Sequence[Grid], look: Look) -> None:
    for dash, grid in enumerate(found):
        for title, row in grid.indicators().items():
            own = [cell for cell in row if cell is not None and cell.indicator is not None]
            style = line_style(own[0].cell.readout, list(grid.rows).index(title), look)
            places, means = [cell.discarded for cell in own], [cell.indicator for cell in own]
            style["linestyle"] = DASHES[dash % len(DASHES)]
            panel.plot(places, means, label=f"{title}, {grid.size:,}", **style)
            if grid.num_seeds > 1:
                lowest, highest = [cell.indicator_lowest for cell in own], [cell.indicator_highest for cell in own]
                panel.fill_between(places, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)


def _size_title(grid: Grid) -> str:
    runs = f"{grid.num_seeds} runs, least to most" if grid.num_seeds > 1 else "one run"
    return f"{grid.size:,} training examples, {runs}"


def _dress(panel: Any, look: Look, columns: Sequence[DepthCell], title: str, label: str) -> None:
    panel.set(xlabel="top stages discarded", ylabel=label)
    panel.set_title(title, loc="left", fontsize=9.5, color=look.ink)
    panel.set_xticks([column.discarded for column in columns])
    color_axes(panel, look)
