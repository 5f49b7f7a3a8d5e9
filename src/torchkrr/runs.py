"""Resumable experiments: records, tables, reports, and parallel jobs.

A result is one JSON line, found again by a fingerprint of what it was computed from. A line is written at once and synced,
so an interrupt or a crash costs at most the line being written, which the next reader drops.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import html
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeAlias

from tqdm import tqdm

from . import __version__
from ._files import replacing
from ._threads import set_threads
from .errors import FileError, KernelRidgeError

__all__ = [
    "Record",
    "Records",
    "Report",
    "Table",
    "fingerprint",
    "make_folder",
    "markdown_report",
    "read_records",
    "run_jobs",
    "set_threads",
    "versions",
]

Record: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[int, str], None]  # steps done since the last call, and a note for the progress bar
KEY = "key"
POLL_SECONDS = 0.2
_worker: dict[str, Any] = {}  # in a worker process: its queue of messages and the event that stops it


@dataclass(frozen=True)
class Table:
    """Rows of text, the first of which is the head; prints as text, Markdown or HTML.

    Args:
        rows: of equal length.
        best: places `(row, column)` that HTML marks, counted from the corner of the head.

    Example:
        >>> table = Table([["readout", "accuracy"], ["SK", "99.5"]])
        >>> print(table.text())
        readout  accuracy
        SK           99.5
        >>> print(table.markdown())
        | readout | accuracy |
        |---|---|
        | SK | 99.5 |
    """

    rows: Sequence[Sequence[str]]
    best: AbstractSet[tuple[int, int]] = frozenset()

    def text(self) -> str:
        """The first column flush left, the others flush right."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        return "\n".join(
            "  ".join([first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))])
            for first, *others in self.rows
        )

    def markdown(self) -> str:
        first, *others = (f"| {' | '.join(row)} |" for row in self.rows)
        return "\n".join([first, "|---" * len(self.rows[0]) + "|", *others])

    def html(self) -> str:
        def line(number: int, tag: str) -> str:
            cells = [
                f"<{tag}{' class=best' if (number, column) in self.best else ''}>{html.escape(text)}</{tag}>"
                for column, text in enumerate(self.rows[number])
            ]
            return f"<tr>{''.join(cells)}</tr>"

        body = "\n".join(line(number, "td") for number in range(1, len(self.rows)))
        return f"<table>\n<thead>{line(0, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


class Records:
    """The records of a JSON lines file, by their key; new ones are appended to the file.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "records.jsonl"
        >>> Records(path).add({"key": "a", "accuracy": 0.9})
        >>> Records(path).get("a")["accuracy"]
        0.9
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._by_key = {record[KEY]: record for record in read_records(self.path)}

    def get(self, key: str) -> Record | None:
        return self._by_key.get(key)

    def add(self, record: Record) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        _drop_torn_line(self.path)
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write to {self.path}: {error.strerror or error}.") from error
        self._by_key[record[KEY]] = record


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a file, in order, without a torn last line; an empty list if there is no file."""
    path = pathlib.Path(path)
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(_split_torn_line(path)[0].splitlines(), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record[KEY], str):
                raise ValueError(KEY)
        except (ValueError, TypeError, KeyError):
            raise FileError(
                f"Line {number} of {path} is not a record. Remove that line, or the file to start anew, and run again."
            ) from None
        records.append(record)
    return records


def make_folder(path: str | os.PathLike[str]) -> pathlib.Path:
    """The folder for the results of a run, created if there is none."""
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}. Name another with --out.") from error
    return folder


def fingerprint(parts: Mapping[str, Any]) -> str:
    """A short hash of plain values, whatever the order of their names.

    Example:
        >>> fingerprint({"a": 1, "b": [2, None]}) == fingerprint({"b": [2, None], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def versions(packages: Sequence[str] = ("torch", "numpy", "scikit-learn", "torchvision", "timm")) -> dict[str, str]:
    """Versions of this library, of Python, and of those packages that are installed."""
    installed = {"torchkrr": __version__, "python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def markdown_report(title: str, command: str, versions: Mapping[str, str], parts: Sequence[str]) -> str:
    """A page of paragraphs and tables, with the command that made it and the versions it was made with."""
    source = f"Made by `{command}`, where files stand without their folders; records in `records.jsonl`."
    named = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    return "\n\n".join([f"# {title}", source, *parts, named]) + "\n"


def run_jobs(
    work: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    bar: tqdm[Any],
    *,
    processes: int = 1,
    seconds: float | None = None,
    finished: Callable[[Any], None] | None = None,
) -> None:
    """Call `work(job, report)` for every job, several at a time, each in a process with one thread.

    `work` is a module-level function, so that other processes can import it. Its `report(steps, note)` moves the bar here.
    An error in one job ends all.

    Args:
        processes: 0 runs the jobs one after the other in this process.
        seconds: no job starts later than that.
        finished: called here with what `work` returns, as soon as it does.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    waiting = deque(jobs)

    def may_start() -> bool:
        return bool(waiting) and (deadline is None or time.monotonic() <= deadline)

    def show(steps: int, note: str) -> None:
        bar.set_postfix_str(note, refresh=False)
        bar.update(steps)

    def finish(result: Any) -> None:
        if finished is not None:
            finished(result)

    if not processes:
        while may_start():
            finish(work(waiting.popleft(), show))
        return
    # Not forked: torch's threads and locks do not survive that.
    context = multiprocessing.get_context("spawn")
    messages, stop = context.Queue(), context.Event()
    with concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start_worker, initargs=(messages, stop)
    ) as pool:
        try:
            running: set[concurrent.futures.Future[Any]] = set()
            while running or may_start():
                while len(running) < processes and may_start():
                    running.add(pool.submit(_work, work, waiting.popleft()))
                done, running = concurrent.futures.wait(
                    running, timeout=POLL_SECONDS, return_when=concurrent.futures.FIRST_COMPLETED
                )
                while not messages.empty():
                    show(*messages.get())
                for future in done:
                    finish(future.result())
        except concurrent.futures.process.BrokenProcessPool:
            raise KernelRidgeError("A process ended before its job did. Run the same command again to go on.") from None
        finally:
            stop.set()


def _start_worker(messages: Any, stop: Any) -> None:
    _worker.update(messages=messages, stop=stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    set_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _work(work: Callable[[Any, Report], Any], job: Any) -> Any:
    def report(steps: int, note: str) -> None:
        if _worker["stop"].is_set():
            raise KernelRidgeError("The run was stopped.")
        _worker["messages"].put((steps, note))

    return work(job, report)


def _drop_torn_line(path: pathlib.Path) -> None:
    """Cut off a last line without its end, left by a process that was killed while it wrote."""
    if path.exists():
        whole, torn = _split_torn_line(path)
        if torn:
            with replacing(path) as temporary:
                temporary.write_bytes(whole)


def _split_torn_line(path: pathlib.Path) -> tuple[bytes, bytes]:
    contents = path.read_bytes()
    end = contents.rfind(b"\n") + 1
    return contents[:end], contents[end:]
