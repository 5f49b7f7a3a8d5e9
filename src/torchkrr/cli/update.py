"""`torchkrr update`: add rows to a fitted model, or remove some, without choosing anything again."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from typing import Any

from .._files import writable
from ..errors import InputError
from .fit import reading
from .options import add_delimiter, add_pictures, names, require_table_packages
from .reports import count_classes, describe_classes, describe_model, say, say_found, say_next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a file written by fit, transfer or update")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    add("--add", **repeated, metavar="PATH", help="labeled rows of the kind of the fit (repeatable)")
    add("--remove", **repeated, metavar="NAME", help="a row, or several, such as 'cat/*' (repeatable)")
    add("--out", required=True, metavar="FILE", help="where the changed model goes")
    add("--target", type=names, metavar="A,B", help="columns of the targets, if not as in the fit")
    add("--encoder", metavar="PATH", help="of text, if it is not where it was in the fit")
    add_delimiter(parser)
    pictures = parser.add_argument_group("pictures")
    add_pictures(pictures)
    pictures.add_argument("--cache", metavar="DIR", help="keep the features of pictures (they are removed at the end)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not args.add and not args.remove:
        raise InputError("There is nothing to do: give rows to --add or --remove.")
    require_table_packages()
    from ..estimators import load
    from .opening import open_rows

    writable(args.out, reads=[*args.add, args.weights])  # a model may be changed in its place
    model = load(args.model)
    before = model.n_samples_fit_
    if args.remove:
        model.forget(ids=named(model, args.model, args.remove))
    removed = before - model.n_samples_fit_
    for path in args.add:
        data = open_rows(args, model, path, labeled=True)
        with reading(data, args) as (piece, points):
            _add(model, data, piece, points)
        say_found(data, data.length(piece))
    model.notes_.pop("key", None)  # it is no longer what transfer fitted
    model.save(args.out)
    added = model.n_samples_fit_ - before + removed
    say("rows", f"{model.n_samples_fit_}: {added} added, {removed} removed")
    classes = None
    if hasattr(model, "classes_"):
        rows = model.predictor_.rows.values.argmax(1).numpy()
        classes = count_classes(model.classes_[rows].tolist(), model.classes_.tolist())
        say("classes", describe_classes(classes))
    say("model", f"{args.out}: {describe_model(model)}")
    line = say_next("torchkrr", "predict", *(args.add[:1] or ["DATA"]), args.out, "--out", "predictions.csv")
    counts = {"rows": model.n_samples_fit_, "added": added, "removed": removed, "classes": classes}
    return {**counts, "out": args.out, "next": line}


def _add(model: Any, data: Any, piece: Any, points: Any) -> None:
    classifies = hasattr(model, "classes_")
    values = data.labels(piece, model.classes_, new=True) if classifies else data.targets(piece)
    names = None
    if model.ids_ is not None:
        names = data.names(piece) or [f"{data.path} row {row + 1}" for row in range(len(values))]
    weights, groups = data.weights(piece), data.groups(piece)
    model.partial_fit(points, values, sample_weight=weights, groups=groups, ids=names)


def named(model: Any, path: str, patterns: Sequence[str]) -> list[str]:
    """The names of rows that are given, or that match a pattern; `*` and `?` stand for any letters."""
    from .._checks import nearest_name

    if model.ids_ is None:
        raise InputError(f"The rows of {path} have no names. Fit it again with names: --id COLUMN, or an array `ids`.")
    ids = [str(name) for name in model.ids_.tolist()]
    removed: dict[str, None] = {}
    for pattern in patterns:
        found = [name for name in ids if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not found:
            near = nearest_name(pattern, ids)
            hint = f"Did you mean {near}?" if near is not None else f"Its rows have names such as {ids[0]}."
            raise InputError(f"{path} has no row {pattern}. {hint}")
        removed |= dict.fromkeys(found)
    return list(removed)
