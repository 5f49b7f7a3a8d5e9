"""`torchkrr predict`: a table of predictions, part by part, in one process or on all torchrun ranks."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._files import writable
from ..errors import InputError
from .options import add_delimiter, add_timeout, count, require_table_packages, share

if TYPE_CHECKING:
    from ..distributed.launch import SingleProcess
    from .tables import Part, Table

RESULT_OPTIONS = ("interval", "explain", "std", "proba", "carry", "chunk_rows", "delimiter")
Columns = Mapping[str, Any]
Write = Callable[[int, Columns], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a file written by fit")
    add("table", help="rows to predict, .csv or .parquet")
    add("--out", required=True, metavar="FILE", help="where predictions go, .csv or .parquet")
    add("--interval", type=share, metavar="P", help="limits that hold a new value with this probability")
    add("--explain", type=count, metavar="K", help="the K training rows of most weight, counted from 1")
    add("--std", action="store_true", help="standard deviations")
    add("--proba", action="store_true", help="the probability of each class")
    add("--id", dest="carry", metavar="COLUMN", help="a column that goes into the predictions as it is")
    add_reading(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that read a table part by part."""
    parser.add_argument("--chunk-rows", type=count, default=10_000, metavar="N", help="rows in memory at a time (10000)")
    add_timeout(parser)
    add_delimiter(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..distributed.launch import team

    with team(args.timeout) as everyone:
        rows, seconds = _predict_table(args, everyone)
    print(f"{rows} rows in {seconds:.1f} s: {args.out}")
    return {"out": args.out, "rows": rows, "seconds": seconds}


def _predict_table(args: argparse.Namespace, team: SingleProcess) -> tuple[int, float]:
    from ..estimators import load
    from .tables import model_features, open_table
    from .writing import output_delimiter

    output_delimiter(args.out)
    if team.is_first:  # the others need not have its folder
        writable(args.out, reads=[args.table, args.model])
    model = load(args.model)
    _check_options(args, model)
    table = open_table(args.table, args.delimiter)
    carried = [] if args.carry is None else [args.carry]
    table.require(carried, "named by --id")
    kinds = model_features(model, table, other=[*carried, *model.notes_.get("targets", [])])
    start, rows = time.monotonic(), 0

    def predict(query: Any) -> Columns:
        return _prediction_columns(model, query, args)

    with _writing(args, team) as (write, finished):
        parts = predict_parts(args, team, model, table, kinds, predict, others=carried, title="predicting", skip=finished)
        for number, (part, columns) in enumerate(parts):
            rows += part.data.num_rows
            if number < finished:
                continue
            if args.carry in columns:
                raise InputError(f"The result has a column {args.carry!r} of its own. Rename that column of {table.path}.")
            write(number, {name: part.data.column(name) for name in carried} | dict(columns))
    return rows, time.monotonic() - start


def predict_parts(
    args: argparse.Namespace,
    team: SingleProcess,
    model: Any,
    table: Table,
    kinds: Mapping[str, Any],
    predict: Callable[[Any], Columns],
    *,
    others: Collection[str],
    title: str,
    skip: int = 0,
) -> Iterator[tuple[Part, Columns]]:
    """Each part of a table, with the columns that `predict` makes of its features; empty for the first `skip` parts.

    `others` are columns that the parts hold besides the features. Ranks started by torchrun shard the training rows of the
    model, and each predicts some rows of every part.
    """
    from tqdm import tqdm

    from ..distributed import is_launched

    if is_launched():
        from ..distributed.estimators import shard

        shard(model)

    def features(part: Part) -> Any:
        frame = part.frame(kinds)
        return frame.to_numpy() if getattr(model, "feature_names_in_", None) is None else frame

    total = None if args.quiet else table.num_rows()
    with tqdm(total=total, desc=title, unit=" rows", disable=args.quiet) as bar:
        for number, part in enumerate(table.parts({*kinds, *others}, args.chunk_rows)):
            if number < skip:
                yield part, {}
            elif is_launched():
                yield part, _predict_together(team, part, features, predict)
            else:
                yield part, predict(features(part))
            bar.update(part.data.num_rows)
        bar.total = bar.n  # lines of a CSV file are not always rows


def _predict_together(team: Any, part: Part, features: Callable[[Part], Any], predict: Callable[[Any], Columns]) -> Columns:
    """All rows of a part, of which each rank predicts its own."""
    import numpy as np
    import pyarrow as pa
    import torch

    own = team.own(part.data.num_rows)
    # A rank for which no row is left predicts the first one too: predictions are made by all ranks together.
    idle = own.start == own.stop
    query: list[Any] = []
    team.comm.agree([], lambda: query.append(features(part.slice(slice(0, 1) if idle else own))))
    predicted = pa.table(dict(predict(query[0])))
    memory = pa.BufferOutputStream()
    with pa.ipc.new_stream(memory, predicted.schema) as stream:
        stream.write_table(predicted[:0] if idle else predicted)
    message = torch.from_numpy(np.frombuffer(memory.getvalue(), dtype=np.uint8).copy())
    sizes = team.comm.table([len(message)]).squeeze(1).tolist()
    messages = team.comm.gather(message, sizes, "predictions").split(sizes)
    joined = pa.concat_tables([pa.ipc.open_stream(pa.py_buffer(one.numpy())).read_all() for one in messages])
    return {name: joined.column(name).combine_chunks() for name in joined.column_names}


@contextlib.contextmanager
def _writing(args: argparse.Namespace, team: SingleProcess) -> Iterator[tuple[Write, int]]:
    """A function that writes a part with its number, and how many parts an earlier run has finished."""
    from ..distributed import is_launched
    from .writing import Parts, open_output, source_of

    if not is_launched():
        with open_output(args.out) as output:
            yield lambda _, columns: output.write(columns), 0
    elif team.is_first:
        source = source_of(args.model, args.table, {name: getattr(args, name) for name in RESULT_OPTIONS})
        parts = Parts(args.out, source)
        yield parts.write, team.first(lambda: parts.done)
        parts.join()
    else:
        yield lambda *_: None, team.first(lambda: 0)


def _prediction_columns(model: Any, query: Any, args: argparse.Namespace) -> Columns:
    """Columns of the result for some rows."""
    import pyarrow as pa

    if hasattr(model, "classes_"):
        probabilities = model.predict_proba(query)
        labels = model.classes_[probabilities.argmax(1)]
        columns = {"prediction": pa.array(labels.tolist(), pa.string()) if labels.dtype.kind in "OUS" else labels}
        if args.proba:
            columns |= {f"probability_{label}": probabilities[:, at] for at, label in enumerate(model.classes_.tolist())}
    else:
        columns = _regression_columns(model, query, args)
    return columns | (_explanation_columns(model, query, args.explain) if args.explain else {})


def _regression_columns(model: Any, query: Any, args: argparse.Namespace) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if args.interval is not None:
        columns["prediction"], columns["std"], columns["lower"], columns["upper"] = model.predict_with_interval(
            query, args.interval
        )
    elif args.std:
        columns["prediction"], columns["std"] = model.predict(query, return_std=True)
    else:
        columns["prediction"] = model.predict(query)
    if not args.std:
        columns.pop("std", None)
    count = 1 if columns["prediction"].ndim == 1 else columns["prediction"].shape[1]
    if count == 1:
        return {name: column.reshape(-1) for name, column in columns.items()}
    targets = model.notes_.get("targets", [str(at + 1) for at in range(count)])
    return {f"{name}_{target}": column[:, at] for at, target in enumerate(targets) for name, column in columns.items()}


def _explanation_columns(model: Any, query: Any, most: int) -> dict[str, Any]:
    """Numbers of training rows, counted from 1, and their weights; as many columns for every part."""
    import numpy as np
    import pyarrow as pa

    rows, weights = model.explain(query, n_rows=most)
    columns: dict[str, Any] = {}
    for at in range(min(most, model.n_samples_fit_)):
        inside = at < rows.shape[1]
        columns[f"row_{at + 1}"] = pa.array(rows[:, at] + 1 if inside else [None] * len(rows), pa.int64())
        columns[f"weight_{at + 1}"] = weights[:, at] if inside else np.zeros(len(rows), dtype=weights.dtype)
    return columns


def _check_options(args: argparse.Namespace, model: Any) -> None:
    classifies = hasattr(model, "classes_")
    for option, given in (("--interval", args.interval is not None), ("--std", args.std)):
        if classifies and given:
            raise InputError(f"{args.model} predicts classes, for which there is no {option}. Use --proba.")
    if args.proba and not classifies:
        raise InputError(f"{args.model} predicts numbers, for which there is no --proba. Use --std or --interval 0.9.")
