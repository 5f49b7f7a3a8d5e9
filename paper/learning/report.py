"""Records of several seeds as tables and figures, on a page of Markdown and on one that needs no other file."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from torchkrr.runs import Record, Table, markdown_report
from torchkrr.vision.figures import (
    LIGHT,
    MARKERS,
    Look,
    accuracy_bars,
    color_axes,
    figure_tag,
    new_figure,
    render_page,
    write_page,
    write_png,
)

from ..checkpoints import spread

WRITTEN = ("records.jsonl", "figure.png", "report.md", "report.html")
TITLES = {"linear": "linear head", "loo": "kernel, leave-one-out", "split": "kernel, split", "centers": "kernel, centers"}
COLORS = {"linear": "linear", "loo": "head", "split": "han-sk", "centers": "blended"}  # to names of the palette
READINGS = {
    "linear": "linear head",
    "sk": "SK with the trained kernel, on the whole subsample",
    "sk-fit": "SK with the trained kernel, without the validation part",
    "centers": "learned centers",
    "sk-paper": "SK with the paper's kernel, on the whole subsample",
}
ACCURACY_NOTE = (
    "Means over seeds, with the range over seeds in brackets. All heads of a seed have the same examples, first weights "
    "of the network and budget of steps; the epoch is chosen on the held-out part. The kernel predicts from the whole "
    "subsample, held-out part included; how it does without is among the other readings."
)
COST_NOTE = (
    "Parameters are those of network and head. A step has reading, augmentation, both passes and the optimizer, from the "
    "fastest epoch of each run; validation is not in it. Runs that end early have fewer steps."
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One head at one depth, over its seeds."""

    head: str  # a key of TITLES
    discard: int
    num_seeds: int
    accuracy: float  # mean
    lowest: float
    highest: float
    by_seed: dict[int, float]
    readings: dict[str, float]  # mean accuracies
    curve: list[float]  # mean validation accuracy after each epoch that all seeds had
    parameters: int  # of backbone and head
    num_features: int
    steps: float  # mean
    seconds: float  # mean, of training without validation
    step: float  # mean seconds of a step, from the best epoch of each run

    @property
    def title(self) -> str:
        return TITLES[self.head]


def summarize(records: Sequence[Record]) -> list[Cell]:
    """One cell for each head, in the order they come, and depth, ascending."""
    groups: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        head = "linear" if record["head"] == "linear" else record["config"]["objective"]
        groups.setdefault(head, {}).setdefault(record["discard"], []).append(record)
    return [_cell(head, depth, by_depth[depth]) for head, by_depth in groups.items() for depth in sorted(by_depth)]


def _cell(head: str, discard: int, records: list[Record]) -> Cell:
    accuracies = {record["seed"]: record["accuracy"] for record in records}
    curves = [record["epochs"]["accuracy"] for record in records]
    first = records[0]
    return Cell(
        head=head,
        discard=discard,
        num_seeds=len(records),
        accuracy=mean(list(accuracies.values())),
        lowest=min(accuracies.values()),
        highest=max(accuracies.values()),
        by_seed=accuracies,
        readings={name: mean([record["readings"][name]["accuracy"] for record in records]) for name in first["readings"]},
        curve=[mean(values) for values in zip(*curves, strict=False)],
        parameters=sum(first["parameters"].values()),
        num_features=first["num_features"],
        steps=mean([record["steps"] for record in records]),
        seconds=mean([record["seconds"]["train"] for record in records]),
        step=mean([record["seconds"]["step"] for record in records]),
    )


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def differences(cells: Sequence[Cell], head: str, other: str = "linear") -> dict[int, list[float]]:
    """Accuracy minus that of the other head, by depth, for each seed that both have."""
    others = {cell.discard: cell.by_seed for cell in cells if cell.head == other}
    pairs = [(cell, others[cell.discard]) for cell in cells if cell.head == head and cell.discard in others]
    return {cell.discard: [value - by[seed] for seed, value in cell.by_seed.items() if seed in by] for cell, by in pairs}


def heads_of(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(cell.head for cell in cells))


def accuracy_table(cells: Sequence[Cell]) -> Table:
    """Heads by depths: mean accuracy in % and its range over seeds; then the difference to the linear head, by seed."""
    depths, at = _by_depth(cells)
    rows = [["test accuracy in %, stages discarded:", *map(str, depths)]]
    for head in heads_of(cells):
        shown = [at.get((head, depth)) for depth in depths]
        rows.append([TITLES[head], *("" if cell is None else _percents(list(cell.by_seed.values())) for cell in shown)])
    for head in heads_of(cells):
        ahead = differences(cells, head)
        if head != "linear" and ahead:
            ranges = [_percents(ahead[depth], "+") if ahead.get(depth) else "" for depth in depths]
            rows.append([f"{TITLES[head]} minus linear, same seed", *ranges])
    return Table(rows)


def reading_table(cells: Sequence[Cell]) -> Table:
    depths, at = _by_depth(cells)
    rows = [["trained under", "read by", *map(str, depths)]]
    for head in heads_of(cells):
        shown = [at.get((head, depth)) for depth in depths]
        for name in next(cell for cell in cells if cell.head == head).readings:
            means = ["" if cell is None else f"{100 * cell.readings[name]:.1f}" for cell in shown]
            rows.append([TITLES[head], READINGS[name], *means])
    return Table(rows)


def cost_table(cells: Sequence[Cell]) -> Table:
    rows = [["head", "discarded", "features", "parameters", "steps", "ms per step", "seconds of training"]]
    for cell in cells:
        numbers = [f"{cell.num_features:,}", f"{cell.parameters:,}", f"{cell.steps:,.0f}", f"{1e3 * cell.step:.0f}"]
        rows.append([cell.title, str(cell.discard), *numbers, f"{cell.seconds:.0f}"])
    return Table(rows)


def about(records: Sequence[Record]) -> str:
    """Data and network in a sentence."""
    first, seeds = records[0], len({record["seed"] for record in records})
    held_out = first["samples"] - first["num_fit"]
    start = f"weights {first['config']['weights']}" if first["config"]["weights"] else "from scratch"
    return (
        f"{first['dataset']}, {first['samples']:,} training examples ({held_out:,} of them held out to choose the epoch), "
        f"{seeds} seed{'s' * (seeds != 1)}, {first['num_test']:,} test examples; {first['network']} at {first['size']} px, "
        f"{start}, {first['config']['pooling']} pooling, augmentation {first['config']['augmentation']}"
    )


def who_wins(cells: Sequence[Cell]) -> str:
    """The best of each head over depths, and at how many depths a kernel is ahead, in words."""
    heads = heads_of(cells)
    best = [max((cell for cell in cells if cell.head == head), key=lambda cell: cell.accuracy) for head in heads]
    named = "; ".join(
        f"{c.title}: {100 * c.accuracy:.1f} % with {c.discard} stage{'s' * (c.discard != 1)} discarded" for c in best
    )
    sentences = [f"The best depth of each head by test accuracy, {named}."]
    for head in heads:
        by_depth = [values for values in differences(cells, head).values() if values]
        if head != "linear" and by_depth:
            ahead = sum(mean(values) > 0 for values in by_depth)
            sentences.append(f"{TITLES[head].capitalize()} has the larger mean at {ahead} of {len(by_depth)} depths.")
    return " ".join(sentences)


def markdown(records: Sequence[Record], command: str) -> str:
    cells = summarize(records)
    parts = [
        about(records) + ".",
        who_wins(cells),
        accuracy_table(cells).markdown(),
        ACCURACY_NOTE,
        "## The same networks, read otherwise",
        reading_table(cells).markdown(),
        "## Cost",
        cost_table(cells).markdown(),
        COST_NOTE,
    ]
    return markdown_report(_title(records), command, records[0]["versions"], parts)


def page(records: Sequence[Record], command: str) -> str:
    """HTML that needs no other file."""
    cells = summarize(records)
    return render_page(
        pathlib.Path(__file__).with_name("report.html"),
        title=_title(records),
        data=about(records),
        result=who_wins(cells),
        accuracies=accuracy_table(cells).html(),
        accuracies_note=ACCURACY_NOTE,
        figure=figure_tag("Test accuracy against discarded stages", lambda look: draw_depths(cells, look)),
        readings=reading_table(cells).html(),
        costs=cost_table(cells).html(),
        costs_note=COST_NOTE,
        curves=figure_tag("Validation accuracy after each epoch", lambda look: draw_curves(cells, look)),
        settings={"command": command, "config": records[0]["config"], "versions": records[0]["versions"]},
    )


def write_report(folder: pathlib.Path, records: Sequence[Record], command: str) -> None:
    """`report.md`, `report.html` and `figure.png`."""
    for name, text in (("report.md", markdown(records, command)), ("report.html", page(records, command))):
        write_page(folder / name, text)
    write_png(folder / "figure.png", draw_depths(summarize(records), LIGHT))


def draw_depths(cells: Sequence[Cell], look: Look) -> Any:
    """A line for each head: mean, least and most over seeds."""
    figure = new_figure((6.4, 4.0))
    axes = figure.subplots()
    heads = heads_of(cells)
    for number, head in enumerate(heads):
        own = [cell for cell in cells if cell.head == head]
        # A little apart, so that the bars of different heads do not hide each other.
        places = [cell.discard + 0.04 * (number - (len(heads) - 1) / 2) for cell in own]
        means, bars = accuracy_bars(own)
        style = {"capsize": 3, "linewidth": 2, "marker": MARKERS[number], "color": look.palette[COLORS[head]]}
        axes.errorbar(places, means, yerr=bars, label=own[0].title, **style)
    axes.set(xlabel="discarded top stages", ylabel="test accuracy (%)")
    axes.set_xticks(sorted({cell.discard for cell in cells}))
    axes.legend(frameon=False, fontsize=9, labelcolor=look.ink)
    color_axes(axes, look)
    return figure


def draw_curves(cells: Sequence[Cell], look: Look) -> Any:
    """Validation accuracy after each epoch, a panel for each depth."""
    depths, _ = _by_depth(cells)
    figure = new_figure((2.3 * len(depths) + 1.2, 2.9))
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for panel, depth in zip(panels, depths, strict=True):
        for cell in (cell for cell in cells if cell.discard == depth):
            percents = [100 * value for value in cell.curve]
            panel.plot(range(1, len(percents) + 1), percents, label=cell.title, color=look.palette[COLORS[cell.head]])
        panel.set(xlabel="epoch")
        panel.set_title(f"{depth} discarded", fontsize=10, color=look.ink)
        color_axes(panel, look)
    panels[0].set_ylabel("validation accuracy (%)")
    panels[-1].legend(frameon=False, fontsize=8, labelcolor=look.ink)
    return figure


def _by_depth(cells: Sequence[Cell]) -> tuple[list[int], dict[tuple[str, int], Cell]]:
    return sorted({cell.discard for cell in cells}), {(cell.head, cell.discard): cell for cell in cells}


def _percents(numbers: Sequence[float], sign: str = "") -> str:
    return spread([100 * number for number in numbers], f"{sign}.1f")


def _title(records: Sequence[Record]) -> str:
    return f"Learning with probes: {records[0]['network']} on {records[0]['dataset']}"
