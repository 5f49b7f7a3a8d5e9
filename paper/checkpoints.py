"""Runs that can be interrupted: files that are whole or not there, checkpoints, and records of what is finished."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from torchkrr.errors import FileError
from torchkrr.runs import Record, Records, Report, make_folder, run_jobs

VERSION = 2


class Job(NamedTuple):
    """One run, for a process of its own."""

    config: Any
    key: str  # of its record
    folder: pathlib.Path


def complete(
    work: Callable[[Job, Report], Record],
    runs: Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    steps: Callable[[Any], int],
    unit: str,
    processes: int = 1,
    seconds: float | None = None,
    progress: bool = False,
    finished: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """The records of these runs, in their order: read from `records.jsonl`, or made by `work` and appended to it.

    Args:
        work: a function of a module; it makes the record of a job.
        runs: the configuration of every run, by the key of its record.
        steps: how many a run has, of what the progress bar counts in `unit`.
        seconds: no run starts later than that; then only the records there are come back.
        finished: called after a new record is written.
    """
    folder = make_folder(out)
    records = Records(folder / "records.jsonl")
    jobs = [Job(config, key, folder) for key, config in runs.items() if records.get(key) is None]

    if len(jobs) < len(runs):
        print(f"{len(runs) - len(jobs)} of {len(runs)} runs were there already")

    def keep(record: Record) -> None:
        records.add(record)
        finished(record)

    if jobs:
        with tqdm(total=sum(steps(job.config) for job in jobs), desc=unit, disable=not progress) as bar:
            try:
                run_jobs(work, jobs, bar, processes=processes, seconds=seconds, finished=keep)
            except KeyboardInterrupt:
                kept = f"What is done is kept in {folder}; the same command goes on from there."
                raise KeyboardInterrupt(kept) from None
    return [record for key in runs if (record := records.get(key)) is not None]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary file to write into; it takes the place of `path` at the end, or is removed after an error."""
    target = pathlib.Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any], command: str) -> None:
    """Plain values and tensors, marked with the command that writes them and the version of the layout."""
    with replacing(path) as temporary:
        torch.save({"version": VERSION, "command": command, **state}, temporary)


def read_checkpoint(path: str | os.PathLike[str], command: str) -> dict[str, Any]:
    """What `write_checkpoint` was given, or an error that says what is wrong with the file."""
    try:
        state = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise FileError(f"There is no checkpoint at {path}. `{_module(command)}` writes them into its folder.") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from None
    except Exception:  # whatever the unpickler stumbles over; its own advice is to trust the file
        raise FileError(
            f"{path} is not a checkpoint of `{_module(command)}`, or is damaged. Expected a file ending in .pt, which the "
            "command wrote into its folder."
        ) from None
    if not isinstance(state, dict) or (state.get("version"), state.get("command")) != (VERSION, command):
        raise FileError(f"{path} is not a checkpoint of this version of `{_module(command)}`.")
    return state


def check_same_run(path: str | os.PathLike[str], found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Settings in a checkpoint must be those of the run that is to go on from it."""
    changed = [name for name in expected if found.get(name) != expected[name]]
    if changed:
        different = "; ".join(f"{name} was {found.get(name)!r} and is {expected[name]!r}" for name in changed)
        raise FileError(f"{path} is a checkpoint of another run: {different}. Choose another folder, or remove it.")


def spread(numbers: Sequence[float], form: str) -> str:
    """Their mean, and in brackets the least and the most, if there are several.

    Example:
        >>> spread([1.0, 2.0], ".1f"), spread([1.0], "+.1f")
        ('1.5 (1.0 to 2.0)', '+1.0')
    """
    mean = f"{sum(numbers) / len(numbers):{form}}"
    return mean if len(numbers) == 1 else f"{mean} ({min(numbers):{form}} to {max(numbers):{form}})"


def _module(command: str) -> str:
    return f"python -m paper.{'learning' if command == 'learn' else command}"
