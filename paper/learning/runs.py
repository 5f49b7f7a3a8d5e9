"""All runs of an experiment: trained, judged on the test part in several readings, recorded, and opened again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchkrr.runs import Record, Report, fingerprint, versions
from torchkrr.vision import Split
from torchkrr.vision.readouts import LocalReadout, Training, quality

from ..checkpoints import Job, check_same_run, complete, read_checkpoint
from ..options import require
from .config import Config
from .data import data_fingerprint, open_images
from .heads import CentersHead, LinearHead
from .training import Epoch, Run, Watch, features_of, identity


def run_key(config: Config, data: str) -> str:
    """Names a run by all that its numbers depend on; `data` is the fingerprint of the data set."""
    return fingerprint(identity(config, data))


def run_all(
    configs: Sequence[Config],
    folder: pathlib.Path,
    *,
    processes: int = 1,
    seconds: float | None = None,
    progress: bool = False,
) -> list[Record]:
    """The records of these runs, in order; what is recorded is read, what was begun goes on."""
    data = data_fingerprint(open_images(configs[0].dataset))  # each process opens its own
    runs = {run_key(config, data): config for config in configs}

    def finished(record: Record) -> None:
        # Not before: until it is recorded, the checkpoint is all there is.
        _path(Job(runs[record["key"]], record["key"], folder), "checkpoints").unlink(missing_ok=True)

    return complete(
        run_one,
        runs,
        folder,
        steps=lambda config: config.epochs,
        unit="epochs",
        processes=processes,
        seconds=seconds,
        progress=progress,
        finished=finished,
    )


def run_one(job: Job, report: Report | None = None) -> Record:
    """Train, judge and describe one run, from its checkpoint if there is one; keep its model if asked for."""
    config, shown = job.config, 0
    for name in ("checkpoints", "models"):
        (job.folder / name).mkdir(exist_ok=True)
    run = Run(config, open_images(config.dataset), _path(job, "checkpoints"))

    def tell(steps: int, note: str) -> None:
        if report is not None:
            report(steps, f"{config.label}: {note}")

    with tensorboard(_path(job, "tensorboard").with_suffix(""), len(run.epochs), shown=config.tensorboard) as add:

        def watch(number: int, epoch: Epoch) -> None:
            nonlocal shown
            add(number, epoch)
            numbers = f"loss {epoch.loss:.3f}, validation accuracy {100 * epoch.accuracy:.1f} %"
            tell(number - shown, f"epoch {number}, {numbers}")
            shown = number

        run.train(watch)
        tell(config.epochs - shown, "evaluating")
    record = make_record(run, job.key)
    if config.keep_model:
        run.save_model(_path(job, "models"))
    return record


def reopen(path: str | pathlib.Path, data: Split) -> Run:
    """A trained network from its model file, with the data it was trained on: `readings(reopen(...))` judges it again."""
    state = read_checkpoint(path, "learn")
    config = Config(**state["config"])
    check_same_run(path, state["identity"], identity(config, data_fingerprint(data)))
    run = Run(config, data, None)
    run.load_weights(state["weights"])
    return run


@torch.no_grad()
def readings(run: Run) -> dict[str, dict[str, float | None]]:
    """Accuracy and log-loss on the test part, by what predicts from the features of the network as it is.

    The first reading is the accuracy of the run.
    """
    train, test, rows = run.data.train, run.data.test, run.rows.all
    query = features_of(run.cut.backbone, test, torch.arange(len(test)), run.cut.prepare)
    support, labels = run.features(rows), train.labels[rows]
    scores: dict[str, tuple[Tensor, float | None]] = {}
    if isinstance(run.head, LinearHead):
        scores["linear"] = run.head(query), 1.0
    else:
        temperature, fit = float(run.head.temperature), len(run.rows.fit)
        scores["sk"] = run.head.readout(support, labels)(query), temperature
        scores["sk-fit"] = run.head.readout(support[:fit], labels[:fit])(query), temperature
        if isinstance(run.head, CentersHead):
            scores["centers"] = run.head(query), temperature
    paper = LocalReadout(run.config.num_neighbors).fit(Training(support, labels, len(train.classes), run.config.seed))
    scores["sk-paper"] = paper.scores(query), None
    return {name: quality(values, test.labels, t)._asdict() for name, (values, t) in scores.items()}


def make_record(run: Run, key: str) -> Record:
    """What is kept of a run that is trained: settings, how it is judged, its curves, what it cost."""
    start = time.perf_counter()
    judged = readings(run)
    seconds = time.perf_counter() - start
    first = next(iter(judged.values()))
    name, config = run.data.train.name, dataclasses.asdict(run.config)
    config["dataset"] = name
    config["weights"] = config["weights"] and pathlib.Path(config["weights"]).name
    return {
        "key": key,
        "dataset": name,
        "network": run.config.network,
        "discard": run.config.discard,
        "head": run.config.head,
        "seed": run.config.seed,
        "samples": len(run.rows.all),
        "num_fit": len(run.rows.fit),
        "num_test": len(run.data.test),
        "size": run.cut.prepare.size,
        "num_features": run.cut.num_features,
        "parameters": {
            "backbone": run.cut.parameters,
            "head": sum(p.numel() for p in run.head.parameters() if p.requires_grad),
        },
        "config": config,
        "accuracy": first["accuracy"],
        "log_loss": first["log_loss"],
        "readings": judged,
        "learned": {} if isinstance(run.head, LinearHead) else run.head.numbers(),
        "steps": len(run.epochs) * run.steps_per_epoch,
        "best_epoch": run.best,
        "epochs": {
            name: [round(getattr(epoch, name), 5) for epoch in run.epochs] for name in ("loss", "accuracy", "log_loss")
        },
        "seconds": {
            "train": sum(epoch.seconds for epoch in run.epochs),
            "step": min(epoch.seconds for epoch in run.epochs) / run.steps_per_epoch,
            "validation": sum(epoch.seconds_validation for epoch in run.epochs),
            "evaluation": seconds,
        },
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


@contextlib.contextmanager
def tensorboard(folder: pathlib.Path, begun: int, *, shown: bool) -> Iterator[Watch]:
    """What adds an epoch to the curves of TensorBoard; it does nothing if they are not to be shown.

    A run that goes on after `begun` epochs takes back what was drawn of later ones.
    """
    if not shown:
        yield lambda number, epoch: None
        return
    require(["tensorboard"], "A curve for TensorBoard", extra="tensorboard")
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder), purge_step=begun + 1)

    def add(number: int, epoch: Epoch) -> None:
        writer.add_scalar("loss/training", epoch.loss, number)
        writer.add_scalar("loss/validation", epoch.log_loss, number)
        writer.add_scalar("accuracy/validation", epoch.accuracy, number)

    try:
        yield add
    finally:
        writer.close()


def _path(job: Job, kind: str) -> pathlib.Path:
    return job.folder / kind / f"{job.config.label}-{job.key[:8]}.pt"
