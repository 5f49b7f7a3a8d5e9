"""`torchkrr evaluate`: how good the predictions of a table are."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ..errors import InputError
from .options import names, require_table_packages
from .predict import add_reading, predict_parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file written by fit")
    parser.add_argument("table", help="rows with their targets, .csv or .parquet")
    parser.add_argument("--target", type=names, metavar="A,B", help="columns of the targets, if not as in the fit")
    add_reading(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..distributed.launch import team
    from ..estimators import load
    from .scores import TITLES, Scores
    from .tables import model_features, open_table

    with team(args.timeout) as everyone:
        model = load(args.model)
        table = open_table(args.table, args.delimiter)
        targets = _targets(args, model)
        table.require(targets, "the target")
        kinds = model_features(model, table, other=targets)
        scores, rows, start = Scores(model, targets), 0, time.monotonic()
        parts = predict_parts(args, everyone, model, table, kinds, scores.predict, others=targets, title="evaluating")
        for part, columns in parts:
            classes = scores.classifies
            known = part.target_labels(targets[0], model.classes_) if classes else part.target_numbers(targets)
            scores.add(known, columns)
            rows += part.data.num_rows
        seconds = time.monotonic() - start
    result = scores.result()
    for name, values in result.items():
        print(f"{name} ({rows} rows)")
        for key, value in values.items():
            print(f"  {TITLES[key]:24}{value:.5g}")
    return {"rows": rows, "seconds": seconds, "targets": result}


def _targets(args: argparse.Namespace, model: Any) -> list[str]:
    targets = args.target or model.notes_.get("targets")
    if not targets:
        raise InputError(f"{args.model} does not say what its target is called. Name the column of {args.table}: --target.")
    count = 1 if hasattr(model, "classes_") else len(model.predictor_.offset)
    if len(targets) != count:
        raise InputError(f"{args.model} predicts {count} targets, got {len(targets)}: {', '.join(targets)}.")
    return list(targets)
