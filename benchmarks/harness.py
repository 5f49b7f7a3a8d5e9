"""Measuring and recording: best of several runs, error beside time, one JSON line per case."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy
import torch

import torchkrr

T = TypeVar("T")
Record = dict[str, Any]


def timed(function: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def interleaved(functions: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Best seconds of each function, taken in turns so that a slow moment of the machine hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if repeat:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def instructions_per_cycle(function: Callable[[], object], seconds: float = 1.0) -> float | None:
    """Of this process while it calls the function, by `perf`; `None` where that is missing or the machine does not count."""
    command = ["perf", "stat", "-x", ",", "-e", "instructions:u,cycles:u", "-p", str(os.getpid())]
    try:
        counter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        return None
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        function()
    counter.send_signal(signal.SIGINT)
    _, written = counter.communicate()
    counts = [line.split(",")[0] for line in written.splitlines() if ":u" in line]
    if len(counts) != 2 or not all(count.isdigit() for count in counts) or int(counts[1]) == 0:
        return None
    return int(counts[0]) / int(counts[1])


def peak_megabytes() -> float:
    """Peak resident memory of this process."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # ru_maxrss of a new process starts at that of its parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def environment() -> Record:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "case": "environment",
        "torchkrr": torchkrr.__version__,
        "commit": commit.stdout.strip() + ("" if _clean() else ", changed"),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def record(path: pathlib.Path, cases: Iterable[tuple[str, Callable[[], Record]]]) -> list[Record]:
    """Run the cases and write their records to `path`, whole or not at all; an interrupted run goes on where it was."""
    partial = path.with_suffix(".partial.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    header = environment()
    text = partial.read_text() if partial.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a line that was cut off by a kill does not count
    if whole != text:
        partial.write_text(whole)
    done = [json.loads(line) for line in whole.splitlines()]
    if not done or done[0] != header:  # another commit or machine: ratios need one run
        done = [header]
        partial.write_text(json.dumps(header) + "\n")
    names = {found["case"] for found in done}
    for name, run in cases:
        if name in names:
            continue
        found = {"case": name, **run()}
        done.append(found)
        with partial.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)
    partial.replace(path)
    return done


def _clean() -> bool:
    """Whether the code is that of the commit."""
    command = ["git", "status", "--porcelain", "--", "src", "benchmarks/*.py"]
    return not subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _processor() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
