"""`report.html`: everything about a run on one page that needs no other file, light or dark as the reader's system."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..vision.features import Inputs
from ..vision.images import Images
from ..vision.readouts import readout_named
from ..vision.sampling import budget_rows
from .examining import Examination, Group, Shown, examine
from .figures import Look, draw_budgets, draw_indicator
from .heads import Head
from .pages import figure_tag, filled, write_page
from .records import Record
from .summary import Cell, accuracy_rows, percent, second_rows, summarize
from .text_tables import markdown_page, markdown_table
from .thumbnails import data_uri

MOST_CLASSES = 20  # of a matrix that can be read
LISTED = 12  # confusions otherwise


class Made(NamedTuple):
    """What a head was made from, and how good it is."""

    readout: str
    title: str
    accuracy: float  # on the test part
    indicator: str  # a sentence on its error indicator there


def write_report(
    path: str | os.PathLike[str], inputs: Inputs, records: Sequence[Record], head: Head, readout: str, note: str = ""
) -> Made:
    """The page, with a close look at the head; `readout` is what it was made from."""
    examined = examine(head, inputs.test.features, inputs.test.labels)
    made = Made(readout, readout_named(readout).title, examined.accuracy, _indicator_note(examined.groups))
    write_page(path, page(inputs, records, head, examined, made, note))
    return made


def page(inputs: Inputs, records: Sequence[Record], head: Head, examined: Examination, made: Made, note: str = "") -> str:
    cells = summarize(records)
    groups = examined.groups
    return filled(
        "report.html",
        title=_title(inputs),
        data=inputs.text,
        result=html.escape(_result(cells, made, len(inputs.test.labels))),
        table=_table(cells),
        table_note=html.escape(" ".join(filter(None, (_table_note(cells), note)))),
        readouts="".join(f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>" for title, text in _readouts(cells)),
        budgets_figure=figure_tag("Accuracy and time against the budget", lambda look: draw_budgets(cells, look)),
        confusions=_confusions(examined.confusion, head.classes),
        indicator_figure=figure_tag("Accuracy against the error indicator", lambda look: _draw_groups(groups, look)),
        indicator_note=html.escape(made.indicator),
        mistakes=_mistakes(examined, inputs, head),
        settings=_settings(records),
    )


def markdown(inputs: Inputs, records: Sequence[Record], made: Made, note: str, command: str) -> str:
    """The tables of the page, for people who read text."""
    cells = summarize(records)
    parts = [
        inputs.text + ".",
        markdown_table(accuracy_rows(cells)),
        " ".join(filter(None, (_errors(cells), note))),
        "\n".join(f"- {title}: {text}" for title, text in _readouts(cells)),
        f"{_head(made, len(inputs.test.labels))} By its error indicator, in ten groups of test examples: {made.indicator}",
        markdown_table(second_rows(cells)),
    ]
    return markdown_page(_title(inputs), command, records[-1]["versions"], parts)


def _title(inputs: Inputs) -> str:
    return f"{inputs.name}: heads on frozen features"


def _head(made: Made, num_test: int) -> str:
    return (
        f"The head in head.safetensors is {made.title}, {readout_named(made.readout).text}. It is right on "
        f"{100 * made.accuracy:.1f} % of {num_test:,} test examples."
    )


def _readouts(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """What each is, so that nobody has to look up a name. Kernel readouts are often unknown, SK first of all."""
    titles = {cell.readout: cell.title for cell in cells}
    if any(title.startswith("SK, ") for title in titles.values()):
        titles = {"sk": readout_named("sk").title, **titles}  # the others refer to it
    return [(title, readout_named(name).text) for name, title in titles.items()]


def _result(cells: Sequence[Cell], made: Made, num_test: int) -> str:
    largest = max(cell.budget for cell in cells)
    most = max(cell.accuracy for cell in cells if cell.budget == largest)
    best = [cell.title for cell in cells if cell.budget == largest and cell.accuracy == most]
    who = f"the best readout of this run is {best[0]}" if len(best) == 1 else f"{len(best)} readouts share the first place"
    return f"{_head(made, num_test)} With {largest:,} labels {who} with {100 * most:.1f} %."


def _table(cells: Sequence[Cell]) -> str:
    budgets = sorted({cell.budget for cell in cells})
    best = {budget: max(cell.accuracy for cell in cells if cell.budget == budget) for budget in budgets}
    found = {(cell.readout, cell.budget): cell for cell in cells}
    head = "".join(f"<th>{budget:,}</th>" for budget in budgets)
    rows = []
    for readout, title in {cell.readout: cell.title for cell in cells}.items():
        shown = [found.get((readout, budget)) for budget in budgets]
        columns = "".join(
            f"<td{' class=best' if cell is not None and cell.accuracy == best[cell.budget] else ''}>{percent(cell)}</td>"
            for cell in shown
        )
        last = next(cell for cell in reversed(shown) if cell is not None)
        loss = "" if last.log_loss is None else f"{last.log_loss:.3f}"
        times = f"<td>{loss}</td><td>{last.fit:.2f}</td><td>{last.predict:.2f}</td>"
        rows.append(f"<tr><td>{html.escape(title)}</td>{columns}{times}</tr>")
    return (
        f"<table><thead><tr><th>accuracy in % by labels</th>{head}"
        "<th>log-loss</th><th>fit s</th><th>predict s</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _table_note(cells: Sequence[Cell]) -> str:
    return " ".join(("Log-loss and seconds are those of the largest budget; bold is the best.", _errors(cells))).rstrip()


def _errors(cells: Sequence[Cell]) -> str:
    seeds = max(cell.num_seeds for cell in cells)
    means = f"Means over {seeds} subsamples with their standard errors. " if seeds > 1 else ""
    return f"{means}Subsamples are stratified and the same for all."


def _draw_groups(groups: Sequence[Group], look: Look) -> Any:
    return draw_indicator([group.indicator for group in groups], [group.accuracy for group in groups], look)


def _indicator_note(groups: Sequence[Group]) -> str:
    first, last = groups[0], groups[-1]
    return (
        f"{100 * first.accuracy:.1f} % are right in the group of the smallest indicator, "
        f"{100 * last.accuracy:.1f} % in that of the largest."
    )


def _confusions(confusion: Tensor, classes: Sequence[str]) -> str:
    if len(classes) > MOST_CLASSES:
        return _listed_confusions(confusion, classes)
    names = [html.escape(name) for name in classes]
    rows = []
    for row, (name, counts) in enumerate(zip(names, confusion.tolist(), strict=True)):
        total = max(1, sum(counts))
        columns = "".join(_shaded(count, count / total, right=row == column) for column, count in enumerate(counts))
        rows.append(f"<tr><th>{name}</th>{columns}</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        "<p>Rows are the truth, columns the prediction of the head, in numbers of test examples.</p>"
        f'<div class="scroll"><table class="matrix"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _shaded(count: int, share: float, *, right: bool) -> str:
    if not count:
        return '<td class="soft">·</td>'
    # The square root shows rare confusions too.
    color = f"rgba(var(--{'good' if right else 'bad'}), {0.75 * share**0.5:.3f})"
    return f'<td style="background:{color}">{count}</td>'


def _listed_confusions(confusion: Tensor, classes: Sequence[str]) -> str:
    wrong = confusion.clone().fill_diagonal_(0)
    counts, places = wrong.flatten().sort(descending=True, stable=True)
    rows = []
    for count, place in zip(counts[:LISTED].tolist(), places[:LISTED].tolist(), strict=True):
        if count:
            truth, found = divmod(place, len(classes))
            names = f"<td>{html.escape(classes[truth])}</td><td>{html.escape(classes[found])}</td>"
            rows.append(f"<tr>{names}<td>{count}</td><td>{int(confusion[truth].sum())}</td></tr>")
    return (
        f"<p>The most frequent of {len(classes)} classes.</p><table><thead><tr>"
        f"<th>truth</th><th>taken for</th><th>times</th><th>of</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _mistakes(examined: Examination, inputs: Inputs, head: Head) -> str:
    rows = budget_rows(inputs.train.labels, head.layer.num_centers, 0).tolist()
    text = "<p>The head makes none on the test part.</p>"
    if examined.mistakes:
        text = (
            "<p>Test examples of which the head was surest and wrong, each with the training examples of largest weight in "
            "its prediction. The score of a class is the sum of the weights of its examples.</p>"
            f"{_cards(examined.mistakes, inputs, rows)}"
        )
    if examined.doubtful:
        text += f"<p>Right, but least sure:</p>{_cards(examined.doubtful, inputs, rows)}"
    return text


def _cards(shown: Sequence[Shown], inputs: Inputs, rows: Sequence[int]) -> str:
    return f'<div class="mistakes">{"".join(_card(one, inputs, rows) for one in shown)}</div>'


def _card(shown: Shown, inputs: Inputs, rows: Sequence[int]) -> str:
    found = shown.found
    test = _tile(inputs.test.source, shown.row, "test example", " test")
    train = "".join(
        _tile(inputs.train.source, rows[one.center], f"{one.label} {one.weight:+.2f}", "") for one in found.because
    )
    truth, label = html.escape(shown.truth), html.escape(found.label)
    said = f"<b>{truth}</b>" if found.label == shown.truth else f"<b>{truth}</b>, taken for <b>{label}</b>"
    doubt = f"with {100 * found.probability:.1f} %, indicator {found.indicator:.2f}"
    return f'<div class="mistake"><p>{said} <span class="soft">{doubt}</span></p><div class="row">{test}{train}</div></div>'


def _tile(source: Any, row: int, text: str, more: str) -> str:
    name = html.escape(source.describe(row))
    if isinstance(source, Images):
        address, small = data_uri(source.read([row])[0])
        image = f'<img{" class=pixels" if small else ""} alt="{name}" src="{address}">'
    else:
        image = f"<small>{name}</small><br>"
    return f'<div class="tile{more}" title="{name}">{image}{html.escape(text)}</div>'


def _settings(records: Sequence[Record]) -> dict[str, Any]:
    largest = max(record["budget"] for record in records)
    shown: dict[str, Any] = {"versions": records[-1]["versions"], "threads": records[-1]["threads"]}
    shown["backbone"] = records[-1]["backbone"]
    for record in records:
        if record["budget"] == largest and record["seed"] == 0:
            shown[record["title"]] = {"settings": record["settings"], "chosen": record["chosen"]}
    return shown
