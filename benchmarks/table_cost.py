"""What does the default regressor cost on a large table, and where does its time go?

    python -m benchmarks.table_cost --out benchmarks/results

Rows of 20 features. Seconds to fit 1,000, 15,000 and 40,000 of them, best of three, and the shares of the steps of the
last; then 50,000 rows: seconds to fit, seconds to predict 10,000 others (the first time and the best of five), peak memory
of the process. Writes `table_cost.jsonl` and `table_cost.md`.
"""

from __future__ import annotations

import argparse
import cProfile
import pathlib
import pstats
import time
from functools import partial

import numpy as np

from benchmarks import harness
from torchkrr.estimators import LocalKernelRidgeRegressor

ROWS, FEATURES, QUERIES, NOISE, REPEATS = 50_000, 20, 10_000, 0.1, 3
FITS = {1000: None, 15_000: 6.0, 40_000: 12.0}  # rows, and the seconds that are aimed at
TARGETS = {"fit": 60.0, "predict": 2.0, "megabytes": 2000.0}
# Functions of the fit, which do not call each other.
STEPS = {
    "choose_prior": "the prior",
    "_prior_wins": "whether the prior helps",
    "each": "lengthscales of three kernels, side by side",
    "learn_metric": "lengthscales of the best kernel, by gradients",
    "select_mapped": "ridge and neighbors by leave-one-out",
}


def table(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, targets, and targets without noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES))
    smooth = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * np.abs(x[:, 3]) + 0.2 * x[:, 4:10].sum(1)
    return x, smooth + NOISE * rng.normal(size=rows), smooth


def fit(rows: int) -> harness.Record:
    x, y, _ = table(rows)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        LocalKernelRidgeRegressor().fit(x, y)
        seconds.append(time.perf_counter() - start)
    profile = cProfile.Profile()
    profile.runcall(LocalKernelRidgeRegressor().fit, x, y)
    calls = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = max(one[3] for one in calls.values())
    shares = dict.fromkeys(STEPS, 0.0)
    for (file, _, name), (_, _, _, cumulative, _) in calls.items():
        if name in STEPS and "torchkrr" in file:
            shares[name] += cumulative / total
    return {"rows": rows, "fit": min(seconds), "first": seconds[0], "shares": shares}


def cost() -> harness.Record:
    x, y, smooth = table(ROWS + QUERIES)
    start = time.perf_counter()
    model = LocalKernelRidgeRegressor().fit(x[:ROWS], y[:ROWS])
    fitted = time.perf_counter() - start
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
        "fit": fitted,
        "first": first,
        "predict": best,
        "megabytes": harness.peak_megabytes(),
        "rmse": float(np.sqrt(np.mean((prediction - smooth[ROWS:]) ** 2))),
    }


def report(records: list[harness.Record]) -> str:
    machine, *fits, found = records
    lines = [
        "# The default regressor on a large table",
        "",
        "Made by `python -m benchmarks.table_cost`; records in `table_cost.jsonl`.",
        f"torchkrr {machine['torchkrr']} ({machine['commit']}), {machine['processor']}, {machine['threads']} threads, torch "
        f"{machine['torch']}. Rows of {FEATURES} normal numbers, float64.",
        "",
        f"Seconds to fit, best of {REPEATS}:",
        "",
        "| rows | fit | the first time | target |",
        "|---|---|---|---|",
    ]
    for one in fits:
        target = FITS[one["rows"]]
        aim = "" if target is None else f"{target:.0f} s"
        lines.append(f"| {one['rows']:,} | {one['fit']:.2f} s | {one['first']:.2f} s | {aim} |")
    lines += ["", f"Where the time goes at {fits[-1]['rows']:,} rows:", "", "| step | share |", "|---|---|"]
    shares = fits[-1]["shares"]
    lines += [f"| {STEPS[name]} | {share:.0%} |" for name, share in shares.items()]
    lines += [
        f"| the rest | {1 - sum(shares.values()):.0%} |",
        "",
        f"{found['rows']:,} rows; chosen: {found['kernel']}, "
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
    cases = [(f"fit, {rows} rows", partial(fit, rows)) for rows in FITS]
    text = report(harness.record(out / "table_cost.jsonl", [*cases, ("table cost", cost)]))
    (out / "table_cost.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
