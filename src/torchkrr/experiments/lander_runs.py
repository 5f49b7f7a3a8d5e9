"""Many runs of the reinforcement learning experiment, several at a time."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from .._progress import Progress
from .folders import made_folder
from .lander_config import Config
from .lander_records import Record, checkpoint_path, finished, make_record, record_path, running_mean, write_record
from .lander_training import Episode, Report, Run
from .processes import Say, run_jobs


def run_all(
    configs: Sequence[Config],
    folder: pathlib.Path,
    *,
    processes: int = 1,
    seconds: float | None = None,
    progress: bool = False,
) -> list[Record]:
    """The records of these runs, in order; what is finished is read, what was begun goes on.

    With `seconds` no run is begun later than that, and only the records there are come back.
    """
    made_folder(folder)
    missing = [config for config in configs if finished(folder, config) is None]
    if missing:
        jobs = [(config, folder) for config in missing]
        with Progress("games", sum(config.episodes for config in missing), shown=progress) as bar:
            run_jobs(_work, jobs, bar, processes=processes, seconds=seconds)
    found = [finished(folder, config) for config in configs]
    return [record for record in found if record is not None]


def run_one(config: Config, folder: pathlib.Path, report: Report | None = None) -> Record:
    """Train, evaluate and record one run, from its checkpoint if there is one."""
    run = Run(config, checkpoint_path(folder, config))
    run.train(report)
    record = make_record(run, run.evaluate())
    write_record(record_path(folder, config), record)
    return record


def _work(job: tuple[Config, pathlib.Path], say: Say) -> None:
    config, folder = job
    rewards: list[float] = []
    shown = 0

    def report(number: int, episode: Episode) -> None:
        nonlocal shown
        rewards.append(episode.reward)
        mean, rate = running_mean(rewards)[-1], episode.moves / episode.seconds
        of_game = f"game {number}, reward {episode.reward:.0f}, mean {mean:.0f}, {rate:.0f} steps/s"
        say(number - shown, f"{config.label} seed {config.seed}: {of_game}")
        shown = number

    run_one(config, folder, report)
