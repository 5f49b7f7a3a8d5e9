"""Transfer learning (section 4.1 of the paper): readouts on frozen features, at several label budgets.

Every result is recorded as soon as it is there, under a key made of all it depends on, so a run that was interrupted goes on
where it was, and a run that is complete only draws its figure and its report again.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from .. import __version__
from .._progress import Progress
from ..errors import FileError, InputError
from ..nn import LocalKernelRidge
from .config import Config
from .figures import write_figure
from .heads import Head, read_head, write_head
from .inputs import Inputs, read_inputs
from .lineup import SELECTED, readout_named
from .readouts import Fitted, Training, quality
from .records import Record, Records, fingerprint, versions
from .report import write_report
from .subsamples import budget_rows
from .summary import Cell, summarize

WRITTEN = ("records.jsonl", "figure.png", "report.html", "head.safetensors")


class Outcome(NamedTuple):
    """What a run leaves behind."""

    inputs: Inputs
    records: list[Record]  # of this run, new and found
    cells: list[Cell]
    reused: int  # records that were there already
    head: Head
    out: pathlib.Path


class Case(NamedTuple):
    """One readout on one subsample."""

    readout: str
    budget: int
    seed: int


def run(config: Config, *, progress: bool = False) -> Outcome:
    """Features, readouts, head, figure and report; whatever of it is there already is used."""
    out = made_folder(config.out)
    inputs = read_inputs(config, progress=progress)
    if len(inputs.train.labels) < 2:
        raise InputError("The training part has one row. Readouts need at least two.")
    records = Records(out / "records.jsonl")
    wanted = list(cases(config, len(inputs.train.labels)))
    found: list[Record] = []
    head: Head | None = None
    reused = 0
    with Progress("readouts", len(wanted), shown=progress) as bar:
        for case in wanted:
            title = readout_named(case.readout).title
            bar.advance(0, note=f"{title}, {case.budget:,} labels")
            record = records.get(case_key(case, inputs))
            if record is None:
                record, fitted = solve(case, inputs)
                if case == head_case(config, inputs):
                    head = _head(fitted, case, inputs)
                    write_head(out / "head.safetensors", head)
                records.add(record)
            else:
                reused += 1
            found.append(record)
            bar.advance(note=f"{title}, {case.budget:,} labels: {100 * record['accuracy']:.1f} %")
    head = head or _stored_head(config, inputs, out)
    cells = summarize(found)
    write_figure(out / "figure.png", cells)
    write_report(out / "report.html", inputs, found, head)
    return Outcome(inputs, found, cells, reused, head, out)


def cases(config: Config, count: int) -> Iterator[Case]:
    """Small budgets first; a single seed for all labels, where seeds could not differ."""
    for budget in config.budgets_of(count):
        for seed in range(config.seeds if budget < count else 1):
            for readout in config.readouts:
                yield Case(readout, budget, seed)


def case_key(case: Case, inputs: Inputs) -> str:
    settings = {"class": type(readout_named(case.readout).readout).__name__, **_settings(case.readout)}
    parts = {**case._asdict(), "settings": settings, "inputs": inputs.fingerprint, "torchkrr": __version__}
    return fingerprint(parts)


def solve(case: Case, inputs: Inputs) -> tuple[Record, Fitted]:
    """Fit one readout, judge it on the test part, and say how long that took."""
    training = _training(case, inputs)
    start = time.perf_counter()
    fitted = readout_named(case.readout).readout.fit(training)
    half = time.perf_counter()
    scores = fitted.scores(inputs.test.features)
    stop = time.perf_counter()
    found = quality(scores, inputs.test.labels, fitted.temperature)
    share = case.budget / len(inputs.train.labels)
    record = {
        "key": case_key(case, inputs),
        "dataset": inputs.name,
        "backbone": inputs.backbone,
        "num_features": inputs.train.features.shape[1],
        "readout": case.readout,
        "title": readout_named(case.readout).title,
        "settings": _settings(case.readout),
        "chosen": fitted.chosen,
        "budget": case.budget,
        "seed": case.seed,
        "num_test": len(inputs.test.labels),
        "accuracy": found.accuracy,
        "log_loss": found.log_loss,
        "seconds": {
            "features": share * inputs.train.seconds + inputs.test.seconds,
            "fit": half - start,
            "predict": stop - half,
        },
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    return record, fitted


def head_case(config: Config, inputs: Inputs) -> Case:
    """Whose readout becomes the head."""
    return Case(SELECTED, config.budgets_of(len(inputs.train.labels))[-1], 0)


def _stored_head(config: Config, inputs: Inputs, out: pathlib.Path) -> Head:
    """The head of an earlier run if it is the same, else a new one."""
    case = head_case(config, inputs)
    path = out / "head.safetensors"
    try:
        head = read_head(path)
        if head.key == case_key(case, inputs):
            return head
    except FileError:
        pass  # none yet, or none of ours
    head = _head(readout_named(SELECTED).readout.fit(_training(case, inputs)), case, inputs)
    write_head(path, head)
    return head


def _head(fitted: Fitted, case: Case, inputs: Inputs) -> Head:
    assert isinstance(fitted.layer, LocalKernelRidge)
    assert fitted.temperature is not None
    rows = budget_rows(inputs.train.labels, case.budget, case.seed).tolist()
    items = [inputs.train.source.describe(row) for row in rows]
    return Head(fitted.layer, fitted.temperature, inputs.classes, items, inputs.backbone, case_key(case, inputs))


def _training(case: Case, inputs: Inputs) -> Training:
    features, labels = inputs.train.features, inputs.train.labels
    if case.budget < len(labels):  # all of them need no copy
        rows = budget_rows(labels, case.budget, case.seed)
        features, labels = features[rows], labels[rows]
    return Training(features, labels, len(inputs.classes), case.seed)


def _settings(readout: str) -> dict[str, Any]:
    return asdict(readout_named(readout).readout)  # type: ignore[call-overload, no-any-return]


def made_folder(path: str) -> pathlib.Path:
    """The folder for results, made if it is not there."""
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}. Name another with --out.") from error
    return folder
