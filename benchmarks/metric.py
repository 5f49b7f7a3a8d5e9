"""How good is a learned metric, and how long does it take?

    python -m benchmarks.metric --data FOLDER        # or: make bench-tuning DATA=FOLDER

On five UCI tables (split 0, standardized), test RMSE and seconds of fitting for `torchkrr.select` alone and for
`torchkrr.tune`: select, learn one lengthscale per feature, select again. Writes `metric.jsonl` and `metric.md`.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

import torchkrr
from benchmarks import harness, uci_data

TABLES = ("pol", "elevators", "protein", "kin40k", "bike")
METHODS: dict[str, Callable[..., torchkrr.tuning.Selection]] = {
    "select": torchkrr.select,
    "tune": partial(torchkrr.tune, max_seconds=50.0),
}


def cases(data: pathlib.Path) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in TABLES:
        for method in METHODS:
            yield f"{method}, {name}", partial(run, data, name, method)


def run(data: pathlib.Path, name: str, method: str) -> harness.Record:
    split = uci_data.load(data, name, 0)
    start = time.perf_counter()
    choice = METHODS[method](split.centers, split.values)
    fitted = time.perf_counter()
    with torch.no_grad():
        prediction = choice.layer(split.centers, split.values)(split.query)
    return {
        "table": name,
        "method": method,
        "rows": len(split.centers),
        "features": split.centers.shape[1],
        "rmse": uci_data.rmse(prediction, split.targets),
        "leave_one_out_rmse": choice.score**0.5,
        "fit_seconds": fitted - start,
        "predict_seconds": time.perf_counter() - fitted,
        "kernel": type(choice.kernel).__name__,
        "num_neighbors": choice.num_neighbors,
        "ridge": choice.ridge,
    }


def report(records: list[harness.Record]) -> str:
    found = {(r["table"], r["method"]): r for r in records if "table" in r}
    lines = [
        "# Learned metrics on UCI tables",
        "",
        "Test RMSE in units of the target's standard deviation, split 0. Made by",
        "`python -m benchmarks.metric --data FOLDER`; records and machine in `metric.jsonl`.",
        "",
        "| table | rows | features | RMSE, select | RMSE, tune | kernel | M | seconds, select | seconds, tune |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in TABLES:
        plain, tuned = found[name, "select"], found[name, "tune"]
        lines.append(
            f"| {name} | {tuned['rows']} | {tuned['features']} | {plain['rmse']:.4f} | **{tuned['rmse']:.4f}** | "
            f"{tuned['kernel']} | {tuned['num_neighbors']} | {plain['fit_seconds']:.1f} | "
            f"{tuned['fit_seconds']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = uci_data.arguments(__doc__)
    records = harness.record(chosen.out / "metric.jsonl", cases(chosen.data))
    (chosen.out / "metric.md").write_text(report(records))


if __name__ == "__main__":
    main()
