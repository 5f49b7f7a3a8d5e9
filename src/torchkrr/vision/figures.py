"""Figures of what was recorded, and the frame of pages: no other file needed, light or dark as the reader's system."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._extras import import_extra
from .._files import replacing
from .summary import Cell, Grid, grid_of, grids


class Look(NamedTuple):
    """Colors of a light or a dark page."""

    ink: str
    faint: str
    accent: str
    palette: dict[str, str]


COLORS = {  # of the lines of readouts, on light and on dark
    "linear": ("#d9730d", "#f0923a"),
    "mlp": ("#b3391f", "#ea6a4c"),
    "sk": ("#5aa9d6", "#3f8fbd"),
    "han-sk": ("#448361", "#6fb58e"),
    "head": ("#0b5c86", "#7fd0f7"),
    "knn": ("#8a8a8a", "#a5a5a5"),
    "logistic": ("#b58a12", "#d8b23c"),
    "blended": ("#7c5cbf", "#a78be6"),
    "faded": ("#c06aa5", "#d98cc2"),
}
LIGHT = Look("#2f2f2f", "#8a8a8a", "#0b6e99", {name: light for name, (light, _) in COLORS.items()})
DARK = Look("#dcdcdc", "#8f8f8f", "#58b4dd", {name: dark for name, (_, dark) in COLORS.items()})
MARKERS = "osD^vPXph"
TICK_STEP = 0.05  # at least between ticks, in heights of the axes
LABEL_STEP = 0.065  # between names at the ends of lines, in heights of the axes
LEAST_LACK = 0.05  # of 100 %, where everything is right
PERCENT_TICKS = (0, 20, 40, 50, 60, 70, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.8, 99.9)
DASHES = ("-", "--", ":", "-.")
EMPHASIZED = "head"
TEMPLATES = pathlib.Path(__file__).parent / "templates"


def new_figure(size: tuple[float, float], *, extra: str = "plot") -> Any:
    """An empty figure, in inches."""
    # Not pyplot: it keeps figures, and may want a screen.
    return import_extra("matplotlib.figure", "A figure", extra=extra).Figure(figsize=size, layout="constrained")


def color_axes(axes: Any, look: Look) -> None:
    """A grid, and no more lines than needed, in the colors of the page."""
    axes.grid(alpha=0.25, color=look.faint)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(look.faint)
    axes.tick_params(colors=look.ink, which="both")
    axes.xaxis.label.set_color(look.ink)
    axes.yaxis.label.set_color(look.ink)


def line_style(readout: str, number: int, look: Look) -> dict[str, Any]:
    """The line of a readout, the `number`-th of a figure."""
    strong = readout == EMPHASIZED
    return {
        "color": look.palette.get(readout, look.ink),
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5.5 if strong else 3.5,
        "linewidth": 2.6 if strong else 1.2,
        "alpha": 1.0 if strong else 0.75,
        "zorder": 4 if strong else 3,
    }


def accuracy_bars(cells: Sequence[Any]) -> tuple[list[float], list[list[float]]]:
    """Mean accuracies in percent, and how far down and up the bars go to the least and the most."""
    down = [max(0.0, 100 * (cell.accuracy - cell.lowest)) for cell in cells]  # rounding of the mean
    up = [max(0.0, 100 * (cell.highest - cell.accuracy)) for cell in cells]
    return [100 * cell.accuracy for cell in cells], [down, up]


def draw_budgets(cells: Sequence[Cell], look: Look) -> Any:
    """Accuracy on the left, seconds to fit and predict on the right, a line for each readout: mean, least and most."""
    figure = new_figure((10.4, 4.3))
    accuracy, seconds = figure.subplots(1, 2)
    grid = grid_of(cells, "budget")
    # Places of different readouts are a little apart, so that their bars do not hide each other.
    _draw_accuracies(accuracy, grid, lambda cell, apart: cell.budget * 1.02**apart, look)
    for number, apart, own in _lines(grid):
        places = [cell.budget * 1.02**apart for cell in own]
        seconds.plot(places, [max(cell.seconds, 1e-4) for cell in own], **line_style(own[0].readout, number, look))
    budgets = [column.budget for column in grid.columns]
    for axes, title, label in (
        (accuracy, "Test accuracy", "test accuracy (%)"),
        (seconds, "Wall-clock time", "seconds to fit and predict"),
    ):
        axes.set(xscale="log", xlabel="labeled training examples", ylabel=label)
        axes.set_title(title, loc="left", fontsize=10.5, color=look.ink)
        axes.set_xticks(budgets, [_short(budget) for budget in budgets])
        axes.minorticks_off()
        if len(budgets) == 1:
            axes.set_xlim(budgets[0] / 2, budgets[0] * 2)
        color_axes(axes, look)
    seconds.set_yscale("log")
    _spread_top(accuracy)
    _label_ends(accuracy, grid, lambda cell: 100 * cell.accuracy, look)
    _label_ends(seconds, grid, lambda cell: max(cell.seconds, 1e-4), look)
    return figure


def draw_depths(cells: Sequence[Cell], look: Look) -> Any:
    """A panel of accuracies for each size (mean, least and most over seeds), and one of mean error indicators."""
    sizes = grids(cells)
    has_indicator = any(grid.indicators() for grid in sizes)
    count = len(sizes) + has_indicator
    figure = new_figure((3.6 * count + 1.6, 3.9))
    figure.get_layout_engine().set(w_pad=0.1)  # inches: labels of one panel stay clear of the next
    panels = figure.subplots(1, count, squeeze=False)[0]
    labels = []
    for panel, grid in zip(panels, sizes, strict=False):
        _draw_accuracies(panel, grid, lambda cell, apart: cell.discarded + 0.05 * apart, look, bars=grid.num_seeds > 1)
        runs = f"{grid.num_seeds} runs, least to most" if grid.num_seeds > 1 else "one run"
        labels.append((f"{grid.size:,} training examples, {runs}", "test accuracy (%)"))
    if has_indicator:
        _draw_indicators(panels[-1], sizes, look)
        labels.append(("Local error indicator", "mean over the test examples"))
    for panel, (title, label) in zip(panels, labels, strict=True):
        panel.set(xlabel="top stages discarded", ylabel=label)
        panel.set_title(title, loc="left", fontsize=9.5, color=look.ink)
        panel.set_xticks([column.discarded for column in sizes[0].columns])
        color_axes(panel, look)
    _add_legend(figure, panels[0], look)
    return figure


def draw_indicator(indicators: Sequence[float], accuracies: Sequence[float], look: Look) -> Any:
    """Accuracy of groups of test examples against their mean error indicator."""
    figure = new_figure((5.6, 3.2))
    axes = figure.subplots()
    percents = [100 * accuracy for accuracy in accuracies]
    axes.plot(indicators, percents, color=look.accent, marker="o", markersize=5, linewidth=2)
    axes.set(xlabel="local error indicator, mean of each tenth", ylabel="test accuracy (%)")
    axes.set_ylim(top=min(axes.get_ylim()[1], 100.5))  # no room for more than all
    color_axes(axes, look)
    return figure


def write_png(path: str | os.PathLike[str], figure: Any) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png", facecolor="white")


def write_page(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render_page(template: pathlib.Path, *, settings: Any, **values: Any) -> str:
    """A Jinja template, which extends `page.html`, filled with values.

    Args:
        template: its file; values are escaped in it unless it says `| safe`.
        settings: shown as JSON at the end of the page.
        values: by the names in the template; `title` and `data`, a sentence on what the page is about, are always needed.
    """
    jinja = import_extra("jinja2", "A report", extra="plot")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return str(environment.get_template(template.name).render(settings=json.dumps(settings, indent=2), **values))


def figure_tag(text: str, draw: Callable[[Look], Any]) -> str:
    """A figure inside a page, drawn for light and for dark; the text is for those who cannot see it."""
    light, dark = (_svg_uri(draw(look)) for look in (LIGHT, DARK))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{html.escape(text)}" src="{light}"></picture>'
    )


def _svg_uri(figure: Any) -> str:
    file = io.BytesIO()
    with import_extra("matplotlib", "Figures", extra="plot").rc_context({"svg.hashsalt": "torchkrr"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def _lines(grid: Grid) -> list[tuple[int, float, list[Cell]]]:
    """Of each row its number, how far it is from the middle one, and its cells."""
    middle = (len(grid.rows) - 1) / 2
    rows = ([cell for cell in row if cell is not None] for row in grid.rows.values())
    return [(number, number - middle, row) for number, row in enumerate(rows)]


def _draw_accuracies(axes: Any, grid: Grid, place: Callable[[Cell, float], float], look: Look, *, bars: bool = True) -> None:
    for number, apart, own in _lines(grid):
        means, spread = accuracy_bars(own)
        axes.errorbar(
            [place(cell, apart) for cell in own],
            means,
            yerr=spread if bars else None,
            label=own[0].title,
            elinewidth=0.8,
            capsize=2,
            **line_style(own[0].readout, number, look),
        )


def _draw_indicators(axes: Any, sizes: Sequence[Grid], look: Look) -> None:
    for dash, grid in enumerate(sizes):
        for title, row in grid.indicators().items():
            own = [cell for cell in row if cell is not None and cell.indicator is not None]
            style = line_style(own[0].readout, list(grid.rows).index(title), look)
            places, means = [cell.discarded for cell in own], [cell.indicator for cell in own]
            axes.plot(places, means, label=f"{title}, {grid.size:,}", linestyle=DASHES[dash % len(DASHES)], **style)
            if grid.num_seeds > 1:
                lowest, highest = [cell.indicator_lowest for cell in own], [cell.indicator_highest for cell in own]
                axes.fill_between(places, lowest, highest, color=style["color"], alpha=0.15, linewidth=0)
    axes.legend(frameon=False, fontsize=8, labelcolor=look.ink)


def _spread_top(axes: Any) -> None:
    """Percentages by the logarithm of what they lack, so that lines close to 100 % stay apart."""
    axes.set_yscale("function", functions=(lambda p: -np.log(np.maximum(100 - p, LEAST_LACK)), lambda v: 100 - np.exp(-v)))
    axes.autoscale()  # the limits were those of a linear scale
    low, high = axes.get_ylim()
    ticks: list[tuple[float, float]] = []  # from the top, and how high they are
    for percent in reversed(PERCENT_TICKS):
        height = (axes.transScale + axes.transLimits).transform((axes.get_xlim()[0], percent))[1]
        if low <= percent <= high and (not ticks or ticks[-1][1] - height > TICK_STEP):
            ticks.append((percent, height))
    if len(ticks) > 1:
        axes.set_yticks([percent for percent, _ in ticks], [f"{percent:g}" for percent, _ in ticks])


def _label_ends(axes: Any, grid: Grid, value: Callable[[Cell], float], look: Look) -> None:
    """The name of each line beside its end, in its color; names of close ends are moved apart."""
    to_axes = axes.transScale + axes.transLimits
    ends = sorted((*to_axes.transform((own[-1].budget, value(own[-1])))[::-1], own[-1]) for _, _, own in _lines(grid))
    places = [height for height, *_ in ends]
    for _ in range(100):  # close ones push each other apart
        for at in range(1, len(places)):
            overlap = max(0.0, LABEL_STEP - (places[at] - places[at - 1])) / 2
            places[at - 1 : at + 1] = places[at - 1] - overlap, places[at] + overlap
    for place, (height, x, cell) in zip(places, ends, strict=True):
        color, strong = look.palette.get(cell.readout, look.ink), cell.readout == EMPHASIZED
        axes.annotate(
            cell.title,
            (x + 0.02, height),
            (1.06, place),
            xycoords="axes fraction",
            color=color,
            fontsize=9,
            fontweight="bold" if strong else "normal",
            verticalalignment="center",
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 2, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def _add_legend(figure: Any, axes: Any, look: Look) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, labelcolor=look.ink)


def _short(number: int) -> str:
    return f"{number / 1000:g}k" if number >= 1000 and number % 100 == 0 else f"{number:,}"
