"""What is kept of a finished run, and of several: one JSON file each, then one line each."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from .. import __version__
from .._files import replacing
from ..errors import FileError
from .lander_config import Config
from .lander_training import Run
from .records import versions

WINDOW = 50  # games of a running mean, the paper's
Record = dict[str, Any]


def checkpoint_path(folder: pathlib.Path, config: Config) -> pathlib.Path:
    return folder / f"{config.label}-seed{config.seed}.pt"


def record_path(folder: pathlib.Path, config: Config) -> pathlib.Path:
    return checkpoint_path(folder, config).with_suffix(".json")


def finished(folder: pathlib.Path, config: Config) -> Record | None:
    """The record of this run, if this version of the library has finished it with as many episodes."""
    path = record_path(folder, config)
    if not path.exists():
        return None
    try:
        record: Record = json.loads(path.read_text())
        found = Config(**record["config"])
    except (ValueError, TypeError, KeyError):
        raise FileError(f"{path} is not the record of a run. Remove it, or choose another folder.") from None
    # Of what may change, only how often checkpoints were written leaves a finished run as it is.
    lengths = [(made.episodes, made.stop_when_solved, made.evaluation_episodes) for made in (found, config)]
    same = found.settings() == config.settings() and lengths[0] == lengths[1]
    return record if same and record["versions"]["torchkrr"] == __version__ else None


def make_record(run: Run, evaluation: list[float]) -> Record:
    episodes = run.episodes
    steps, moves = sum(e.steps for e in episodes), sum(e.moves for e in episodes)
    seconds = sum(e.seconds for e in episodes)
    learned = [p for p in run.agent.online.parameters() if p.requires_grad]
    return {
        "label": run.config.label,
        "config": dataclasses.asdict(run.config),
        "solved_at": run.threshold,
        "parameters": sum(p.numel() for p in learned),
        "moves": moves,
        "seconds": seconds,
        "seconds_per_step": sum(e.seconds_learning for e in episodes) / steps if steps else None,
        "seconds_per_move": seconds / moves,
        "rewards": [e.reward for e in episodes],
        "losses": [e.loss for e in episodes],
        "lengths": [e.moves for e in episodes],
        "evaluation": evaluation,
        "versions": versions(("torch", "gymnasium", "Box2D", "numpy")),
    }


def write_record(path: pathlib.Path, record: Record) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, allow_nan=False) + "\n")


def running_mean(numbers: list[float], window: int = WINDOW) -> np.ndarray:
    """The mean of the last `window` numbers, or of all so far.

    Example:
        >>> running_mean([2.0, 4.0, 6.0], 2)
        array([2., 3., 5.])
    """
    sums = np.concatenate(([0.0], np.cumsum(numbers)))
    ends = np.arange(1, len(numbers) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def first_above(numbers: list[float], level: float | None, window: int = WINDOW) -> int | None:
    """The first game, counted from 1, after which the mean of `window` games is above the level.

    Example:
        >>> first_above([0.0, 3.0, 4.0, 0.0], 3.0, window=2)
        3
    """
    if level is None:
        return None
    above = np.flatnonzero(running_mean(numbers, window)[window - 1 :] > level)
    return int(above[0]) + window if len(above) else None
