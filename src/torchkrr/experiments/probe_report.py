"""`report.html` of a probing run."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from .pages import figure_tag, filled, write_page
from .probe_figure import draw_depths
from .probe_summary import DepthCell, Grid, accuracy_text, findings, grid_rows, grid_title, grids, indicator_text
from .records import Record
from .text_tables import markdown_page, markdown_table


class About(NamedTuple):
    """What a page says beside its records."""

    title: str
    data: str
    pooling: str
    note: str = ""  # on sizes that there are not


def write_probe_report(
    path: str | os.PathLike[str], about: About, records: Sequence[Record], cells: Sequence[DepthCell]
) -> None:
    write_page(path, probe_page(about, records, cells))


def probe_page(about: About, records: Sequence[Record], cells: Sequence[DepthCell]) -> str:
    return filled(
        "probe.html",
        title=about.title,
        data=about.data,
        pooling=html.escape(about.pooling),
        figure=figure_tag("Accuracy and indicator against stages discarded", lambda look: draw_depths(cells, look)),
        tables=html_tables(cells),
        table_note=html.escape(" ".join(filter(None, (_table_note(cells), about.note)))),
        findings="".join(f"<p>{html.escape(sentence)}</p>" for sentence in findings(cells)),
        cost=html.escape(_cost(records)),
        settings=_settings(records),
    )


def probe_markdown(about: About, records: Sequence[Record], cells: Sequence[DepthCell], command: str) -> str:
    """The tables of the page, for people who read text."""
    parts = [about.data + ".", f"Maps and tokens become vectors by pooling: {about.pooling}."]
    for grid in grids(cells):
        title = grid_title(grid)
        parts += [f"## {title[0].upper()}{title[1:]}", markdown_table(grid_rows(grid))]
    parts += [" ".join(filter(None, (*findings(cells), about.note))), _cost(records)]
    return markdown_page(about.title, command, records[-1]["versions"], parts)


def html_tables(cells: Sequence[DepthCell]) -> str:
    """A table for each size, the best depth of each readout marked."""
    return "".join(f'<div class="scroll">{_html_table(grid)}</div>' for grid in grids(cells))


def _html_table(grid: Grid) -> str:
    rows = []
    for title, row in grid.rows.items():
        best = grid.best(title).cell.accuracy
        columns = "".join(
            f"<td{' class=best' if cell is not None and cell.cell.accuracy == best else ''}>{accuracy_text(cell)}</td>"
            for cell in row
        )
        rows.append(f"<tr><td>{html.escape(title)}</td>{columns}</tr>")
    for title, row in grid.indicators().items():
        columns = "".join(f"<td>{indicator_text(cell)}</td>" for cell in row)
        rows.append(f'<tr class="soft"><td>error indicator of {html.escape(title)}</td>{columns}</tr>')
    head = "".join(
        f"<th>{column.discarded}<br><small>{html.escape(column.layer)}<br>{column.num_features} features</small></th>"
        for column in grid.columns
    )
    what = f"accuracy in % with {grid.size:,} examples,<br>by stages discarded"
    return f"<table><thead><tr><th>{what}</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _table_note(cells: Sequence[DepthCell]) -> str:
    seeds = max(cell.cell.num_seeds for cell in cells)
    errors = f"Means over {seeds} subsamples with their standard errors. " if seeds > 1 else ""
    return f"{errors}Bold is the best depth of each readout. Subsamples are stratified, and the same everywhere."


def _cost(records: Sequence[Record]) -> str:
    features = max(record["seconds"]["features"] for record in records)
    solving = sum(record["seconds"]["fit"] + record["seconds"]["predict"] for record in records)
    threads = records[-1]["threads"]
    return (
        f"The pass of the network over the training pictures of the largest size and the test pictures, for the features of "
        f"all depths: {features:.0f} s. All {len(records)} "
        f"readouts, fit and prediction: {solving:.0f} s. The last of them had {threads} thread{'s' if threads > 1 else ''}."
    )


def _settings(records: Sequence[Record]) -> dict[str, Any]:
    last = records[-1]
    shown: dict[str, Any] = {"versions": last["versions"], "backbone": last["backbone"]}
    largest = max(record["budget"] for record in records)
    for record in records:
        if record["budget"] == largest and record["seed"] == 0:
            chosen = shown.setdefault(record["title"], {"settings": record["settings"], "chosen": {}})["chosen"]
            chosen[f"{record['discarded']} discarded"] = record["chosen"]
    return shown
