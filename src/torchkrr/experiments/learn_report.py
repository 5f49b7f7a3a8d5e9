"""The table of an experiment as text, as Markdown and on a page that needs no other file."""

from __future__ import annotations

import html
import pathlib
from collections.abc import Sequence

from .learn_figure import draw_curves, draw_depths
from .learn_records import READINGS
from .learn_summary import TITLES, Cell, differences, mean, summarize
from .pages import figure_tag, filled, write_page
from .records import Record
from .text_tables import aligned, markdown_page, markdown_table

Rows = list[list[str]]


def write_report(folder: pathlib.Path, records: Sequence[Record], command: str) -> None:
    """`report.md` and `report.html`."""
    for name, text in (("report.md", markdown(records, command)), ("report.html", page(records, command))):
        write_page(folder / name, text)


def accuracy_rows(cells: Sequence[Cell]) -> Rows:
    """Heads by depths: mean accuracy in % and its range over seeds; then the difference to the linear head, by seed."""
    depths = sorted({cell.discard for cell in cells})
    found = {(cell.head, cell.discard): cell for cell in cells}
    rows = [["test accuracy in %, stages discarded:", *map(str, depths)]]
    heads = list(dict.fromkeys(cell.head for cell in cells))
    for head in heads:
        shown = [found.get((head, depth)) for depth in depths]
        rows.append([TITLES[head], *("" if cell is None else _range(list(cell.by_seed.values()), "") for cell in shown)])
    for head in heads:
        by_depth = differences(cells, head)
        if head != "linear" and by_depth:
            ranges = [_range(by_depth[depth], "+") if by_depth.get(depth) else "" for depth in depths]
            rows.append([f"{TITLES[head]} minus linear, same seed", *ranges])
    return rows


def reading_rows(cells: Sequence[Cell]) -> Rows:
    depths = sorted({cell.discard for cell in cells})
    found = {(cell.head, cell.discard): cell for cell in cells}
    rows = [["trained under", "read by", *map(str, depths)]]
    for head in dict.fromkeys(cell.head for cell in cells):
        names = next(cell for cell in cells if cell.head == head).readings
        for name in names:
            means = [found[head, depth].readings[name] if (head, depth) in found else None for depth in depths]
            rows.append([TITLES[head], READINGS[name], *("" if m is None else f"{100 * m:.1f}" for m in means)])
    return rows


def cost_rows(cells: Sequence[Cell]) -> Rows:
    rows = [["head", "discarded", "features", "parameters", "steps", "ms per step", "seconds of training"]]
    for cell in cells:
        numbers = [f"{cell.num_features:,}", f"{cell.parameters:,}", f"{cell.steps:,.0f}", f"{1e3 * cell.step:.0f}"]
        rows.append([cell.title, str(cell.discard), *numbers, f"{cell.seconds:.0f}"])
    return rows


def text_table(cells: Sequence[Cell]) -> str:
    return aligned(accuracy_rows(cells))


def described(records: Sequence[Record]) -> str:
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
    heads = list(dict.fromkeys(cell.head for cell in cells))
    best = [max((cell for cell in cells if cell.head == head), key=lambda cell: cell.accuracy) for head in heads]
    found = "; ".join(
        f"{c.title}: {100 * c.accuracy:.1f} % with {c.discard} stage{'s' * (c.discard != 1)} discarded" for c in best
    )
    sentences = [f"The best depth of each head by test accuracy, {found}."]
    for head in heads:
        by_depth = [values for values in differences(cells, head).values() if values]
        if head != "linear" and by_depth:
            ahead = sum(mean(values) > 0 for values in by_depth)
            sentences.append(f"{TITLES[head].capitalize()} has the larger mean at {ahead} of {len(by_depth)} depths.")
    return " ".join(sentences)


def markdown(records: Sequence[Record], command: str) -> str:
    cells = summarize(records)
    parts = [
        described(records) + ".",
        who_wins(cells),
        markdown_table(accuracy_rows(cells)),
        ACCURACY_NOTE,
        "## The same networks, read otherwise",
        markdown_table(reading_rows(cells)),
        "## Cost",
        markdown_table(cost_rows(cells)),
        COST_NOTE,
    ]
    return markdown_page(_title(records), command, records[0]["versions"], parts)


def _title(records: Sequence[Record]) -> str:
    return f"Learning with probes: {records[0]['network']} on {records[0]['dataset']}"


def page(records: Sequence[Record], command: str) -> str:
    cells = summarize(records)
    settings = {"command": command, "config": records[0]["config"], "versions": records[0]["versions"]}
    return filled(
        "learn.html",
        title=_title(records),
        data=described(records),
        result=html.escape(who_wins(cells)),
        accuracies=_html_table(accuracy_rows(cells)),
        accuracies_note=html.escape(ACCURACY_NOTE),
        figure=figure_tag("Test accuracy against discarded stages", lambda look: draw_depths(cells, look)),
        readings=_html_table(reading_rows(cells)),
        costs=_html_table(cost_rows(cells)),
        costs_note=html.escape(COST_NOTE),
        curves=figure_tag("Validation accuracy after each epoch", lambda look: draw_curves(cells, look)),
        settings=settings,
    )


ACCURACY_NOTE = (
    "Means over seeds, with the range over seeds in brackets. All heads of a seed have the same examples, first weights "
    "of the network and budget of steps; the epoch is chosen on the held-out part. The kernel predicts from the whole "
    "subsample, held-out part included; how it does without is among the other readings."
)
COST_NOTE = (
    "Parameters are those of network and head. A step has reading, augmentation, both passes and the optimizer, from the "
    "fastest epoch of each run; validation is not in it. Runs that end early have fewer steps."
)


def _range(numbers: Sequence[float], sign: str) -> str:
    shown = f"{100 * mean(numbers):{sign}.1f}"
    if len(numbers) == 1:
        return shown
    return f"{shown} ({100 * min(numbers):{sign}.1f} to {100 * max(numbers):{sign}.1f})"


def _html_table(rows: Rows) -> str:
    head, *body = ([html.escape(text) for text in row] for row in rows)
    lines = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in body)
    return f"<table><thead><tr>{''.join(f'<th>{text}</th>' for text in head)}</tr></thead><tbody>{lines}</tbody></table>"
