"""How good is the default classifier on sentences, beside the usual heads on the same embeddings?

    python -m benchmarks.text --data FOLDER --encoder PATH        # folder/{banking77,sst2}/{train,test}.csv.gz: text,label

Two public sets, ten sentences per class (five draws) and all of them; one run, all methods on the same embeddings, with
nothing set by hand for a set. Accuracy, log loss, and seconds to fit and to predict from embeddings; the seconds to embed
apart. Embeddings are kept in `--cache`. Resumes after an interrupt. Writes `text.jsonl` and `text.md`.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.optional import require
from torchkrr.text import TextEncoder, open_encoder

OURS = "torchkrr"
TITLES = {"banking77": "banking77, 77 intents", "sst2": "SST-2, two sentiments"}
PER_CLASS, SEEDS = 10, 5
HELD_OUT, HIDDEN, PATIENCE = 0.2, 256, 20
COSTS = np.logspace(-1, 4, 11)  # C of logistic regression
MARGIN_COSTS = np.logspace(-2, 1.5, 8)  # C of the linear SVM
FOLDS = 3
LEAST = 1e-6  # no probability is taken to be smaller: one confident error must not decide a set
GOALS = {("banking77", "all"): 93.5, ("banking77", "10 per class"): 85.3, ("sst2", "all"): 82.0}  # percent
MOST_SECONDS = 5.0  # to fit and predict, from embeddings

Array = NDArray[Any]


class Split(NamedTuple):
    train: Array  # (n, D) float32
    train_labels: Array
    test: Array
    test_labels: Array


def embedded(data: pathlib.Path, cache: pathlib.Path, encoder: TextEncoder, name: str, part: str) -> harness.Record:
    """Sentences of a part and the seconds to embed them; embeddings and labels are in the cache then."""
    pandas: Any = require("pandas")
    notes = cache / f"{name}_{part}.json"
    found = json.loads(notes.read_text()) if notes.exists() else {}
    if found.get("fingerprint") != encoder.fingerprint:
        table = pandas.read_csv(data / name / f"{part}.csv.gz")
        start = time.perf_counter()
        embeddings = encoder.encode(table["text"], progress=True).numpy()
        seconds = time.perf_counter() - start
        cache.mkdir(parents=True, exist_ok=True)
        for kind, rows in (("x", embeddings), ("y", table["label"].astype(str).to_numpy().astype(str))):
            np.save(cache / f"{name}_{part}_{kind}.npy", rows)
        found = {"fingerprint": encoder.fingerprint, "sentences": len(table), "seconds": seconds}
        notes.write_text(json.dumps(found))  # last: without it the others do not count
    return {"data": name, "part": part, "encoder": "/".join(pathlib.PurePath(encoder.name).parts[-2:]), **found}


def load(cache: pathlib.Path, name: str) -> Split:
    return Split(*(np.load(cache / f"{name}_{part}_{kind}.npy") for part in ("train", "test") for kind in ("x", "y")))


def drawn(labels: Array, per_class: int | None, seed: int) -> Array:
    """Rows of a random part with as many of each class; all of them for `None`."""
    if per_class is None:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(np.concatenate([order[labels[order] == label][:per_class] for label in np.unique(labels)]))


def torchkrr_default(rows: Array, labels: Array) -> Any:
    estimators: Any = require("torchkrr.estimators")
    return estimators.LocalKernelRidgeClassifier().fit(rows, labels)


def logistic(rows: Array, labels: Array) -> Any:
    """C by cross-validation."""
    linear: Any = require("sklearn.linear_model")
    return linear.LogisticRegressionCV(
        Cs=COSTS, cv=FOLDS, scoring="neg_log_loss", max_iter=1000, l1_ratios=(0.0,), use_legacy_attributes=False
    ).fit(rows, labels)


def nearest(rows: Array, labels: Array) -> Any:
    """The number of neighbors, and whether near ones count more, by cross-validation."""
    neighbors: Any = require("sklearn.neighbors")
    least = len(rows) * (FOLDS - 1) // FOLDS  # in a fold
    counts = [number for number in (1, 3, 5, 10, 20, 50) if number <= least]
    return _searched(neighbors.KNeighborsClassifier(), rows, labels, n_neighbors=counts, weights=["uniform", "distance"])


def margin(rows: Array, labels: Array) -> Any:
    """C by cross-validation."""
    svm: Any = require("sklearn.svm")
    return _searched(svm.LinearSVC(max_iter=5000), rows, labels, C=MARGIN_COSTS.tolist())


def perceptron(rows: Array, labels: Array) -> Any:
    """One hidden layer on standardized embeddings, the weights of the best epoch on a fifth of the rows."""
    networks: Any = require("sklearn.neural_network")
    pipeline, preprocessing = require("sklearn.pipeline"), require("sklearn.preprocessing")
    network = networks.MLPClassifier(
        HIDDEN, alpha=1e-3, early_stopping=True, validation_fraction=HELD_OUT, n_iter_no_change=PATIENCE, random_state=0
    )
    return pipeline.make_pipeline(preprocessing.StandardScaler(), network).fit(rows, labels)


def _searched(model: Any, rows: Array, labels: Array, **grid: list[Any]) -> Any:
    selection: Any = require("sklearn.model_selection")
    return selection.GridSearchCV(model, grid, cv=FOLDS).fit(rows, labels)


METHODS: dict[str, Callable[[Array, Array], Any]] = {
    OURS: torchkrr_default,
    "logistic regression": logistic,
    "linear SVM": margin,
    "k nearest": nearest,
    "MLP": perceptron,
}


def cases(
    data: pathlib.Path, cache: pathlib.Path, encoder: TextEncoder, names: list[str], methods: list[str]
) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in names:
        for part in ("train", "test"):
            yield f"{name}, {part}, embeddings", functools.partial(embedded, data, cache, encoder, name, part)
    for per_class, seeds in ((PER_CLASS, SEEDS), (None, 1)):
        for name in names:
            for seed in range(seeds):
                for method in methods:
                    case = f"{name}, {_labels(per_class)}, seed {seed}, {method}"
                    yield case, functools.partial(run, cache, name, per_class, seed, method)


def run(cache: pathlib.Path, name: str, per_class: int | None, seed: int, method: str) -> harness.Record:
    split = load(cache, name)
    rows = drawn(split.train_labels, per_class, seed)
    start = time.perf_counter()
    model = METHODS[method](split.train[rows], split.train_labels[rows])
    fitted = time.perf_counter()
    chances = hasattr(model, "predict_proba")
    answers = np.asarray(model.predict_proba(split.test) if chances else model.decision_function(split.test), dtype=float)
    if answers.ndim == 1:  # a margin between two classes
        answers = np.column_stack((-answers, answers))
    seconds = {"fit": fitted - start, "predict": time.perf_counter() - fitted}
    right = np.searchsorted(model.classes_, split.test_labels)
    record = {
        "data": name,
        "labels": _labels(per_class),
        "seed": seed,
        "method": method,
        "rows": len(rows),
        "queries": len(right),
        "accuracy": float((answers.argmax(1) == right).mean()),
        "seconds": seconds,
    }
    if chances:
        record["log_loss"] = float(-np.log(np.clip(answers[np.arange(len(right)), right], LEAST, 1)).mean())
    return record


def report(records: list[harness.Record]) -> str:
    machine = records[0]
    embeddings = [record for record in records if "sentences" in record]
    sentences, seconds = (sum(record[key] for record in embeddings) for key in ("sentences", "seconds"))
    lines = [
        "# The default classifier on sentences",
        "",
        f"Made by `python -m benchmarks.text --data FOLDER --encoder PATH`; records in `text.jsonl`. torchkrr "
        f"{machine['torchkrr']} ({machine['commit']}), {machine['processor']}, {machine['threads']} threads, torch "
        f"{machine['torch']}. Where labels are drawn, means over {SEEDS} draws and the standard deviation of the accuracy. "
        "Seconds are those of one fit, everything chosen in it, and of the predictions for all test sentences, from "
        f"embeddings; to embed {sentences:,} sentences with {embeddings[0]['encoder']} took {seconds:.0f} s.",
        "",
    ]
    found = _collected(records)
    sets = sorted(dict.fromkeys(key[:2] for key in found))
    columns = " | ".join(f"{TITLES[name].split(',')[0]}, {labels}" for name, labels in sets)
    lines += ["## Accuracy in percent", "", f"| method | {columns} |", "|---" * (1 + len(sets)) + "|"]
    for method in METHODS:
        shown = []
        for name, labels in sets:
            best = max(_mean(of, "accuracy") for key, of in found.items() if key[:2] == (name, labels))
            of = found.get((name, labels, method), [])
            spread = f" ± {100 * np.std([record['accuracy'] for record in of], ddof=1):.1f}" if len(of) > 1 else ""
            shown.append(_marked(100 * _mean(of, "accuracy"), 100 * best, ".1f") + spread if of else "")
        lines.append(f"| {method} | {' | '.join(shown)} |")
    for name, labels in sets:
        own = {method: found[name, labels, method] for method in METHODS if (name, labels, method) in found}
        rows, queries = (next(iter(own.values()))[0][key] for key in ("rows", "queries"))
        lines += ["", f"## {TITLES[name]}: {labels} ({rows:,}), {queries:,} test sentences", ""]
        lines += ["| method | log loss | fit in s | predict in s |", "|---|---|---|---|"]
        least = min((_mean(of, "log_loss") for of in own.values() if "log_loss" in of[0]), default=0.0)
        for method, of in own.items():
            loss = _marked(_mean(of, "log_loss"), least, ".3f") if "log_loss" in of[0] else ""
            times = " | ".join(f"{np.mean([record['seconds'][key] for record in of]):.2f}" for key in ("fit", "predict"))
            lines.append(f"| {method} | {loss} | {times} |")
    return "\n".join([*lines, "", *_goals(found)]) + "\n"


def _collected(records: list[harness.Record]) -> dict[tuple[str, str, str], list[harness.Record]]:
    found: dict[tuple[str, str, str], list[harness.Record]] = {}
    for record in records:
        if "accuracy" in record:
            found.setdefault((record["data"], record["labels"], record["method"]), []).append(record)
    return found


def _labels(per_class: int | None) -> str:
    return "all" if per_class is None else f"{per_class} per class"


def _mean(records: list[harness.Record], key: str) -> float:
    return float(np.mean([record[key] for record in records]))


def _marked(value: float, best: float, places: str) -> str:
    return f"**{value:{places}}**" if value == best else f"{value:{places}}"


def _goals(found: dict[tuple[str, str, str], list[harness.Record]]) -> list[str]:
    """Targets, and what was measured."""
    lines = ["## Targets", "", "| target | measured |", "|---|---|"]
    for (name, labels), goal in GOALS.items():
        if (name, labels, OURS) in found:
            measured = 100 * _mean(found[name, labels, OURS], "accuracy")
            lines.append(f"| {TITLES[name]}, {labels}: accuracy at least {goal} % | {measured:.1f} % |")
    slowest = max((sum(record["seconds"].values()), key) for key, of in found.items() if key[2] == OURS for record in of)
    lines.append(
        f"| fit and predict from embeddings in at most {MOST_SECONDS:.0f} s, on two cores | at most {slowest[0]:.1f} s "
        f"({TITLES[slowest[1][0]]}, {slowest[1][1]}) |"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with one folder per set")
    parser.add_argument("--encoder", required=True, help="folder or name of a sentence encoder")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("runs/text"), help="where embeddings are kept")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    parser.add_argument("--sets", default=",".join(TITLES), help="comma-separated")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    chosen = parser.parse_args()
    given = chosen.data, chosen.cache, open_encoder(chosen.encoder), chosen.sets.split(","), chosen.methods.split(",")
    records = harness.record(chosen.out / "text.jsonl", cases(*given))
    text = report(records)
    (chosen.out / "text.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
