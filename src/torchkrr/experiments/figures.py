"""Pictures of what was recorded. Nothing is computed here but means."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._files import replacing
from .extras import needed
from .summary import Cell


class Look(NamedTuple):
    """Colors of a light or a dark page."""

    ink: str
    faint: str
    accent: str
    palette: dict[str, str]


LIGHT = Look(
    ink="#2f2f2f",
    faint="#8a8a8a",
    accent="#0b6e99",
    palette={
        "linear": "#d9730d",
        "mlp": "#b3391f",
        "sk": "#5aa9d6",
        "han-sk": "#448361",
        "sk-select": "#0b5c86",
        "knn": "#8a8a8a",
        "logistic": "#b58a12",
        "blended": "#7c5cbf",
        "faded": "#c06aa5",
    },
)
DARK = Look(
    ink="#dcdcdc",
    faint="#8f8f8f",
    accent="#58b4dd",
    palette={
        **LIGHT.palette,
        "linear": "#f0923a",
        "mlp": "#ea6a4c",
        "sk": "#3f8fbd",
        "han-sk": "#6fb58e",
        "sk-select": "#7fd0f7",
        "knn": "#a5a5a5",
        "logistic": "#d8b23c",
        "blended": "#a78be6",
        "faded": "#d98cc2",
    },
)
MARKERS = "osD^vPXph"
EMPHASIZED = "sk-select"


def write_figure(path: str | os.PathLike[str], cells: Sequence[Cell]) -> None:
    """`figure.png`: accuracy and wall-clock against the budget."""
    with replacing(path) as temporary:
        draw_budgets(cells, LIGHT).savefig(temporary, dpi=150, format="png", facecolor="white")


def svg_of(figure: Any) -> str:
    """The figure as the text of an SVG image, on a transparent ground."""
    drawn = io.BytesIO()
    with needed("matplotlib", "Figures", extra="plot").rc_context({"svg.hashsalt": "torchkrr"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return drawn.getvalue().decode()


def draw_budgets(cells: Sequence[Cell], look: Look) -> Any:
    """Accuracy on the left, seconds to fit and predict on the right, a line for each readout: mean, least and most."""
    figure = new_figure((10.4, 4.3))
    accuracy, seconds = figure.subplots(1, 2)
    budgets = sorted({cell.budget for cell in cells})
    readouts = list(dict.fromkeys(cell.readout for cell in cells))
    for number, readout in enumerate(readouts):
        own = [cell for cell in cells if cell.readout == readout]
        # A little apart, so that the bars of different readouts do not hide each other.
        places = [cell.budget * 1.02 ** (number - (len(readouts) - 1) / 2) for cell in own]
        style = line_style(readout, number, look)
        means, spread = accuracy_bars(own)
        accuracy.errorbar(places, means, yerr=spread, label=own[0].title, elinewidth=0.8, capsize=2, **style)
        seconds.plot(places, [max(cell.seconds, 1e-4) for cell in own], **style)
    _dress(accuracy, look, budgets, "Test accuracy", "test accuracy (%)")
    _dress(seconds, look, budgets, "Wall-clock time", "seconds to fit and predict")
    seconds.set_yscale("log")
    handles, labels = accuracy.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, labelcolor=look.ink)
    return figure


def line_style(readout: str, number: int, look: Look) -> dict[str, Any]:
    """The line of a readout, the `number`-th of a figure."""
    strong = readout == EMPHASIZED
    return {
        "color": look.palette.get(readout, look.ink),
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5.5 if strong else 4.5,
        "linewidth": 2.6 if strong else 1.3,
        "zorder": 4 if strong else 3,
    }


def accuracy_bars(cells: Sequence[Cell]) -> tuple[list[float], list[list[float]]]:
    """Mean accuracies in percent, and how far down and up the bars go to the least and the most."""
    down = [max(0.0, 100 * (cell.accuracy - cell.lowest)) for cell in cells]  # rounding of the mean
    up = [max(0.0, 100 * (cell.highest - cell.accuracy)) for cell in cells]
    return [100 * cell.accuracy for cell in cells], [down, up]


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


def new_figure(size: tuple[float, float], *, extra: str = "plot") -> Any:
    """An empty figure, in inches."""
    # Not pyplot: it keeps figures, and may want a screen.
    return needed("matplotlib.figure", "A figure", extra=extra).Figure(figsize=size, layout="constrained")


def _dress(axes: Any, look: Look, budgets: list[int], title: str, label: str) -> None:
    axes.set(xscale="log", xlabel="labeled training examples", ylabel=label)
    axes.set_title(title, loc="left", fontsize=10.5, color=look.ink)
    axes.set_xticks(budgets, [_short(budget) for budget in budgets])
    axes.minorticks_off()
    if len(budgets) == 1:
        axes.set_xlim(budgets[0] / 2, budgets[0] * 2)
    color_axes(axes, look)


def color_axes(axes: Any, look: Look) -> None:
    """A grid, and no more lines than needed, in the colors of the page."""
    axes.grid(alpha=0.25, color=look.faint)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(look.faint)
    axes.tick_params(colors=look.ink, which="both")
    axes.xaxis.label.set_color(look.ink)
    axes.yaxis.label.set_color(look.ink)


def _short(number: int) -> str:
    return f"{number / 1000:g}k" if number >= 1000 and number % 100 == 0 else f"{number:,}"
