"""How fast is `torchkrr.interpolate.RBFInterpolator` beside scipy's, at equal error, and in how much memory?

    python -m benchmarks.interpolate
    python -m benchmarks.interpolate --quick --out runs/bench    # seconds: does it all run? The numbers mean nothing

Thin-plate splines with a linear tail, scipy's default, on a smooth function of scattered places: 100,000 places in 2, 3 and
8 dimensions, 30 and 100 neighbors, 100,000 queries; a million places for ours alone; and 4,000 places without `neighbors`.
Each measurement is a process of its own, that builds once and then predicts; its time is the sum. The error is the root mean
square against the function; beside it is the largest difference from scipy. Writes `interpolate.jsonl` and `interpolate.md`.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.interpolate
import torch

from benchmarks import harness
from torchkrr.interpolate import RBFInterpolator

Array = np.ndarray[Any, Any]
METHODS = ("scipy", "torchkrr, float64", "torchkrr, float32")


class Case(NamedTuple):
    places: int
    dimensions: int
    neighbors: int | None
    queries: int

    @property
    def name(self) -> str:
        near = "all" if self.neighbors is None else str(self.neighbors)
        return f"N={self.places:,}, D={self.dimensions}, neighbors={near}"


FULL = (
    *(Case(100_000, dimensions, neighbors, 100_000) for dimensions in (2, 3, 8) for neighbors in (30, 100)),
    *(Case(1_000_000, dimensions, 30, 100_000) for dimensions in (2, 3, 8)),
    Case(4_000, 2, None, 10_000),
)
QUICK = (Case(2_000, 2, 30, 200), Case(300, 3, None, 200))
MOST_FOR_SCIPY = 100_000  # places


def function(x: Array) -> Array:
    """Smooth, of size one, and alike in any number of dimensions."""
    found: Array = np.sin(6 * x[:, 0]) * np.cos(4 * x[:, -1]) + np.exp(-8 * ((x - 0.4) ** 2).mean(1))
    return found


def problem(case: Case) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(0)
    y, x = generator.random((case.places, case.dimensions)), generator.random((case.queries, case.dimensions))
    return y, function(y), x


def measure_here(case: Case, method: str, out: str) -> harness.Record:
    """One method, in this process; its predictions go to a file."""
    y, d, x = problem(case)
    interpolator: Any = scipy.interpolate.RBFInterpolator
    data: tuple[Any, Any] = (y, d)
    query: Any = x
    if method != "scipy":
        interpolator = RBFInterpolator
        dtype = torch.float32 if method.endswith("float32") else torch.float64
        data = torch.from_numpy(y).to(dtype), torch.from_numpy(d).to(dtype)
        query = torch.from_numpy(x).to(dtype)
    # Loading code and starting threads is neither time nor memory of the task.
    warm = interpolator(data[0][:200], data[1][:200], neighbors=case.neighbors and 20)
    warm(query[:10])
    before = harness.peak_megabytes()
    start = time.perf_counter()
    f = interpolator(*data, neighbors=case.neighbors)
    built = time.perf_counter()
    found = np.asarray(f(query))
    done = time.perf_counter()
    np.save(out, found)
    error = float(np.sqrt(np.mean((found - function(x)) ** 2)))
    times = {"build_seconds": built - start, "predict_seconds": done - built, "seconds": done - start}
    return {**times, "megabytes": harness.peak_megabytes() - before, "rmse": error}


def measure(case: Case, folder: str) -> harness.Record:
    record: harness.Record = {**case._asdict(), "methods": {}}
    predictions: dict[str, Array] = {}
    for number, method in enumerate(METHODS):
        if method == "scipy" and case.places > MOST_FOR_SCIPY:
            continue
        out = f"{folder}/{number}.npy"
        command = [sys.executable, "-m", "benchmarks.interpolate", "--one", json.dumps([case, method, out])]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        record["methods"][method] = json.loads(done.stdout)
        predictions[method] = np.load(out)
    for method, found in predictions.items():
        if "scipy" in predictions and method != "scipy":
            difference = float(np.abs(found - predictions["scipy"]).max())
            record["methods"][method]["largest_difference_from_scipy"] = difference
    return record


def cases(chosen: tuple[Case, ...], folder: str) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for case in chosen:
        yield case.name, functools.partial(measure, case, folder)


def report(command: str, records: list[harness.Record]) -> str:
    lines = [
        "# RBFInterpolator beside scipy's",
        "",
        f"`{command}`; records and machine in `interpolate.jsonl`. Thin-plate splines with a linear tail. Seconds are those "
        "of building and predicting together; memory is the peak beyond data and code. The error is the root mean square "
        "against the function; the difference is the largest from scipy's predictions.",
        "",
        "| places, dimensions, neighbors | queries | method | seconds | times scipy's speed | MB | error | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records[1:]:  # behind the environment
        methods = record["methods"]
        for method, found in methods.items():
            own = method != "scipy" and "scipy" in methods
            ratio = f"{methods['scipy']['seconds'] / found['seconds']:.1f}" if own else ""
            difference = f"{found['largest_difference_from_scipy']:.0e}" if own else ""
            numbers = f"{found['seconds']:.2f} | {ratio} | {found['megabytes']:.0f} | {found['rmse']:.1e} | {difference}"
            lines.append(f"| {record['case']} | {record['queries']:,} | {method} | {numbers} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one is not None:
        case, method, out = json.loads(chosen.one)
        print(json.dumps(measure_here(Case(*case), method, out)))
        return
    with tempfile.TemporaryDirectory() as folder:
        records = harness.record(chosen.out / "interpolate.jsonl", cases(QUICK if chosen.quick else FULL, folder))
    command = "python -m benchmarks.interpolate" + (" --quick" if chosen.quick else "")
    (chosen.out / "interpolate.md").write_text(report(command, records))


if __name__ == "__main__":
    main()
