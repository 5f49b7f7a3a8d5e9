"""Probing at depth (section 4.2 of the paper): readouts on a frozen network without its top stages.

One pass over the pictures gives the features of all depths. Every result is recorded as soon as it is there, as in
`transfer`, so a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from ..errors import InputError
from .folders import made_folder
from .pages import write_page
from .probe_config import ProbeConfig
from .probe_figure import write_depths_figure
from .probe_inputs import ProbeInputs, read_probe_inputs
from .probe_report import About, probe_markdown, write_probe_report
from .probe_runs import probe_depths
from .probe_summary import DepthCell, summarize_depths
from .records import Record, Records

WRITTEN = ("records.jsonl", "figure.png", "report.html", "report.md")


class ProbeOutcome(NamedTuple):
    """What a run leaves behind."""

    inputs: ProbeInputs
    records: list[Record]  # of this run, new and found
    cells: list[DepthCell]
    reused: int  # records that were there already
    note: str  # on sizes that there are not
    out: pathlib.Path


def run(config: ProbeConfig, *, progress: bool = False) -> ProbeOutcome:
    """Features, readouts at all depths, figure and report; whatever of it is there already is used."""
    out = made_folder(config.out)
    inputs = read_probe_inputs(config, progress=progress)
    if len(inputs.train.labels) < 2:
        raise InputError("The training part has one picture. Readouts need at least two.")
    records = Records(out / "records.jsonl")
    found, reused = probe_depths(
        config,
        inputs.depths,
        inputs.at,
        num_train=len(inputs.train.labels),
        found=records.get,
        keep=records.add,
        progress=progress,
    )
    cells = summarize_depths(found)
    write_depths_figure(out / "figure.png", cells)
    note = config.larger_than(len(inputs.train.labels))
    about = About(f"{inputs.name}: {config.network} at depth", inputs.text, str(config.pooling), note)
    write_probe_report(out / "report.html", about, found, cells)
    write_page(out / "report.md", probe_markdown(about, found, cells, config.command))
    return ProbeOutcome(inputs, found, cells, reused, note, out)
