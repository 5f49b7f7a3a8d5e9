"""What is kept of a finished run: how it is judged on the test part, in several readings, and what it cost."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import torch
from torch import Tensor

from ..vision.readouts import LocalReadout, Training, quality
from .checkpoints import check_same_run, read_checkpoint
from .learn_bank import features_of
from .learn_config import Config
from .learn_data import Collection
from .learn_heads import CentersHead, LinearHead
from .learn_training import Run, identity
from .records import Record, fingerprint, versions

# Readings of a trained network, by what predicts from its features. The first that a head has is its accuracy.
READINGS = {
    "linear": "linear head",
    "sk": "SK with the trained kernel, on the whole subsample",
    "sk-fit": "SK with the trained kernel, without the validation part",
    "centers": "learned centers",
    "sk-paper": "SK with the paper's kernel, on the whole subsample",
}


def run_key(config: Config, data_fingerprint: str) -> str:
    """Names a run by all that its numbers depend on."""
    return fingerprint(identity(config, data_fingerprint))


def checkpoint_path(folder: pathlib.Path, config: Config, key: str) -> pathlib.Path:
    return folder / "checkpoints" / f"{config.label}-{key[:8]}.pt"


def model_path(folder: pathlib.Path, config: Config, key: str) -> pathlib.Path:
    return folder / "models" / f"{config.label}-{key[:8]}.pt"


@torch.no_grad()
def readings(run: Run) -> dict[str, dict[str, float | None]]:
    """Accuracy and log-loss on the test part, for each reading of the network as it is."""
    train, test, rows = run.data.train, run.data.test, run.rows.all
    query = features_of(run.cut.backbone, test, torch.arange(len(test)), run.cut.prepare)
    support, labels = features_of(run.cut.backbone, train, rows, run.cut.prepare), train.labels[rows]
    scores: dict[str, tuple[Tensor, float | None]] = {}
    if isinstance(run.head, LinearHead):
        scores["linear"] = run.head(query), 1.0
    else:
        temperature, fit = float(run.head.temperature), len(run.rows.fit)
        scores["sk"] = run.head.readout(support, labels)(query), temperature
        scores["sk-fit"] = run.head.readout(support[:fit], labels[:fit])(query), temperature
        if isinstance(run.head, CentersHead):
            scores["centers"] = run.head(query), temperature
    paper = LocalReadout(run.config.num_neighbors).fit(Training(support, labels, len(run.data.classes), run.config.seed))
    scores["sk-paper"] = paper.scores(query), None
    return {name: quality(found, test.labels, t)._asdict() for name, (found, t) in scores.items()}


def make_record(run: Run, key: str) -> Record:
    start = time.perf_counter()
    found = readings(run)
    seconds = time.perf_counter() - start
    first = next(iter(found.values()))
    config = dataclasses.asdict(run.config)
    config["dataset"] = run.data.name
    config["weights"] = config["weights"] and pathlib.Path(config["weights"]).name
    steps = len(run.epochs) * run.steps_per_epoch
    head = run.head
    return {
        "key": key,
        "dataset": run.data.name,
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
            "head": sum(p.numel() for p in head.parameters() if p.requires_grad),
        },
        "config": config,
        "accuracy": first["accuracy"],
        "log_loss": first["log_loss"],
        "readings": found,
        "learned": {} if isinstance(head, LinearHead) else _learned(head),
        "steps": steps,
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


@torch.no_grad()
def _learned(head: Any) -> dict[str, float]:
    numbers = {"lengthscale": head.kernel.lengthscale, "ridge": head.ridge, "temperature": head.temperature}
    return {name: float(number) for name, number in numbers.items()}


def finish(run: Run, key: str, folder: pathlib.Path) -> Record:
    """Judge a run that is trained, keep its model if asked for, and say what it did."""
    record = make_record(run, key)
    if run.config.keep_model:
        run.save_model(model_path(folder, run.config, key))
    return record


def reopen(path: str | pathlib.Path, data: Collection) -> Run:
    """A trained network from its model file, with the data it was trained on: `readings(reopen(...))` judges it again."""
    state = read_checkpoint(path, "learn")
    config = Config(**state["config"])
    check_same_run(path, state["identity"], identity(config, data.fingerprint))
    run = Run(config, data, None)
    run.load_weights(state["weights"])
    return run
