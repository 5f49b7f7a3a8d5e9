"""Predictions for a table, a part at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .._files import writable
from .._progress import Progress
from ..distributed.launch import TIMEOUT
from ..errors import InputError
from ..estimators import load
from .features import features_of_model
from .parts import about, resumable
from .ranks import Alone, Ranks, ranks
from .tables import open_table
from .values import Array, Place
from .writing import output, output_kind

Write = Callable[[int, Mapping[str, Any]], None]


class Wanted(NamedTuple):
    """What `torchkrr predict` was asked for."""

    model: str
    table: str
    out: str
    interval: float | None = None
    explain: int | None = None
    std: bool = False
    proba: bool = False
    carry: str | None = None  # a column of the table that goes into the result as it is
    chunk_rows: int = 10_000
    delimiter: str | None = None
    timeout: float = TIMEOUT  # seconds that processes wait for each other
    progress: bool = False


class Predicted(NamedTuple):
    rows: int
    seconds: float


def predict_table(wanted: Wanted) -> Predicted:
    """Read, predict and write part by part; `wanted.out` is there at the end, or not at all.

    Processes that torchrun has started do it together, and go on where an earlier run was stopped.
    """
    with ranks(wanted.timeout) as team:
        return _predict_table(wanted, team)


def _predict_table(wanted: Wanted, team: Alone) -> Predicted:
    output_kind(wanted.out)
    if not isinstance(team, Ranks) or team.is_first:  # the others need not have its folder
        writable(wanted.out, reads=[wanted.table, wanted.model])
    model = load(wanted.model)
    _check(wanted, model)
    table = open_table(wanted.table, wanted.delimiter)
    carried = [wanted.carry] if wanted.carry is not None else []
    table.require(carried, "named by --id")
    features = features_of_model(model, table, other=[*carried, *model.notes_.get("targets", [])])
    used = [name for name in table.names if name in {*features.names, *carried}]
    team.share(model)
    start, done = time.monotonic(), 0
    total = table.num_rows() if wanted.progress else 0

    def read(part: Any, first: int) -> Any:
        return features.frame(part, Place(table.path, done + first + 1, table.delimiter is None))

    def predict(query: Any) -> dict[str, Any]:
        return predictions(model, query, wanted)

    with _writing(wanted, team) as (write, finished), Progress("predicting", total, shown=wanted.progress) as bar:
        for number, part in enumerate(table.parts(used, wanted.chunk_rows)):
            if number >= finished:
                columns = {name: part.column(name) for name in carried}
                found = dict(team.predicted(part, read, predict))
                if set(columns) & set(found):
                    raise InputError(
                        f"The result has a column {wanted.carry!r} of its own. Rename that column of {table.path}."
                    )
                write(number, columns | found)
            done += part.num_rows
            bar.advance(part.num_rows, note=f"{done / (time.monotonic() - start):.0f} rows/s")
        bar.total = done
    return Predicted(done, time.monotonic() - start)


@contextlib.contextmanager
def _writing(wanted: Wanted, team: Alone) -> Iterator[tuple[Write, int]]:
    """How a part with its number is written, and how many parts are there from an earlier run."""
    if not isinstance(team, Ranks):
        with output(wanted.out) as out:
            yield lambda _, columns: out.write(columns), 0
        return
    if not team.is_first:
        yield lambda *_: None, team.first(lambda: 0)
        return
    options = wanted._replace(model="", table="", out="", progress=False, timeout=0)._asdict()
    with resumable(wanted.out, about(wanted.model, wanted.table, options)) as parts:
        yield parts.write, team.first(lambda: parts.done)


def predictions(model: Any, query: Any, wanted: Wanted) -> dict[str, Any]:
    """Columns of the result for some rows."""
    if hasattr(model, "classes_"):
        probabilities = model.predict_proba(query)
        found = {"prediction": _labels(model.classes_[probabilities.argmax(1)])}
        if wanted.proba:
            found |= {f"probability_{label}": probabilities[:, at] for at, label in enumerate(model.classes_.tolist())}
    else:
        found = _regression(model, query, wanted)
    return found | (_explained(model, query, wanted.explain) if wanted.explain else {})


def _regression(model: Any, query: Any, wanted: Wanted) -> dict[str, Any]:
    parts: dict[str, Array] = {}
    if wanted.interval is not None:
        parts["prediction"], parts["std"], parts["lower"], parts["upper"] = model.predict_with_interval(
            query, wanted.interval
        )
    elif wanted.std:
        parts["prediction"], parts["std"] = model.predict(query, return_std=True)
    else:
        parts["prediction"] = model.predict(query)
    if not wanted.std:
        parts.pop("std", None)
    count = 1 if parts["prediction"].ndim == 1 else parts["prediction"].shape[1]
    targets = model.notes_.get("targets", [str(at + 1) for at in range(count)])
    if count == 1:
        return {name: part.reshape(-1) for name, part in parts.items()}
    return {f"{name}_{target}": part[:, at] for at, target in enumerate(targets) for name, part in parts.items()}


def _explained(model: Any, query: Any, most: int) -> dict[str, Any]:
    """Numbers of training rows, the first of which is 1, and their weights; as many columns for every part."""
    rows, weights = model.explain(query, n_rows=most)
    found: dict[str, Any] = {}
    for at in range(min(most, model.n_samples_fit_)):
        inside = at < rows.shape[1]
        found[f"row_{at + 1}"] = pa.array(rows[:, at] + 1 if inside else [None] * len(rows), pa.int64())
        found[f"weight_{at + 1}"] = weights[:, at] if inside else np.zeros(len(rows), dtype=weights.dtype)
    return found


def _labels(found: Array) -> Any:
    return pa.array(found.tolist(), pa.string()) if found.dtype.kind in "OUS" else found


def _check(wanted: Wanted, model: Any) -> None:
    classifies = hasattr(model, "classes_")
    for option, given in (("--interval", wanted.interval is not None), ("--std", wanted.std)):
        if classifies and given:
            raise InputError(f"{wanted.model} predicts classes, for which there is no {option}. Use --proba.")
    if wanted.proba and not classifies:
        raise InputError(f"{wanted.model} predicts numbers, for which there is no --proba. Use --std or --interval 0.9.")
