"""Many runs, several at a time: each in a process of its own with one thread."""

from __future__ import annotations

import multiprocessing
import pathlib
import queue
import signal
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from .._progress import Progress
from ..errors import KernelRidgeError
from .lander_config import Config
from .lander_records import Record, checkpoint_path, finished, make_record, record_path, running_mean, write_record
from .lander_training import Episode, Report, Run

WAIT = 0.2  # seconds between looks at the processes


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
    folder.mkdir(parents=True, exist_ok=True)
    missing = [config for config in configs if finished(folder, config) is None]
    if missing:
        _run_processes(missing, folder, processes, seconds, progress)
    found = [finished(folder, config) for config in configs]
    return [record for record in found if record is not None]


def run_one(config: Config, folder: pathlib.Path, report: Report | None = None) -> Record:
    """Train, evaluate and record one run, from its checkpoint if there is one."""
    run = Run(config, checkpoint_path(folder, config))
    run.train(report)
    record = make_record(run, run.evaluate())
    write_record(record_path(folder, config), record)
    return record


def _run_processes(
    configs: Sequence[Config], folder: pathlib.Path, processes: int, seconds: float | None, progress: bool
) -> None:
    # Not forked: torch's threads and locks do not survive that.
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    waiting, running = deque(configs), set[Any]()
    began = time.monotonic()
    try:
        with Progress("games", sum(config.episodes for config in configs), shown=progress) as bar:
            while waiting or running:
                late = seconds is not None and time.monotonic() - began > seconds
                while waiting and len(running) < processes and not late:
                    process = context.Process(target=_work, args=(waiting.popleft(), folder, messages), daemon=True)
                    process.start()
                    running.add(process)
                _show(messages, bar)
                running = {process for process in running if _going_on(process, messages)}
                if late and not running:
                    return
    finally:
        for process in running:
            process.terminate()


def _going_on(process: Any, messages: Any) -> bool:
    if process.is_alive():
        return True
    process.join()
    if process.exitcode:
        failure = _failure(messages)
        raise KernelRidgeError(failure or f"A run ended with exit code {process.exitcode}. Run the same command again.")
    return False


def _show(messages: Any, bar: Progress) -> None:
    try:
        message = messages.get(timeout=WAIT)
    except queue.Empty:
        return
    if isinstance(message, str):
        raise KernelRidgeError(message)
    games, note = message
    bar.advance(games, note=note)


def _failure(messages: Any) -> str | None:
    """What a process said before it ended, if anything."""
    while True:
        try:
            message = messages.get(timeout=WAIT)
        except queue.Empty:
            return None
        if isinstance(message, str):
            return message


def _work(config: Config, folder: pathlib.Path, messages: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    torch.set_num_threads(1)
    rewards: list[float] = []
    parent = multiprocessing.parent_process()
    shown = 0

    def report(number: int, episode: Episode) -> None:
        nonlocal shown
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)  # nobody is waiting; the last checkpoint stands
        rewards.append(episode.reward)
        mean, rate = running_mean(rewards)[-1], episode.moves / episode.seconds
        of_game = f"game {number}, reward {episode.reward:.0f}, mean {mean:.0f}, {rate:.0f} steps/s"
        messages.put((number - shown, f"{config.label} seed {config.seed}: {of_game}"))
        shown = number

    try:
        run_one(config, folder, report)
    except KernelRidgeError as error:
        messages.put(str(error))
        raise SystemExit(1) from None
    except Exception:
        messages.put(f"The run {config.label} with seed {config.seed} failed: {traceback.format_exc()}")
        raise SystemExit(1) from None
