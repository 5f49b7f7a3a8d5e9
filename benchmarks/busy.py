"""How much slower is everything beside other busy processes?

    python -m benchmarks.busy [--demo]

One busy process for each core is started here, and ended. With them a program has half of the machine, so twice the time is
what is to be expected; threads that wait for each other by spinning take many times as long. `--demo` times `make demo` too.
Medians of several runs, alone and beside the others in one run. Writes `busy.jsonl` and `busy.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from benchmarks import harness
from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor

MOST = 2.5  # times as long as alone
DEMO = "transfer digits --backbone digits --layer middle.0 --budgets 30,100,300,all --seeds 3 --quiet --out"


def spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    others = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in others:
        process.start()
    time.sleep(2)
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.join()


def solve() -> Callable[[], object]:
    torch.manual_seed(0)
    query, centers, values = torch.randn(512, 32), torch.randn(20_000, 32), torch.randn(20_000, 10)
    kernel = kernels.Exponential(8.0)
    indices = neighbors.nearest(query, centers, 100, kernel=kernel)
    product = partial(torch.mm, query, centers.T)

    def run() -> None:
        product()  # as in a network: torch's own threads are awake
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-6)

    return run


def product() -> Callable[[], object]:
    return partial(torch.mm, torch.randn(512, 512), torch.randn(512, 20_000))


def fit_classes() -> Callable[[], object]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 8))
    return partial(LocalKernelRidgeClassifier().fit, x, x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=1000) > 0)


def fit_numbers() -> Callable[[], object]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 8))
    return partial(LocalKernelRidgeRegressor().fit, x, np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=1000))


def demo() -> Callable[[], object]:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "torchkrr", *DEMO.split(), folder], check=True)

    return run


CASES: dict[str, tuple[Callable[[], Callable[[], object]], int]] = {
    "local solve, 512 queries, M = 100, D = 32": (solve, 21),
    "one product of torch, 512 x 512 x 20,000": (product, 21),
    "classifier, fit on 1,000 rows": (fit_classes, 5),
    "regressor, fit on 1,000 rows": (fit_numbers, 3),
    "make demo": (demo, 1),
}


def measure(prepare: Callable[[], Callable[[], object]], repeats: int) -> harness.Record:
    function = prepare()
    function()
    alone = _median(function, repeats)
    with busy_cores():
        beside = _median(function, repeats)
    return {"alone": alone, "beside": beside, "ratio": beside / alone}


def _median(function: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def report(records: list[harness.Record]) -> str:
    machine = records[0]
    lines = [
        "# Beside other busy processes",
        "",
        f"Made by `python -m benchmarks.busy --demo`; records in `busy.jsonl`. torchkrr {machine['torchkrr']} "
        f"({machine['commit']}), {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}.",
        f"Seconds alone, and with one busy process on each core; at most {MOST} times as long is the target.",
        "",
        "| task | alone | beside | ratio |",
        "|---|---|---|---|",
    ]
    lines += [f"| {one['case']} | {one['alone']:.3g} | {one['beside']:.3g} | {one['ratio']:.1f} |" for one in records[1:]]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="time `make demo` too")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    chosen = parser.parse_args()
    names = [name for name in CASES if chosen.demo or name != "make demo"]
    records = harness.record(chosen.out / "busy.jsonl", ((name, partial(measure, *CASES[name])) for name in names))
    text = report(records)
    (chosen.out / "busy.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
