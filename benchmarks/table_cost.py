"""What does the default regressor cost on a large table?

    python -m benchmarks.table_cost --out benchmarks/results

50,000 rows of 20 features: seconds to fit, seconds to predict 10,000 other rows (the first time and the best of five), peak
memory of the process. Writes `table_cost.jsonl` and `table_cost.md`.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import numpy as np

from benchmarks import harness
from torchkrr.estimators import LocalKernelRidgeRegressor

ROWS, FEATURES, QUERIES, NOISE = 50_000, 20, 10_000, 0.1
TARGETS = {"fit": 60.0, "predict": 2.0, "megabytes": 2000.0}


def cost() -> harness.Record:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS + QUERIES, FEATURES))
    smooth = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * np.abs(x[:, 3]) + 0.2 * x[:, 4:10].sum(1)
    y = smooth + NOISE * rng.normal(size=len(x))
    start = time.perf_counter()
    model = LocalKernelRidgeRegressor().fit(x[:ROWS], y[:ROWS])
    fit = time.perf_counter() - start
    start = time.perf_counter()
    prediction = model.predict(x[ROWS:])
    first = time.perf_counter() - start
    best = harness.interleaved({"predict": lambda: model.predict(x[ROWS:])}, repeats=5)["predict"]
    return {
        "rows": ROWS,
        "features": FEATURES,
        "queries": QUERIES,
        "kernel": type(model.kernel_).__name__,
        "neighbors": model.n_neighbors_,
        "alpha": model.alpha_,
        "fit": fit,
        "first": first,
        "predict": best,
        "megabytes": harness.peak_megabytes(),
        "rmse": float(np.sqrt(np.mean((prediction - smooth[ROWS:]) ** 2))),
    }


def report(records: list[harness.Record]) -> str:
    machine, found = records
    lines = [
        "# The default regressor on a large table",
        "",
        "Made by `python -m benchmarks.table_cost`; records in `table_cost.jsonl`.",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, commit {machine['commit']}.",
        f"{found['rows']:,} x {found['features']} rows of normal numbers, float64; chosen: {found['kernel']}, "
        f"{found['neighbors']} neighbors, alpha {found['alpha']:.1e}; RMSE {found['rmse']:.3f} to the function "
        f"without its noise of {NOISE}.",
        "",
        "| | measured | target |",
        "|---|---|---|",
        f"| fit | {found['fit']:.1f} s | {TARGETS['fit']:.0f} s |",
        f"| predict {found['queries']:,} rows, the first time | {found['first']:.2f} s | {TARGETS['predict']:.0f} s |",
        f"| the same, best of five | {found['predict']:.2f} s | {TARGETS['predict']:.0f} s |",
        f"| peak memory of the process | {found['megabytes']:.0f} MB | {TARGETS['megabytes']:.0f} MB |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    out = parser.parse_args().out
    text = report(harness.record(out / "table_cost.jsonl", [("table cost", cost)]))
    (out / "table_cost.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
