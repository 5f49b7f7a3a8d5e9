"""How good is the default classifier on tables, beside logistic regression and gradient boosting?

    python -m benchmarks.classification --data FOLDER        # folder/NAME/{data.csv.gz,test_mask.csv.gz}

Sixteen public tables, three splits each. Log loss, error rate and seconds to fit, one run, all methods on the same splits
with nothing set by hand for a table; of the default classifier also the coverage and the size of its prediction sets.
Resumes after an interrupt. Writes `classification.jsonl` and `classification.md`.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.optional import NotInstalledError, require

OURS, LOGISTIC = "torchkrr", "logistic regression"
SPLITS, COVERAGE, VALIDATION = 3, 0.9, 0.1
LEAST = 1e-6  # no probability is taken to be smaller: one confident error must not decide a table
QUICK_ROWS = 1000


def load(folder: pathlib.Path, name: str, split: int) -> tuple[Any, Any, Any, Any]:
    """Training rows and labels, test rows and labels; columns of text are categories."""
    pandas: Any = require("pandas")
    table = pandas.read_csv(folder / name / "data.csv.gz")
    test = pandas.read_csv(folder / name / "test_mask.csv.gz", header=None).to_numpy()[:, split].astype(bool)
    labels, rows = table.pop("target").astype(str).to_numpy(), table
    for column in rows.columns[[str(kind) in ("object", "str") for kind in rows.dtypes]]:
        rows[column] = rows[column].astype("category")
    return rows[~test], labels[~test], rows[test], labels[test]


def categories(rows: Any) -> list[str]:
    return [name for name, kind in rows.dtypes.items() if str(kind) == "category"]


def torchkrr_default(rows: Any, labels: Any) -> Any:
    estimators: Any = require("torchkrr.estimators")
    return estimators.LocalKernelRidgeClassifier(random_state=0).fit(rows, labels)


def logistic(rows: Any, labels: Any) -> Any:
    """Numbers standardized, categories as zeros and ones; C by five-fold cross-validation."""
    compose, preprocessing = require("sklearn.compose"), require("sklearn.preprocessing")
    pipeline, linear = require("sklearn.pipeline"), require("sklearn.linear_model")
    named = categories(rows)
    columns: Any = compose.make_column_transformer(
        (preprocessing.OneHotEncoder(handle_unknown="ignore"), named), remainder=preprocessing.StandardScaler()
    )
    model = linear.LogisticRegressionCV(
        Cs=np.logspace(-4, 3, 15), cv=5, scoring="neg_log_loss", max_iter=2000, n_jobs=2, l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )  # fmt: skip
    return pipeline.make_pipeline(columns, model).fit(rows, labels)


def histogram_boosting(rows: Any, labels: Any) -> Any:
    ensemble: Any = require("sklearn.ensemble")
    return ensemble.HistGradientBoostingClassifier(
        categorical_features="from_dtype", early_stopping=True, max_iter=2000, learning_rate=0.05, random_state=0
    ).fit(rows, labels)


def held_out(labels: Any) -> tuple[Any, Any]:
    """A tenth of each class for early stopping."""
    selection: Any = require("sklearn.model_selection")
    size = max(VALIDATION, len(np.unique(labels)) / len(labels))
    return tuple(selection.train_test_split(np.arange(len(labels)), test_size=size, stratify=labels, random_state=0))


def lightgbm(rows: Any, labels: Any) -> Any:
    library: Any = require("lightgbm")
    train, check = held_out(labels)
    model = library.LGBMClassifier(n_estimators=5000, learning_rate=0.05, random_state=0, verbose=-1, n_jobs=2)
    stop = library.early_stopping(50, verbose=False)
    return model.fit(rows.iloc[train], labels[train], eval_set=[(rows.iloc[check], labels[check])], callbacks=[stop])


def catboost(rows: Any, labels: Any) -> Any:
    library: Any = require("catboost")
    train, check = held_out(labels)
    model = library.CatBoostClassifier(
        iterations=5000, early_stopping_rounds=100, random_seed=0, verbose=False, thread_count=2,
        cat_features=categories(rows), allow_writing_files=False,
    )  # fmt: skip
    return model.fit(rows.iloc[train], labels[train], eval_set=(rows.iloc[check], labels[check]))


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    OURS: torchkrr_default,
    LOGISTIC: logistic,
    "HistGradientBoosting": histogram_boosting,
    "LightGBM": lightgbm,
    "CatBoost": catboost,
}


def cases(folder: pathlib.Path, tables: list[str], methods: list[str]) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in tables:
        for split in range(SPLITS):
            for method in methods:
                yield f"{name}, split {split}, {method}", partial(run, folder, name, split, method)


def run(folder: pathlib.Path, name: str, split: int, method: str) -> harness.Record:
    rows, labels, query, answers = load(folder, name, split)
    start = time.perf_counter()
    try:
        model = METHODS[method](rows, labels)
    except NotInstalledError as error:
        return {"table": name, "split": split, "method": method, "missing": str(error)}
    fitted = time.perf_counter()
    probabilities = np.asarray(model.predict_proba(query), dtype=float)
    seconds = {"fit": fitted - start, "predict": time.perf_counter() - fitted}
    place = {name: number for number, name in enumerate(map(str, model.classes_))}  # not every library sorts them
    right = np.array([place[name] for name in answers])
    chances = np.clip(probabilities[np.arange(len(answers)), right], LEAST, 1)
    record = {
        "table": name,
        "split": split,
        "method": method,
        "rows": len(rows),
        "columns": rows.shape[1],
        "classes": len(model.classes_),
        "log_loss": float(-np.log(chances).mean()),
        "error": float((probabilities.argmax(1) != right).mean()),
        "seconds": seconds,
    }
    if method == OURS:
        sets = model.predict_set(query, coverage=COVERAGE)
        record["queries"] = len(answers)
        record["covered"] = float(sets[np.arange(len(answers)), right].mean())
        record["set_size"] = float(sets.sum(1).mean())
    return record


def collected(records: list[harness.Record]) -> dict[tuple[str, str], dict[str, float]]:
    """Means over splits, by table and method."""
    found: dict[tuple[str, str], list[harness.Record]] = {}
    for record in records:
        if "log_loss" in record:
            found.setdefault((record["table"], record["method"]), []).append(record)
    return {
        key: {
            "log_loss": float(np.mean([one["log_loss"] for one in own])),
            "error": 100 * float(np.mean([one["error"] for one in own])),
            "fit": float(np.mean([one["seconds"]["fit"] for one in own])),
        }
        for key, own in found.items()
    }


def report(records: list[harness.Record]) -> str:
    found, machine = collected(records), records[0]
    tables = list(dict.fromkeys(name for name, _ in found))
    known = [record for record in records if "rows" in record]
    sizes = {record["table"]: (record["rows"], record["columns"], record["classes"]) for record in known}
    lines = [
        "# The default classifier on tables",
        "",
        f"Made by `python -m benchmarks.classification --data FOLDER`; records in `classification.jsonl`. torchkrr "
        f"{machine['torchkrr']} ({machine['commit']}), {machine['processor']}, {machine['threads']} threads, torch "
        f"{machine['torch']}. Means over {SPLITS} splits; boosting stops early on a tenth of the training rows.",
        "",
    ]
    for key, title in (("log_loss", "Log loss"), ("error", "Errors in percent"), ("fit", "Seconds to fit")):
        lines += [f"## {title}", "", f"| table | rows | columns | classes | {' | '.join(METHODS)} |"]
        lines.append("|---" * (4 + len(METHODS)) + "|")
        for name in tables:
            values = {method: found[name, method][key] for method in METHODS if (name, method) in found}
            best = min(values.values())
            shown = [
                "" if method not in values else ("**{:.3g}**" if values[method] == best else "{:.3g}").format(values[method])
                for method in METHODS
            ]
            lines.append(f"| {name} | {' | '.join(map(str, sizes[name]))} | {' | '.join(shown)} |")
        lines.append("")
    return "\n".join([*lines, *verdict(records, found, tables, sizes)]) + "\n"


def verdict(
    records: list[harness.Record],
    found: dict[tuple[str, str], dict[str, float]],
    tables: list[str],
    sizes: dict[str, tuple[int, int, int]],
) -> list[str]:
    """Targets, and what was measured."""
    others = [method for method in METHODS if method != OURS]

    def ratios(names: list[str]) -> dict[str, float]:
        best = {name: min(found[name, other]["log_loss"] for other in names if (name, other) in found) for name in tables}
        return {name: found[name, OURS]["log_loss"] / best[name] for name in tables}

    def within(values: dict[str, float], limit: float) -> str:
        far = ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value > limit)
        return f"{sum(value <= limit for value in values.values())} of {len(values)}" + (f"; not: {far}" if far else "")

    small = {name: found[name, OURS]["fit"] for name in tables if sizes[name][0] <= QUICK_ROWS}
    ours = [record for record in records if record.get("method") == OURS and "covered" in record]
    queries = sum(record["queries"] for record in ours)
    covered = sum(record["covered"] * record["queries"] for record in ours) / queries
    by_table = np.mean([record["covered"] for record in ours])
    size = np.mean([record["set_size"] for record in ours])
    slowest = max(small, key=lambda name: small[name])
    return [
        "## Targets",
        "",
        "| target | measured |",
        "|---|---|",
        f"| log loss at most 1.02 times the best of the others on 11 of 16 | {within(ratios(others), 1.02)} |",
        f"| log loss at most 1.05 times that of logistic regression | {within(ratios([LOGISTIC]), 1.05)} |",
        f"| fit below 1 s up to {QUICK_ROWS:,} rows | {within(small, 1.0)}; the slowest {slowest}, {small[slowest]:.2f} s |",
        f"| prediction sets of {100 * COVERAGE:.0f} %: coverage 88 to 92 % | {100 * covered:.1f} % of all rows, "
        f"{100 * by_table:.1f} % as a mean of tables, {size:.2f} classes in a set |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with one folder per table")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    parser.add_argument("--tables", help="comma-separated; all there are")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    chosen = parser.parse_args()
    tables = chosen.tables.split(",") if chosen.tables else sorted(path.name for path in chosen.data.iterdir())
    records = harness.record(chosen.out / "classification.jsonl", cases(chosen.data, tables, chosen.methods.split(",")))
    text = report(records)
    (chosen.out / "classification.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
