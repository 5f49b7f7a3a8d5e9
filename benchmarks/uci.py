"""How good are the default estimators on tables, beside the best tabular methods?

    python -m benchmarks.uci --data FOLDER...        # or: make bench-uci DATA="FOLDER..."

Public regression tables, standardized; ten splits of those below 2000 rows, `--splits` (1) of the others. Test RMSE,
negative log-likelihood and seconds to fit and predict, one run, all methods on the same splits with nothing set by hand for
a table; of the default regressor also the coverage of its intervals. `--before` has records of torchkrr 0.1.0, which this
file made in its tree. Resumes after an interrupt. Writes `uci.jsonl`, `uci.md` and `uci.png`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks import harness, tabular, uci_data
from benchmarks.optional import NotInstalledError

TABLES = ["yacht", "housing", "energy", "concrete", "airfoil", "pol", "elevators", "bike", "kin40k", "protein"]
SMALL, SMALL_SPLITS = 2000, 10
OURS = "torchkrr"
LEAK, LEAK_TEXT = (
    "bike",
    "The table bike is a leak: its target is the logarithm of a sum of two of its columns. It counts nowhere.",
)
QUICK_ROWS, COVERAGE = 1000, 0.9


def cases(
    data: dict[str, pathlib.Path], tables: list[str], methods: list[str], splits: int
) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in tables:
        rows = len(uci_data.load(data[name], name, 0).centers)
        for split in range(SMALL_SPLITS if rows < SMALL else splits):
            for method in methods:
                if rows <= tabular.LARGEST.get(method, rows):
                    yield f"{name}, split {split}, {method}", partial(run, data[name], name, split, method)


def run(data: pathlib.Path, name: str, split: int, method: str) -> harness.Record:
    part = uci_data.load(data, name, split)
    x, y, query, targets = (tensor.double().numpy() for tensor in part)
    start = time.perf_counter()
    try:
        mean, std, lower, upper = tabular.METHODS[method](x, y[:, 0], query)
    except NotInstalledError as error:
        return {"table": name, "split": split, "method": method, "missing": str(error)}
    seconds = time.perf_counter() - start
    answers = targets[:, 0]
    residual = answers - mean
    std = np.maximum(std, 1e-6)
    own = {} if lower is None or upper is None else {"covered": float(((answers >= lower) & (answers <= upper)).mean())}
    return {
        "table": name,
        "split": split,
        "method": method,
        "rows": len(x),
        "features": x.shape[1],
        "rmse": float(np.sqrt(np.mean(residual**2))),
        "nll": float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * (residual / std) ** 2)),
        "seconds": seconds,
        **own,
    }


Table = dict[tuple[str, str], dict[str, list[float]]]


def collected(records: list[harness.Record]) -> Table:
    """Lists over splits of what was measured, by table and method."""
    found: Table = {}
    for record in records:
        if "rmse" in record:
            entry = found.setdefault((record["table"], record["method"]), {})
            for key in {"rmse", "nll", "seconds", "covered"} & record.keys():
                entry.setdefault(key, []).append(record[key])
    return found


def tables_of(found: Table) -> list[str]:
    """Small ones first."""
    return sorted(
        {name for name, method in found if method == OURS}, key=[*TABLES, *sorted({name for name, _ in found})].index
    )


def report(records: list[harness.Record], before: list[harness.Record]) -> str:
    found, machine = collected(records), records[0]
    tables = tables_of(found)
    sizes = {record["table"]: (record["rows"], record["features"]) for record in records if "rows" in record}
    lines = [
        "# The default regressor on tables",
        "",
        f"Made by `python -m benchmarks.uci --data FOLDER...`; records in `uci.jsonl`. torchkrr {machine['torchkrr']} "
        f"({machine['commit']}), {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}.",
        "Targets have standard deviation one. Seconds to fit and predict. Tables below "
        f"{SMALL} rows: mean over {SMALL_SPLITS} splits. {LEAK_TEXT}",
        "",
    ]
    missing = {record["method"]: record["missing"] for record in records if "missing" in record}
    lines += [f"{method}: {text}." for method, text in missing.items()]
    lines += [f"{method}: up to {most:,} rows, larger tables take too long.\\" for method, most in tabular.LARGEST.items()]
    lines += [""]
    for key, title in (("rmse", "Test RMSE"), ("nll", "Negative log-likelihood"), ("seconds", "Seconds")):
        lines += [f"## {title}", "", "| table | rows | features | " + " | ".join(tabular.METHODS) + " |"]
        lines.append("|---" * (3 + len(tabular.METHODS)) + "|")
        for name in tables:
            values = {m: float(np.mean(found[name, m][key])) for m in tabular.METHODS if (name, m) in found}
            best = min(values.values())
            shown = [
                "" if m not in values else f"**{values[m]:.4g}**" if values[m] == best else f"{values[m]:.4g}"
                for m in tabular.METHODS
            ]
            lines.append(f"| {name} | {sizes[name][0]} | {sizes[name][1]} | " + " | ".join(shown) + " |")
        lines.append("")
    lines += beside_before(found, collected(before), tables)
    return "\n".join([*lines, *verdict(found, [name for name in tables if name != LEAK], sizes)]) + "\n"


def beside_before(found: Table, before: Table, tables: list[str]) -> list[str]:
    """The default regressor and that of version 0.1.0, on the same splits."""
    lines = [
        "## Beside 0.1.0, and intervals",
        "",
        f"Intervals are those of {100 * COVERAGE:.0f} %.",
        "",
        "| table | RMSE, ratio | log-likelihood, difference | intervals cover |",
        "|---|---|---|---|",
    ]
    for name in tables:
        own, former = found[name, OURS], before.get((name, OURS))
        shown = ["", ""]
        if former is not None:
            rmse, nll = (np.mean(own[key]) for key in ("rmse", "nll"))
            shown = [f"{rmse / np.mean(former['rmse']):.3f}", f"{np.mean(former['nll']) - nll:+.2f}"]
        lines.append(f"| {name} | {' | '.join(shown)} | {100 * np.mean(own['covered']):.1f} % |")
    return [*lines, ""]


def verdict(found: Table, tables: list[str], sizes: dict[str, tuple[int, int]]) -> list[str]:
    """Targets, and what was measured."""

    def compared(other: str, factor: float, key: str = "rmse", names: list[str] | None = None) -> str:
        names = [name for name in (tables if names is None else names) if (name, other) in found]
        won = [n for n in names if np.mean(found[n, OURS][key]) <= factor * np.mean(found[n, other][key])]
        return f"{len(won)} of {len(names)} ({', '.join(won)})"

    large = [name for name in tables if sizes[name][0] > 10_000]
    small = {name: np.mean(found[name, OURS]["seconds"]) for name in tables if sizes[name][0] <= QUICK_ROWS}
    quick = (
        f"{sum(value <= 1 for value in small.values())} of {len(small)}; the slowest {max(small.values(), default=0):.2f} s"
    )
    covered = [100 * np.mean(found[name, OURS]["covered"]) for name in tables]
    return [
        "## Targets",
        "",
        "| target | measured |",
        "|---|---|",
        f"| RMSE at most LightGBM's | {compared('LightGBM', 1.0)} |",
        f"| RMSE at most XGBoost's | {compared('XGBoost', 1.0)} |",
        f"| RMSE at most 1.05 times xRFM's on 5 | {compared('xRFM', 1.05)} |",
        f"| at most a quarter of xRFM's time above 10,000 rows | {compared('xRFM', 0.25, 'seconds', large)} |",
        f"| fit and predict below 1 s up to {QUICK_ROWS:,} rows | {quick} |",
        f"| intervals of {100 * COVERAGE:.0f} % cover 88 to 92 % | {min(covered):.1f} to {max(covered):.1f} %, "
        f"{np.mean(covered):.1f} % in the mean of tables |",
    ]


def draw(records: list[harness.Record], path: pathlib.Path) -> None:
    found = collected(records)
    tables = tables_of(found)
    others = [m for m in tabular.METHODS if m != OURS and any((name, m) in found for name in tables)]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    colors = dict(zip(others, plt.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    for panel, key, label in ((axes[0], "rmse", "test RMSE / torchkrr's"), (axes[1], "seconds", "seconds / torchkrr's")):
        for method in others:
            names = [name for name in tables if (name, method) in found]
            ratios = [np.mean(found[name, method][key]) / np.mean(found[name, OURS][key]) for name in names]
            panel.plot(ratios, [tables.index(name) for name in names], "o", color=colors[method], label=method, alpha=0.85)
        panel.axvline(1, color="#222222", linewidth=1)
        panel.set(xscale="log", xlabel=label)
        panel.set_yticks(range(len(tables)), tables)
        panel.invert_yaxis()
        panel.grid(alpha=0.25, axis="x", which="both")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_title("right of the line: a larger error than torchkrr", fontsize=10)
    axes[1].set_title("right of the line: slower than torchkrr", fontsize=10)
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, nargs="+", required=True, help="folders with one folder per table")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    parser.add_argument("--splits", type=int, default=1, help="splits of large tables")
    parser.add_argument("--before", type=pathlib.Path, help="records of 0.1.0 (uci_0.1.0.jsonl in --out)")
    parser.add_argument("--tables", help="comma-separated; all there are")
    parser.add_argument("--methods", default=",".join(tabular.METHODS), help="comma-separated")
    chosen = parser.parse_args()
    folders = uci_data.folders_of(chosen.data)
    tables = chosen.tables.split(",") if chosen.tables else list(folders)
    all_cases = cases(folders, tables, chosen.methods.split(","), chosen.splits)
    records = harness.record(chosen.out / "uci.jsonl", all_cases)
    draw(records, chosen.out / "uci.png")
    before = chosen.before or chosen.out / "uci_0.1.0.jsonl"
    text = report(records, [json.loads(line) for line in before.read_text().splitlines()] if before.exists() else [])
    (chosen.out / "uci.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
