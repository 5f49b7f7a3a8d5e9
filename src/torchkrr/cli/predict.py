"""`torchkrr predict`: predictions, part by part, in one process or on all torchrun ranks."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._files import writable
from ..errors import InputError
from .options import add_data_and_model, add_reading, add_store_instead, count, require_table_packages, share
from .reports import describe_model, say, say_found, say_next, say_prediction

if TYPE_CHECKING:
    from ..distributed.launch import SingleProcess
    from .data import Data

RESULT_OPTIONS = ("interval", "explain", "std", "proba", "set", "carry", "chunk_rows", "delimiter")
REASONS = 3  # training pictures that are named for a picture
KEPT = "\0kept"  # a column: which rows of a piece could be read
Columns = Mapping[str, Any]
Write = Callable[[int, Columns], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = add_data_and_model(
        parser, "what to predict: .csv, .parquet, .npz, .safetensors, or pictures and folders of them"
    )
    add_store_instead(parser, model)
    add("--out", metavar="FILE", help="where predictions go, .csv or .parquet (they are printed)")
    add("--explain", type=count, metavar="K", help="the K training rows of most weight (3 for pictures)")
    add("--proba", action="store_true", help="the probability of each class")
    add("--set", type=share, metavar="P", help="for each class, if it is in the set that holds the right one so often")
    add("--interval", type=share, metavar="P", help="limits that hold a new value with this probability")
    add("--std", action="store_true", help="standard deviations")
    add("--id", dest="carry", metavar="COLUMN", help="a column that goes into the predictions as it is")
    add_reading(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..distributed.launch import team
    from .opening import put_in_order

    if args.store is None:
        put_in_order(args)
    else:
        from ..stores import without_password

        args.data += [] if args.model is None else [args.model]
        args.model = without_password(args.store)
    with team(args.timeout) as everyone, contextlib.ExitStack() as stack:
        return _predict(args, everyone, stack)


def _predict(args: argparse.Namespace, team: SingleProcess, stack: contextlib.ExitStack) -> dict[str, Any]:
    import pyarrow as pa

    from ..distributed import is_launched
    from ..estimators import load
    from .opening import open_rows
    from .writing import output_delimiter

    if args.out is not None:
        output_delimiter(args.out)
        if team.is_first:  # the others need not have its folder
            writable(args.out, reads=[*args.data, args.model, args.weights])
    elif is_launched():
        raise InputError("Several processes write one file of predictions. Name it: --out FILE.")
    if args.store is None:
        model = load(args.model)
    else:
        from ..stores import open_head, open_store

        model = open_head(stack.enter_context(open_store(args.store)))
    _check_options(args, model)
    data = open_rows(args, model, args.data, labeled=False)
    answers, start, rows = Answers(model, data, args), time.monotonic(), 0
    printed: list[dict[str, Any]] = []
    with _writing(args, team) as (write, finished):
        parts = predict_parts(args, team, model, data, answers.columns, title="predicting", skip=finished)
        for number, (piece, columns, _) in enumerate(parts):
            if number < finished:
                rows += data.length(piece)
            elif args.out is not None:
                rows += len(next(iter(columns.values())))
                write(number, columns)
            else:
                for row in pa.table(columns).to_pylist():
                    rows += 1
                    printed += [row] if args.json else []
                    say_prediction(row, rows)
        require_some(data, rows)
    seconds = time.monotonic() - start
    say_found(data, rows)
    say("model", f"{args.model}: {describe_model(model)}")
    say("time", f"{rows} {data.unit} in {seconds:.1f} s" + ("" if args.out is None else f": {args.out}"))
    if args.out is None:
        named = [args.model] if args.store is None else ["--store", args.model]
        line = say_next("torchkrr", "predict", *args.data, *named, "--out", "predictions.csv")
    else:
        reader = "read_parquet" if args.out.endswith(".parquet") else "read_csv"
        line = say_next("python", "-c", f"import pandas; print(pandas.{reader}({json.dumps(args.out)}))")
    found = {"out": args.out, "rows": rows, "skipped": data.skipped, "missing": data.missing, "seconds": seconds}
    return {**found, **({"predictions": printed} if args.out is None else {}), "next": line}


def require_some(data: Data, rows: int) -> None:
    if not rows:
        raise InputError(f"None of the {data.skipped} pictures of {data.path} can be read: {', '.join(data.broken[:3])} ...")


def predict_parts(
    args: argparse.Namespace,
    team: SingleProcess,
    model: Any,
    data: Data,
    predict: Callable[[Any, Any], Columns],
    *,
    title: str,
    skip: int = 0,
) -> Iterator[tuple[Any, Columns, Any]]:
    """Each piece of the data, the columns that `predict` makes of it and its points, and which rows of it could be read.

    The columns hold those rows alone; there are none for the first `skip` pieces. Ranks started by torchrun each predict
    some rows of every piece; of a model of a table each holds a part of the training rows.
    """
    import numpy as np
    import pyarrow as pa
    from tqdm import tqdm

    from ..distributed import is_launched

    in_store = getattr(args, "store", None) is not None
    if (
        is_launched() and data.kind == "table" and not in_store
    ):  # those of pictures and texts are small beside their networks
        from ..distributed.estimators import shard

        shard(model)

    size = args.chunk_rows or data.at_once
    total = None if args.quiet else data.num_rows()
    with tqdm(total=total, desc=title, unit=f" {data.unit}", disable=args.quiet) as bar:
        for number, piece in enumerate(data.pieces(size)):
            data.missing += data.missing_in(piece)
            if number < skip:
                yield piece, {}, None
            else:
                if is_launched():
                    table = _predict_together(team, data, piece, predict)
                else:
                    table = _predicted(piece, data.points(piece), predict)
                whole = np.asarray(table.column(KEPT))
                data.skipped += int((~whole).sum())
                table = table.drop_columns(KEPT).filter(pa.array(whole))
                yield piece, {name: table.column(name).combine_chunks() for name in table.column_names}, whole
            bar.update(data.length(piece))
        bar.total = bar.n  # lines of a CSV file are not always rows


def _predicted(piece: Any, read: tuple[Any, Any], predict: Callable[[Any, Any], Columns]) -> Any:
    """An arrow table of predictions, with a column that says which rows could be read."""
    import numpy as np
    import pyarrow as pa

    points, whole = read
    kept = np.ones(len(points), dtype=bool) if whole is None else whole
    return pa.table({**predict(piece, points), KEPT: kept})


def _predict_together(team: Any, data: Data, piece: Any, predict: Callable[[Any, Any], Columns]) -> Any:
    """All rows of a piece, of which each rank predicts its own."""
    import numpy as np
    import pyarrow as pa
    import torch

    own = team.own(data.length(piece))
    # A rank for which no row is left predicts the first one too: predictions are made by all ranks together.
    idle = own.start == own.stop
    part = data.cut(piece, slice(0, 1) if idle else own)
    read: list[tuple[Any, Any]] = []
    team.comm.agree([], lambda: read.append(data.points(part)))
    predicted = _predicted(part, read[0], predict)
    memory = pa.BufferOutputStream()
    with pa.ipc.new_stream(memory, predicted.schema) as stream:
        stream.write_table(predicted[:0] if idle else predicted)
    message = torch.from_numpy(np.frombuffer(memory.getvalue(), dtype=np.uint8).copy())
    sizes = team.comm.table([len(message)]).squeeze(1).tolist()
    messages = team.comm.gather(message, sizes, "predictions").split(sizes)
    return pa.concat_tables([pa.ipc.open_stream(pa.py_buffer(one.numpy())).read_all() for one in messages])


@contextlib.contextmanager
def _writing(args: argparse.Namespace, team: SingleProcess) -> Iterator[tuple[Write, int]]:
    """A function that writes a part with its number, and how many parts an earlier run has finished."""
    from ..distributed import is_launched
    from .writing import Parts, open_output, source_of

    if args.out is None:
        yield lambda *_: None, 0
    elif not is_launched():
        with open_output(args.out) as output:
            yield lambda _, columns: output.write(columns), 0
    elif team.is_first:
        source = source_of(args.model, args.data, {name: getattr(args, name) for name in RESULT_OPTIONS})
        parts = Parts(args.out, source)
        yield parts.write, team.first(lambda: parts.done)
        parts.join()
    else:
        yield lambda *_: None, team.first(lambda: 0)


class Answers:
    """Columns of the result for some rows, as the options ask for them."""

    def __init__(self, model: Any, data: Data, args: argparse.Namespace) -> None:
        self.model, self.data, self.args = model, data, args
        self.pictures = data.kind == "images"
        self.reasons = REASONS if args.explain is None and self.pictures else args.explain
        self.labels = None  # of the training rows that are named
        if hasattr(model, "classes_") and model.ids_ is not None:
            self.labels = model.classes_[model.predictor_.rows.values.argmax(1).numpy()]

    def columns(self, piece: Any, points: Any) -> Columns:
        carried, own = self.data.carried(piece), self._predictions(points)
        for name in carried:
            if name in own:
                raise InputError(f"The result has a column {name!r} of its own. Rename that column of {self.data.path}.")
        return {**carried, **own}

    def _predictions(self, points: Any) -> dict[str, Any]:
        classes = hasattr(self.model, "classes_")
        columns = self._classes(points) if classes else _regression_columns(self.model, points, self.args)
        if self.pictures:
            columns |= {"error_indicator": self.model.error_indicator(points), "typicality": self.model.typicality(points)}
        return columns | (self._reasons(points, self.reasons) if self.reasons else {})

    def _classes(self, points: Any) -> dict[str, Any]:
        import pyarrow as pa

        model = self.model
        probabilities, names = model.predict_proba(points), model.classes_.tolist()
        labels = model.classes_[probabilities.argmax(1)]
        columns: dict[str, Any] = {
            "prediction": pa.array(labels.tolist(), pa.string()) if labels.dtype.kind in "OUS" else labels
        }
        if self.pictures:
            columns["probability"] = probabilities.max(1)
        if self.args.proba:
            columns |= {f"probability_{label}": probabilities[:, at] for at, label in enumerate(names)}
        if self.args.set is not None:
            inside = model.predict_set(points, self.args.set)
            columns |= {f"set_{label}": inside[:, at] for at, label in enumerate(names)}
        return columns

    def _reasons(self, points: Any, most: int) -> dict[str, Any]:
        """Names of training rows, or their numbers from 1, and their weights; as many columns for every part."""
        import numpy as np
        import pyarrow as pa

        found = self.model.explain(points, n_rows=most)
        columns: dict[str, Any] = {}
        names = found.indices if found.indices.dtype == object else found.ids  # of a store, or of the model
        for at in range(min(most, self.model.n_samples_fit_)):
            inside = at < found.indices.shape[1]
            nothing = [None] * len(points)
            weights = found.weights[:, at] if inside else np.zeros(len(points), dtype=found.weights.dtype)
            if names is None:
                columns[f"row_{at + 1}"] = pa.array(found.indices[:, at] + 1 if inside else nothing, pa.int64())
                columns[f"weight_{at + 1}"] = weights
                continue
            columns[f"because_{at + 1}"] = pa.array([str(name) for name in names[:, at]] if inside else nothing, pa.string())
            if self.labels is not None:
                labels = [str(label) for label in self.labels[found.indices[:, at]]] if inside else nothing
                columns[f"because_{at + 1}_label"] = pa.array(labels, pa.string())
            columns[f"because_{at + 1}_weight"] = weights
        return columns


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


def _check_options(args: argparse.Namespace, model: Any) -> None:
    classifies = hasattr(model, "classes_")
    for option, given in (("--interval", args.interval is not None), ("--std", args.std)):
        if classifies and given:
            raise InputError(f"{args.model} predicts classes, for which there is no {option}. Use --proba or --set 0.9.")
    for option, given in (("--proba", args.proba), ("--set", args.set is not None)):
        if given and not classifies:
            raise InputError(f"{args.model} predicts numbers, for which there is no {option}. Use --std or --interval 0.9.")
