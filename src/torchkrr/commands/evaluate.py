"""How well a model predicts a table whose targets are known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .._progress import Progress
from ..distributed.launch import TIMEOUT
from ..errors import InputError
from ..estimators import load
from .features import features_of_model
from .ranks import Alone, ranks
from .scores import ClassificationScores, RegressionScores
from .tables import Table, open_table
from .targets import target_labels, target_numbers
from .values import Place

COVERAGE = 0.9


class Wanted(NamedTuple):
    """What `torchkrr evaluate` was asked for."""

    model: str
    table: str
    target: list[str] | None = None  # None: as in the fit
    chunk_rows: int = 10_000
    delimiter: str | None = None
    timeout: float = TIMEOUT  # seconds that processes wait for each other
    progress: bool = False


class Evaluated(NamedTuple):
    rows: int
    scores: dict[str, dict[str, float]]  # of each target
    seconds: float


def evaluate_table(wanted: Wanted) -> Evaluated:
    """Read and predict part by part; processes that torchrun has started do it together."""
    with ranks(wanted.timeout) as team:
        return _evaluate_table(wanted, team)


def _evaluate_table(wanted: Wanted, team: Alone) -> Evaluated:
    model = load(wanted.model)
    table = open_table(wanted.table, wanted.delimiter)
    targets = _targets(wanted, model, table)
    features = features_of_model(model, table, other=targets)
    used = [name for name in table.names if name in {*features.names, *targets}]
    scores: dict[str, Any] = {
        name: ClassificationScores() if hasattr(model, "classes_") else RegressionScores() for name in targets
    }
    team.share(model)
    start, done = time.monotonic(), 0
    total = table.num_rows() if wanted.progress else 0
    with Progress("evaluating", total, shown=wanted.progress) as bar:

        def read(part: Any, first: int) -> Any:
            return features.frame(part, Place(table.path, done + first + 1, table.delimiter is None))

        def predict(query: Any) -> dict[str, Any]:
            return _found(model, query)

        for part in table.parts(used, wanted.chunk_rows):
            place = Place(table.path, done + 1, table.delimiter is None)
            _add(scores, model, team.predicted(part, read, predict), part, place)
            done += part.num_rows
            bar.advance(part.num_rows, note=f"{done / (time.monotonic() - start):.0f} rows/s")
        bar.total = done
    return Evaluated(done, {name: score.result() for name, score in scores.items()}, time.monotonic() - start)


def _found(model: Any, query: Any) -> dict[str, Any]:
    """Columns of numbers: the probability of each class; or, for each target, prediction, deviation and limits."""
    if hasattr(model, "classes_"):
        parts = [model.predict_proba(query)]
    else:
        parts = [one.reshape(len(one), -1) for one in model.predict_with_interval(query, COVERAGE)]
    return {f"{number} {at}": part[:, at] for number, part in enumerate(parts) for at in range(part.shape[1])}


def _add(scores: dict[str, Any], model: Any, found: Mapping[str, Any], part: Any, place: Place) -> None:
    columns = {name: np.asarray(column, dtype=np.float64) for name, column in found.items()}
    if hasattr(model, "classes_"):
        ((name, score),) = scores.items()
        labels = target_labels(part.column(name), name, place, model.classes_)
        score.add(np.searchsorted(model.classes_, labels), np.stack(list(columns.values()), axis=1))
        return
    for at, (name, score) in enumerate(scores.items()):
        known = target_numbers(part.column(name), name, place)
        score.add(known, *(columns[f"{number} {at}"] for number in range(4)))


def _targets(wanted: Wanted, model: Any, table: Table) -> list[str]:
    targets = wanted.target or model.notes_.get("targets")
    if not targets:
        raise InputError(
            f"{wanted.model} does not say what its target is called. Name the column of {table.path}: --target."
        )
    count = 1 if hasattr(model, "classes_") else len(model.predictor_.offset)
    if len(targets) != count:
        raise InputError(f"{wanted.model} predicts {count} targets, got {len(targets)}: {', '.join(targets)}.")
    table.require(targets, "the target")
    return list(targets)
