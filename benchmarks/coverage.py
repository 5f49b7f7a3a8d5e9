"""Do 90 % intervals hold 90 % of the test values?

    python -m benchmarks.coverage --data FOLDER        # or: make bench-tuning DATA=FOLDER

Ten splits of every UCI table with over 1000 rows; everything selected by leave-one-out on the training part, intervals from
leave-one-out residuals (`torchkrr.calibrate`), with one scale for all queries and with a scale per cell. Writes
`coverage.jsonl` and `coverage.md`.
"""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

import torchkrr
from benchmarks import harness, uci_data

TABLES = ("concrete", "airfoil", "pol", "elevators", "bike", "kin40k", "protein")
SPLITS = range(10)
COVERAGE = 0.9
GRID = {
    "lengthscales": (0.5, 1.0, 2.0, 4.0),
    "ridges": (1e-4, 1e-2, 1e-1),
    "num_neighbors": (20, 50, 100),
    "num_samples": 300,
}


def cases(data: pathlib.Path) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in TABLES:
        for split in SPLITS:
            yield f"{name}, split {split}", partial(run, data, name, split)


def run(data: pathlib.Path, name: str, number: int) -> harness.Record:
    split = uci_data.load(data, name, number)
    choice = torchkrr.select(split.centers, split.values, **GRID)  # type: ignore[arg-type]
    layer = choice.layer(split.centers, split.values)
    found: harness.Record = {"table": name, "split": number, "rows": len(split.centers)}
    with torch.no_grad():
        for scale in ("global", "cell"):
            interval = torchkrr.calibrate(layer, scale=scale, num_samples=5000).interval(split.query, COVERAGE)
            inside = (interval.lower <= split.targets) & (split.targets <= interval.upper)
            found[f"coverage_{scale}"] = float(inside.double().mean())
            found[f"width_{scale}"] = float((interval.upper - interval.lower).mean())
        found["rmse"] = uci_data.rmse(layer(split.query), split.targets)
    return found


def report(records: list[harness.Record]) -> str:
    lines = [
        "# Coverage of 90 % intervals on UCI tables",
        "",
        "Mean over ten splits, with the standard error of the mean; widths in standard deviations of the target. Made by",
        "`python -m benchmarks.coverage --data FOLDER`; records and machine in `coverage.jsonl`.",
        "",
        "| table | rows | RMSE | coverage, one scale | width | coverage, scale per cell | width |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TABLES:
        own = [r for r in records if r.get("table") == name]
        cells = []
        for scale in ("global", "cell"):
            shares = [100 * r[f"coverage_{scale}"] for r in own]
            error = statistics.stdev(shares) / math.sqrt(len(shares))
            width = statistics.mean(r[f"width_{scale}"] for r in own)
            cells.append(f"{statistics.mean(shares):.1f} ± {error:.1f} % | {width:.3f}")
        rmse = statistics.mean(r["rmse"] for r in own)
        lines.append(f"| {name} | {own[0]['rows']} | {rmse:.4f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = uci_data.arguments(__doc__)
    records = harness.record(chosen.out / "coverage.jsonl", cases(chosen.data))
    (chosen.out / "coverage.md").write_text(report(records))


if __name__ == "__main__":
    main()
