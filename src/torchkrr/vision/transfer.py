"""Transfer learning (section 4.1 of the paper): readouts on frozen features, at several label budgets.

Every result is recorded at once, under a key made of all it depends on. A run that was interrupted goes on where it was, and
a complete one only draws its figure and its report again.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from tqdm import tqdm

from .. import __version__
from .._checks import check_device
from ..distributed.launch import SINGLE_PROCESS, SingleProcess
from ..errors import FileError, InputError
from ..models.features import Pooling
from ..runs import Record, Records, fingerprint, make_folder, versions
from .features import Inputs, read_inputs
from .figures import LIGHT, draw_budgets, write_page, write_png
from .readouts import HEAD, USUAL, Fitted, Training, fitted_head, quality, readout_named
from .report import Examination, examine, transfer_markdown, transfer_page
from .sampling import budget_rows
from .summary import Cell, summarize

HEAD_FILE = "head.safetensors"
WRITTEN = ("records.jsonl", "figure.png", "report.html", "report.md", HEAD_FILE)


@dataclass(frozen=True)
class TransferConfig:
    """One run: data, frozen backbone, label budgets and readouts.

    Args:
        dataset: `digits`, `cifar10`, or a path: a folder with one folder of images per class, an .npz of images or features,
            or a CSV manifest.
        backbone: what makes features of images; `None` is `digits` for digits, and the paper's `resnet18` for others. Not
            used where the data are features.
        weights: a file with the weights of the backbone, instead of its own pretrained ones.
        size: of the images given to the backbone, in pixels.
        layer, pooling: where features are taken from, and how maps and tokens become vectors.
        budgets: numbers of labels; `None` is all.
        seeds: subsamples of each budget below all.
        readouts: names in `READOUTS`.
        out: folder for records, figure, report and head.
        cache: folder for features; `None` is a folder `features` inside `out`.
        test_share, split_seed: of the test part, where the data do not bring their own.
        random_weights: an untrained backbone, for tests.
        strict: a picture that cannot be read is an error; else it is left out, with a warning.
    """

    COMMAND: ClassVar[str] = "transfer"
    OPTIONS: ClassVar[dict[str, str]] = {}  # of fields whose option has another name
    # Left out of `command`: numbers do not depend on them, or they have no option.
    OMITTED: ClassVar[tuple[str, ...]] = ("out", "cache", "batch_size", "device", "split_seed")

    dataset: str = "digits"
    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    layer: str | None = None
    pooling: Pooling = "mean"
    budgets: tuple[int | None, ...] = (100, 1000, 10_000, None)
    seeds: int = 5
    readouts: tuple[str, ...] = USUAL
    out: str = "runs/transfer"
    cache: str | None = None
    test_share: float = 0.2
    split_seed: int = 0
    batch_size: int = 64
    device: str = "cpu"
    random_weights: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.budgets or not self.readouts:
            raise InputError("A run needs at least one budget and one readout.")
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        for name in self.readouts:
            readout_named(name)
        check_device(self.device)

    @property
    def network(self) -> str:
        """The name of the backbone."""
        return self.backbone or ("digits" if self.dataset == "digits" else "resnet18")

    @property
    def command(self) -> str:
        """What makes the same numbers on the command line; files stand without their folders.

        Example:
            >>> TransferConfig(dataset="/data/my photos", budgets=(100, None)).command
            "torchkrr transfer 'my photos' --budgets 100,all"
        """
        words = [f"torchkrr {self.COMMAND}"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in self.OMITTED or value is None or value == field.default:
                continue
            if field.name != "dataset":
                words.append(self.OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}"))
            if isinstance(value, tuple):
                words.append(shlex.quote(",".join("all" if part is None else str(part) for part in value)))
            elif value is not True:
                text = str(value)
                is_path = field.name in ("dataset", "weights")
                words.append(shlex.quote(os.path.basename(text.rstrip("/")) if is_path else text))
        return " ".join(words)

    def budgets_of(self, count: int) -> list[int]:
        """The budgets, ascending; those of `count` labels and more are all of them.

        Example:
            >>> TransferConfig(budgets=(1000, 100, None)).budgets_of(500)
            [100, 500]
        """
        return sorted({count if budget is None else min(budget, count) for budget in self.budgets})

    def budget_note(self, count: int) -> str:
        """A sentence on requested budgets that are larger than `count`, or nothing.

        Example:
            >>> TransferConfig(budgets=(100, 1000)).budget_note(384)
            'There are 384 training examples, fewer than the 1,000 labels asked for: all are used instead.'
        """
        default = next(field.default for field in fields(self) if field.name == "budgets")
        larger = sorted({budget for budget in self.budgets if budget is not None and budget > count})
        if not larger or self.budgets == default:  # which nobody asked for
            return ""
        requested = " and ".join(f"{budget:,}" for budget in larger)
        return f"There are {count:,} training examples, fewer than the {requested} labels asked for: all are used instead."


class Case(NamedTuple):
    """One readout on one subsample."""

    readout: str
    budget: int
    seed: int


class Outcome(NamedTuple):
    """What a run leaves behind."""

    inputs: Inputs
    records: list[Record]  # of this run, new and reused
    cells: list[Cell]
    reused: int  # records of earlier runs
    head: Any  # the estimator in head.safetensors
    examination: Examination  # how good it is on the test part
    note: str  # on what was asked for and could not be; mostly empty
    out: pathlib.Path


def run(config: TransferConfig, *, progress: bool = False) -> Outcome:
    """Features, readouts, head, figure and report; results of earlier runs are used again."""
    outcome = run_together(config, SINGLE_PROCESS, progress=progress)
    assert outcome is not None
    return outcome


def run_together(config: TransferConfig, team: SingleProcess, *, progress: bool = False) -> Outcome | None:
    """`run` by a team: all ranks compute features, and the first one does the rest. The others return `None`."""
    out = team.first(make_folder, config.out)
    inputs = read_inputs(config, progress=progress, team=team)
    if not team.is_first:
        return None
    if len(inputs.train.labels) < 2:
        raise InputError("The training part has one row. Readouts need at least two.")
    requested, stored = list(cases(config, len(inputs.train.labels))), Records(out / "records.jsonl")
    records: list[Record] = []
    reused, head = 0, None
    with tqdm(total=len(requested), desc="readouts", disable=not progress) as bar:
        for case in requested:
            words = f"{readout_named(case.readout).title}, {case.budget:,} labels"
            bar.set_postfix_str(words)
            record = stored.get(case_key(case, inputs))
            reused += record is not None
            if record is None:
                record, fitted = solve(case, inputs)
                if case == head_case(config, inputs):
                    head = _new_head(fitted, case, inputs, out)
                stored.add(record)
            records.append(record)
            bar.set_postfix_str(f"{words}: {100 * record['accuracy']:.1f} %", refresh=False)
            bar.update()
    return _finish(config, inputs, records, reused, head, out)


def _finish(
    config: TransferConfig, inputs: Inputs, records: list[Record], reused: int, head: Any, out: pathlib.Path
) -> Outcome:
    head = head or _stored_head(config, inputs, out)
    cells = summarize(records)
    note = config.budget_note(len(inputs.train.labels))
    examination = examine(fitted_head(head, inputs.classes), inputs.classes, inputs.test.features, inputs.test.labels)
    write_png(out / "figure.png", draw_budgets(cells, LIGHT))
    write_page(out / "report.html", transfer_page(inputs, records, examination, note))
    write_page(out / "report.md", transfer_markdown(inputs, records, examination, note, config.command))
    return Outcome(inputs, records, cells, reused, head, examination, note, out)


def cases(config: TransferConfig, count: int) -> Iterator[Case]:
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


def solve(case: Case, inputs: Inputs) -> tuple[Record, Fitted]:
    """Fit one readout and evaluate it on the test part: what is recorded, and the fitted readout."""
    readout, training = readout_named(case.readout).readout, _training(case, inputs)
    start = time.perf_counter()
    fitted = readout.fit(training)
    half = time.perf_counter()
    scores = fitted.scores(inputs.test.features)
    stop = time.perf_counter()
    accuracy, log_loss = quality(scores, inputs.test.labels, fitted.temperature)
    share = case.budget / len(inputs.train.labels)
    return {
        "key": case_key(case, inputs),
        "dataset": inputs.name,
        "backbone": inputs.backbone,
        "num_features": inputs.train.features.shape[1],
        "readout": case.readout,
        "title": readout_named(case.readout).title,
        "settings": _settings(case.readout),
        "budget": case.budget,
        "seed": case.seed,
        "num_test": len(inputs.test.labels),
        "chosen": fitted.chosen,
        "accuracy": accuracy,
        "log_loss": log_loss,
        "seconds": {
            "features": share * inputs.train.seconds + inputs.test.seconds,
            "fit": half - start,
            "predict": stop - half,
        },
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }, fitted


def head_case(config: TransferConfig, inputs: Inputs) -> Case:
    """The case whose fitted estimator is written as a head."""
    return Case(HEAD, config.budgets_of(len(inputs.train.labels))[-1], 0)


def _stored_head(config: TransferConfig, inputs: Inputs, out: pathlib.Path) -> Any:
    """The head of an earlier run if it is the same, else a new one."""
    from ..estimators import load  # which needs scikit-learn

    case = head_case(config, inputs)
    try:
        head = load(out / HEAD_FILE)
        if head.notes_.get("key") == case_key(case, inputs):
            return head
    except FileError:
        pass  # none yet, or none of ours
    return _new_head(readout_named(case.readout).readout.fit(_training(case, inputs)), case, inputs, out)


def _new_head(fitted: Fitted, case: Case, inputs: Inputs, out: pathlib.Path) -> Any:
    """The estimator of a fitted readout, which is written too."""
    head = fitted.estimator
    head.notes_ = {"input": inputs.kind, "key": case_key(case, inputs)}
    head.save(out / HEAD_FILE)
    return head


def _training(case: Case, inputs: Inputs) -> Training:
    """The training rows of a case."""
    features, labels = inputs.train.features, inputs.train.labels
    if case.budget < len(labels):  # all of them need no copy
        rows = budget_rows(labels, case.budget, case.seed)
        features, labels = features[rows], labels[rows]
    training = Training(features, labels, len(inputs.classes), case.seed)
    return training._replace(classes=inputs.classes, ids=_ids(case, inputs)) if case.readout == HEAD else training


def _ids(case: Case, inputs: Inputs) -> list[str]:
    """What each training row was made from; a file that a manifest names twice is told apart by a number."""
    seen = Counter[str]()
    ids = []
    for row in budget_rows(inputs.train.labels, case.budget, case.seed).tolist():
        item = inputs.train.source.describe(row)
        seen[item] += 1
        ids.append(item if seen[item] == 1 else f"{item} ({seen[item]})")
    return ids


def _settings(readout: str) -> dict[str, Any]:
    return asdict(readout_named(readout).readout)  # type: ignore[call-overload, no-any-return]
