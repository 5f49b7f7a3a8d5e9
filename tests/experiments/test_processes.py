"""Jobs in processes of their own."""

import time

import pytest

from torchkrr._progress import Progress
from torchkrr.errors import KernelRidgeError
from torchkrr.experiments import processes

LONGEST = 40.0  # seconds


def work(job, say):
    """Make a file; talk all the time until it is there; or wait until somebody talks, and end, well or not."""
    kind, folder = job
    until = time.monotonic() + LONGEST
    if kind == "talk":
        (folder / "talking").touch()
        while not (folder / "made").exists() and time.monotonic() < until:
            say(1, "still here")
            time.sleep(0.0005)
    elif kind == "make":
        (folder / "made").touch()
    else:
        while not (folder / "talking").exists() and time.monotonic() < until:
            time.sleep(0.01)
        if kind == "fail":
            raise KernelRidgeError("it failed")
    return kind, (folder / "made").exists()


def results(kinds, folder):
    found = []
    with Progress("jobs", len(kinds), shown=False) as bar:
        processes.run_jobs(work, [(kind, folder) for kind in kinds], bar, processes=2, finished=found.append)
    return found


def test_one_that_talks_all_the_time_does_not_keep_the_next_from_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "WAIT", 3.0)  # a silence that does not come by chance
    assert sorted(results(["talk", "wait", "make"], tmp_path)) == [("make", True), ("talk", True), ("wait", False)]


def test_the_error_of_one_is_told_while_another_talks(tmp_path):
    with pytest.raises(KernelRidgeError, match="it failed"):
        results(["talk", "fail"], tmp_path)
