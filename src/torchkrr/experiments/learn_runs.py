"""All runs of an experiment: depths, seeds and heads, several at a time; then table, figure and report."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from .._progress import Progress
from ..errors import InputError
from .folders import made_folder
from .learn_board import Board
from .learn_config import HEADS, Config, Head
from .learn_data import open_collection
from .learn_figure import write_figure
from .learn_records import checkpoint_path, finish, run_key
from .learn_report import write_report
from .learn_summary import Cell, summarize
from .learn_training import Epoch, Run
from .processes import Say, run_jobs
from .records import Record, Records

WRITTEN = ("records.jsonl", "figure.png", "report.md", "report.html")


class Outcome(NamedTuple):
    """What an experiment leaves behind."""

    records: list[Record]  # of this experiment, new and found
    cells: list[Cell]
    reused: int  # records that were there already
    missing: int  # runs that a time limit left out
    out: pathlib.Path


class Job(NamedTuple):
    """One run, for a process of its own."""

    config: Config
    key: str
    folder: pathlib.Path


def plan(config: Config, *, depths: Sequence[int], seeds: int, heads: Sequence[Head] = HEADS) -> list[Config]:
    """Every run, seed by seed: an experiment that was interrupted has whole comparisons.

    Example:
        >>> [run.label for run in plan(Config(), depths=[1], seeds=1)]
        ['vgg-small-discard1-kernel-seed0', 'vgg-small-discard1-linear-seed0']
    """
    if not depths or not heads or seeds < 1:
        raise InputError("An experiment needs at least one depth, one seed and one head.")
    return [
        dataclasses.replace(config, seed=seed, discard=depth, head=head)
        for seed in range(seeds)
        for depth in depths
        for head in heads
    ]


def run_all(
    configs: Sequence[Config],
    out: str | pathlib.Path,
    *,
    command: str,
    processes: int = 1,
    seconds: float | None = None,
    progress: bool = False,
) -> Outcome:
    """Runs that are recorded are not repeated, those that were begun go on; then everything is summed up."""
    folder = made_folder(out)
    data = open_collection(configs[0].dataset)
    records = Records(folder / "records.jsonl")
    keys = [run_key(config, data.fingerprint) for config in configs]
    del data  # each process opens its own
    jobs = [Job(config, key, folder) for config, key in zip(configs, keys, strict=True) if records.get(key) is None]

    def finished(record: Record) -> None:
        records.add(record)
        # Not before: until it is recorded, the checkpoint is all there is.
        job = next(job for job in jobs if job.key == record["key"])
        checkpoint_path(folder, job.config, job.key).unlink(missing_ok=True)

    if jobs:
        with Progress("epochs", sum(job.config.epochs for job in jobs), shown=progress) as bar:
            run_jobs(run_one, jobs, bar, processes=processes, seconds=seconds, finished=finished)
    found = [record for key in keys if (record := records.get(key)) is not None]
    cells = summarize(found)
    if found:
        write_figure(folder / "figure.png", cells)
        write_report(folder, found, command)
    return Outcome(found, cells, len(configs) - len(jobs), len(configs) - len(found), folder)


def run_one(job: Job, say: Say | None = None) -> Record:
    """Train, judge and describe one run, from its checkpoint if there is one."""
    config = job.config
    for name in ("checkpoints", "models"):
        (job.folder / name).mkdir(exist_ok=True)
    run = Run(config, open_collection(config.dataset), checkpoint_path(job.folder, config, job.key))
    with Board(
        job.folder / "tensorboard" / f"{config.label}-{job.key[:8]}", shown=config.tensorboard, begun=len(run.epochs)
    ) as board:
        shown = 0

        def report(number: int, epoch: Epoch) -> None:
            nonlocal shown
            board.add(number, epoch)
            if say is not None:
                numbers = f"loss {epoch.loss:.3f}, validation accuracy {100 * epoch.accuracy:.1f} %"
                say(number - shown, f"{config.label}: epoch {number}, {numbers}")
            shown = number

        run.train(report)
        if say is not None:
            say(config.epochs - shown, f"{config.label}: evaluating")
    return finish(run, job.key, job.folder)
