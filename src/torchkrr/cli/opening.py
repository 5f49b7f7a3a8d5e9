"""Which kind of data a path is, and whether it fits what was asked for and the model."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import FileError, InputError
from .arrays import ENDINGS, FeatureData
from .data import Columns, Data, TableData, TextData
from .options import warn
from .tables import Table, model_features, open_table

KINDS = {
    "table": "a table (.csv, .parquet)",
    "text": "a table with a column of text (.csv, .parquet)",
    "images": "a folder of pictures",
    "features": "a features file (.npz, .safetensors)",
}
# Options of single kinds of data, and the value that says nothing.
OPTIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
    **dict.fromkeys(("categorical", "ignore"), ([], ("table",))),
    **dict.fromkeys(("target", "sample_weight", "id", "groups", "carry", "delimiter"), (None, ("table", "text"))),
    **dict.fromkeys(("backbone", "weights", "size", "layer", "cache"), (None, ("images",))),
    **dict.fromkeys(("random_weights", "strict"), (False, ("images",))),
    **dict.fromkeys(("text", "encoder"), (None, ("text",))),
}


def open_training(args: argparse.Namespace) -> Data:
    """The labeled rows that `fit` is given."""
    kind = _kind_of(args.data)
    kind = "text" if kind == "table" and args.text is not None else kind
    _check_options(args, args.data, kind)
    if kind == "features":
        return FeatureData(args.data)
    if kind == "images":
        from .pictures import training_images

        return training_images(args)
    if not args.target:
        raise InputError(f"{args.data} is a table. Name the column to predict: --target COLUMN.")
    table = open_table(args.data, args.delimiter)
    for option in ("target", "categorical", "ignore"):
        table.require(getattr(args, option) or [], f"named by --{option}")
    columns = Columns(args.target, args.id, args.groups, args.sample_weight)
    for option, name in (("id", args.id), ("groups", args.groups), ("sample-weight", args.sample_weight)):
        table.require([] if name is None else [name], f"named by --{option}")
    if kind == "text":
        from ..text import open_encoder

        table.require([args.text], "named by --text")
        if args.encoder is None:
            raise InputError("A column of text needs a sentence encoder of sentence-transformers: --encoder NAME_OR_PATH.")
        return TextData(table, columns, args.text, open_encoder(args.encoder))
    features = [name for name in table.data if name not in {*columns.names, *args.ignore}]
    if not features:
        raise InputError(f"{table.path} has no columns to predict from besides {', '.join(args.target)}.")
    data = TableData(table, columns, dict.fromkeys(features, "text"))
    data.given_categories = args.categorical
    return data


def open_rows(args: argparse.Namespace, model: Any, path: str | Sequence[str], *, labeled: bool) -> Data:
    """Rows for a fitted model, of the kind it was fitted to: with what is to be predicted, if `labeled`."""
    paths = [path] if isinstance(path, str) else list(path)
    notes = model.notes_.get("input", {})
    kind, given = notes.get("kind"), _kind_of(paths[0])
    if kind is None and given != "images":  # saved in Python, or by 0.1.0
        kind = given
    if given != ("table" if kind == "text" else kind):
        raise InputError(
            f"{args.model} was fitted to {KINDS[kind or 'table']}, but {paths[0]} is {KINDS[given]}. Give it such data."
        )
    _check_options(args, paths[0], kind)
    if kind == "images":
        from .pictures import images_for

        return images_for(args, notes["backbone"], paths, labeled=labeled)
    if len(paths) > 1:
        raise InputError(f"One file can be read at a time, got {', '.join(paths)}. Several pictures can be given together.")
    if kind == "features":
        return FeatureData(paths[0], model.n_features_in_)
    table = open_table(paths[0], args.delimiter)
    return _table_for(args, model, table, notes, labeled=labeled)


def _table_for(args: argparse.Namespace, model: Any, table: Table, notes: Mapping[str, Any], *, labeled: bool) -> TableData:
    targets = getattr(args, "target", None) or model.notes_.get("targets") or []
    carried = getattr(args, "carry", None)
    table.require([] if carried is None else [carried], "named by --id")
    columns = Columns(carried=carried)
    if labeled:
        columns = columns._replace(targets=_checked_targets(args, model, table, targets))
        if getattr(args, "add", None):
            columns = Columns(columns.targets, notes.get("id"), notes.get("groups"), notes.get("weights"))
        table.require(columns.targets, "the target")
        table.require(columns.names, "which the model was fitted with")
    if notes.get("kind") == "text":
        from ..text import open_encoder

        table.require([notes["column"]], "the text that the model was fitted to")
        encoder = open_encoder(getattr(args, "encoder", None) or notes["encoder"])
        if encoder.fingerprint != notes["fingerprint"]:
            raise InputError(
                f"The encoder {encoder.name} is not the one that the model was fitted with, so its features would mean "
                "something else. Name the same one: --encoder NAME_OR_PATH."
            )
        return TextData(table, columns, notes["column"], encoder)
    others = {*targets, *columns.names, *(notes.get(name) for name in ("id", "groups", "weights"))}
    data = TableData(table, columns, model_features(model, table, other=others - {None}))
    data.named = getattr(model, "feature_names_in_", None) is not None
    return data


def _checked_targets(args: argparse.Namespace, model: Any, table: Table, targets: Sequence[str]) -> list[str]:
    if not targets:
        raise InputError(f"{args.model} does not say what its target is called. Name the column of {table.path}: --target.")
    count = num_targets(model)
    if len(targets) != count:
        raise InputError(f"{args.model} predicts {count} targets, got {len(targets)}: {', '.join(targets)}.")
    return list(targets)


def num_targets(model: Any) -> int:
    return 1 if hasattr(model, "classes_") else len(model.predictor_.offset)


def _check_options(args: argparse.Namespace, path: str, kind: str) -> None:
    for option, (nothing, kinds) in OPTIONS.items():
        if kind not in kinds and getattr(args, option, nothing) != nothing:
            name = {"carry": "id"}.get(option, option.replace("_", "-"))
            raise InputError(f"--{name} is for {KINDS[kinds[0]]}, but {path} is {KINDS[kind]}. Leave it out.")


def _kind_of(path: str) -> str:
    """`table`, `features` or `images`."""
    from ..vision.datasets import IMAGE_SUFFIXES

    file = pathlib.Path(path)
    if not file.exists():
        raise FileError(f"{path} cannot be read: No such file or folder.")
    if file.is_dir() or file.suffix.lower() in IMAGE_SUFFIXES:
        return "images"
    return "features" if file.suffix.lower() in ENDINGS else "table"


def put_in_order(args: argparse.Namespace) -> None:
    """Data and model, in the order of 0.1.0 as well, where the model came first."""
    if is_model(args.data[0]) and not is_model(args.model):
        first = args.data[0]
        args.data, args.model = [*args.data[1:], args.model], first
        if args.command != "classify":  # which says so already
            warn(f"The data comes first now, then the model: torchkrr {args.command} DATA {first}.")


def is_model(path: str) -> bool:
    """Whether a file says that it is a model of torchkrr."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return length < 100_000_000 and "torchkrr" in json.loads(file.read(length)).get("__metadata__", {})
    except (OSError, ValueError, AttributeError):
        return False
