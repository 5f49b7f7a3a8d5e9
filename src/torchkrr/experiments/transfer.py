"""Transfer learning (section 4.1 of the paper): readouts on frozen features, at several label budgets.

Every result is recorded as soon as it is there, under a key made of all it depends on, so a run that was interrupted goes on
where it was, and a run that is complete only draws its figure and its report again.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, cast

import torch

from .. import __version__
from .._progress import Progress
from ..distributed.launch import SINGLE_PROCESS, AllRanks, SingleProcess
from ..errors import FileError, InputError
from ..nn import LocalKernelRidge
from ..vision.features import Inputs, read_inputs
from ..vision.readouts import Fitted, LayerReadout, Quality, Training, fit_sharded, quality, readout_named, unshard
from ..vision.sampling import budget_rows
from ..vision.selection import left_out_temperature
from .config import Config
from .figures import write_figure
from .folders import made_folder
from .heads import Head, read_head, write_head
from .pages import write_page
from .records import Record, Records, fingerprint, versions
from .report import Made, markdown, write_report
from .summary import Cell, summarize

WRITTEN = ("records.jsonl", "figure.png", "report.html", "report.md", "head.safetensors")


class Outcome(NamedTuple):
    """What a run leaves behind."""

    inputs: Inputs
    records: list[Record]  # of this run, new and found
    cells: list[Cell]
    reused: int  # records that were there already
    head: Head
    made: Made  # from which readout, and how good it is
    note: str  # on what was asked for and could not be; mostly empty
    out: pathlib.Path


class Case(NamedTuple):
    """One readout on one subsample."""

    readout: str
    budget: int
    seed: int


class Measured(NamedTuple):
    """A readout that was fitted and judged on the test part."""

    fitted: Fitted
    found: Quality
    fit: float  # seconds
    predict: float  # seconds


def run(config: Config, *, progress: bool = False) -> Outcome:
    """Features, readouts, head, figure and report; whatever of it is there already is used."""
    outcome = run_together(config, SINGLE_PROCESS, progress=progress)
    assert outcome is not None
    return outcome


def run_together(config: Config, team: SingleProcess, *, progress: bool = False) -> Outcome | None:
    """`run` by all of a team. The first rank writes, and has the outcome; the others get `None`."""
    out = team.first(made_folder, config.out)
    inputs = read_inputs(config, progress=progress, team=team)
    if len(inputs.train.labels) < 2:
        raise InputError("The training part has one row. Readouts need at least two.")
    wanted = list(cases(config, len(inputs.train.labels)))
    records = team.first_of_all(Records, out / "records.jsonl")
    known = team.first(lambda: [records.get(case_key(case, inputs)) for case in wanted])
    found: list[Record] = []
    head: Head | None = None
    with Progress("readouts", len(wanted), shown=progress) as bar:
        for case, record in zip(wanted, known, strict=True):
            title = readout_named(case.readout).title
            bar.advance(0, note=f"{title}, {case.budget:,} labels")
            if record is None:
                record, fitted = solve(case, inputs, team)
                if case == head_case(config, inputs):
                    head = team.only_first(_new_head, fitted, case, inputs, out)
                team.only_first(records.add, record)
            found.append(record)
            bar.advance(note=f"{title}, {case.budget:,} labels: {100 * record['accuracy']:.1f} %")
    reused = sum(record is not None for record in known)
    return team.only_first(_finished, config, inputs, found, reused, head, out, progress)


def _finished(
    config: Config, inputs: Inputs, found: list[Record], reused: int, head: Head | None, out: pathlib.Path, progress: bool
) -> Outcome:
    head = head or _stored_head(config, inputs, out, progress)
    cells = summarize(found)
    note = config.larger_than(len(inputs.train.labels))
    write_figure(out / "figure.png", cells)
    made = write_report(out / "report.html", inputs, found, head, config.head_readout, note)
    write_page(out / "report.md", markdown(inputs, found, made, note, config.command))
    return Outcome(inputs, found, cells, reused, head, made, note, out)


def cases(config: Config, count: int) -> Iterator[Case]:
    """Small budgets first; a single seed for all labels, where subsamples cannot differ.

    Trained heads still depend on their seed there, which is not measured.
    """
    for budget in config.budgets_of(count):
        for seed in range(config.seeds if budget < count else 1):
            for readout in config.readouts:
                yield Case(readout, budget, seed)


def case_key(case: Case, inputs: Inputs) -> str:
    settings = {"class": type(readout_named(case.readout).readout).__name__, **_settings(case.readout)}
    parts = {**case._asdict(), "settings": settings, "inputs": inputs.fingerprint, "torchkrr": __version__}
    return fingerprint(parts)


def solve(case: Case, inputs: Inputs, team: SingleProcess = SINGLE_PROCESS) -> tuple[Record, Fitted | None]:
    """Fit one readout, judge it on the test part, and say how long that took.

    A team does it together where training rows can be spread over ranks. Other readouts are the first rank's, and the fitted
    one is `None` on the others.
    """
    readout = readout_named(case.readout).readout
    training = cast(Training, team.only_first(_training, case, inputs))  # whoever has none does not look at it
    measured: Measured | None
    if isinstance(team, AllRanks) and isinstance(readout, LayerReadout):
        own = _training(case, inputs, team.own(case.budget))
        measured = _measured(lambda: fit_sharded(team.first(readout.plan, training), own, team), inputs)
    else:
        measured = team.only_first(lambda: _measured(lambda: readout.fit(training), inputs))
    record = team.first(_record, case, inputs, cast(Measured, measured), team.size)
    return record, None if measured is None else measured.fitted


def _measured(fit: Callable[[], Fitted], inputs: Inputs) -> Measured:
    start = time.perf_counter()
    fitted = fit()
    half = time.perf_counter()
    scores = fitted.scores(inputs.test.features)
    stop = time.perf_counter()
    return Measured(fitted, quality(scores, inputs.test.labels, fitted.temperature), half - start, stop - half)


def _record(case: Case, inputs: Inputs, measured: Measured, num_ranks: int) -> Record:
    share = case.budget / len(inputs.train.labels)
    return {
        "key": case_key(case, inputs),
        "dataset": inputs.name,
        "backbone": inputs.backbone,
        "num_features": inputs.train.features.shape[1],
        "readout": case.readout,
        "title": readout_named(case.readout).title,
        "settings": _settings(case.readout),
        "chosen": measured.fitted.chosen,
        "budget": case.budget,
        "seed": case.seed,
        "num_test": len(inputs.test.labels),
        "accuracy": measured.found.accuracy,
        "log_loss": measured.found.log_loss,
        "seconds": {
            "features": share * inputs.train.seconds + inputs.test.seconds,
            "fit": measured.fit,
            "predict": measured.predict,
        },
        "threads": torch.get_num_threads(),
        "ranks": num_ranks,
        "versions": versions(),
    }


def head_case(config: Config, inputs: Inputs) -> Case:
    """Whose readout becomes the head."""
    return Case(config.head_readout, config.budgets_of(len(inputs.train.labels))[-1], 0)


def _stored_head(config: Config, inputs: Inputs, out: pathlib.Path, progress: bool) -> Head:
    """The head of an earlier run if it is the same, else a new one."""
    case = head_case(config, inputs)
    path = out / "head.safetensors"
    try:
        head = read_head(path)
        if head.key == case_key(case, inputs):
            return head
    except FileError:
        pass  # none yet, or none of ours
    entry = readout_named(case.readout)
    with Progress("head", 1, shown=progress) as bar:
        bar.advance(0, note=f"{entry.title}, {case.budget:,} labels")
        head = _new_head(entry.readout.fit(_training(case, inputs)), case, inputs, out)
        bar.advance()
    return head


def _new_head(fitted: Fitted | None, case: Case, inputs: Inputs, out: pathlib.Path) -> Head:
    """Written, too."""
    assert fitted is not None
    assert isinstance(fitted.layer, LocalKernelRidge)
    layer = unshard(fitted.layer, _training(case, inputs))
    temperature = left_out_temperature(layer) if fitted.temperature is None else fitted.temperature
    rows = budget_rows(inputs.train.labels, case.budget, case.seed).tolist()
    items = [inputs.train.source.describe(row) for row in rows]
    head = Head(layer, temperature, inputs.classes, items, inputs.backbone, case_key(case, inputs))
    write_head(out / "head.safetensors", head)
    return head


def _training(case: Case, inputs: Inputs, part: slice = slice(None)) -> Training:
    """What a readout may see, or a part of its rows."""
    features, labels = inputs.train.features, inputs.train.labels
    if case.budget < len(labels):
        rows = budget_rows(labels, case.budget, case.seed)[part]
        features, labels = features[rows], labels[rows]
    else:  # all of them need no copy
        features, labels = features[part], labels[part]
    return Training(features, labels, len(inputs.classes), case.seed)


def _settings(readout: str) -> dict[str, Any]:
    return asdict(readout_named(readout).readout)  # type: ignore[call-overload, no-any-return]
