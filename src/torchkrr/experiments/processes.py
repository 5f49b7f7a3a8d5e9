"""Many jobs, several at a time: each in a process of its own with one thread."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .._progress import Progress
from .._threads import set_threads
from ..errors import KernelRidgeError

WAIT = 0.2  # seconds between looks at the processes
PATIENCE = 5.0  # seconds to look for the error of one that failed
Say = Callable[[int, str], None]  # steps done since the last call, and a note for the progress line


def run_jobs(
    work: Callable[[Any, Say], Any],
    jobs: Sequence[Any],
    bar: Progress,
    *,
    processes: int = 1,
    seconds: float | None = None,
    finished: Callable[[Any], None] | None = None,
) -> None:
    """Call `work(job, say)` for each job, a function of a module so that other processes find it.

    What `say` is told moves the bar here; what `work` returns is handed to `finished` here, in the order it comes. An error
    in a job ends all. With `seconds` no job is begun later than that. With no processes all is done in this one, with its
    threads.
    """
    began = time.monotonic()

    def late() -> bool:
        return seconds is not None and time.monotonic() - began > seconds

    if not processes:
        for job in jobs:
            if late():
                return
            result = work(job, lambda steps, note: bar.advance(steps, note=note))
            if finished is not None:
                finished(result)
        return
    # Not forked: torch's threads and locks do not survive that.
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    waiting, running = deque(jobs), set[Any]()
    unheard = 0  # processes that ended well, less the results that came
    try:
        while running or unheard > 0 or (waiting and not late()):
            while waiting and len(running) < processes and not late():
                process = context.Process(target=_work, args=(work, waiting.popleft(), messages), daemon=True)
                process.start()
                running.add(process)
            unheard -= _receive(messages, bar, finished) == "done"
            ended = {process for process in running if not process.is_alive()}
            running -= ended
            for process in ended:
                process.join()
                if process.exitcode:
                    _last_words(messages, bar, finished)
                    raise KernelRidgeError(f"A run ended with exit code {process.exitcode}. Run the same command again.")
                unheard += 1
    finally:
        for process in running:
            process.terminate()


def _receive(messages: Any, bar: Progress, finished: Callable[[Any], None] | None) -> str | None:
    """What kind of message came, if any."""
    try:
        kind, contents = messages.get(timeout=WAIT)
    except queue.Empty:
        return None
    if kind == "failed":
        raise KernelRidgeError(contents)
    if kind == "done":
        if finished is not None:
            finished(contents)
    else:
        steps, note = contents
        bar.advance(steps, note=note)
    return str(kind)


def _last_words(messages: Any, bar: Progress, finished: Callable[[Any], None] | None) -> None:
    """Raise what a failed process said before it ended, if it did; others may go on talking meanwhile."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and _receive(messages, bar, finished):
        pass


def _work(work: Callable[[Any, Say], Any], job: Any, messages: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    set_threads(1)
    parent = multiprocessing.parent_process()

    def say(steps: int, note: str) -> None:
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)  # nobody is waiting; the last checkpoint stands
        messages.put(("step", (steps, note)))

    try:
        messages.put(("done", work(job, say)))
    except KernelRidgeError as error:
        messages.put(("failed", str(error)))
        raise SystemExit(1) from None
    except Exception:
        messages.put(("failed", f"A run failed: {traceback.format_exc()}"))
        raise SystemExit(1) from None
