"""`torchkrr evaluate`: how good predictions are, where what they should be is known."""

from __future__ import annotations

import argparse
import time
from typing import Any

from .options import add_data_and_model, add_reading, names, require_table_packages
from .predict import predict_parts, require_some
from .reports import count_classes, describe_classes, describe_model, say, say_found, say_next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_and_model(parser, "labeled rows: .csv, .parquet, .npz, .safetensors, or a folder of class folders")
    parser.add_argument("--target", type=names, metavar="A,B", help="columns of the targets, if not as in the fit")
    add_reading(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..distributed.launch import team
    from ..estimators import load
    from .opening import num_targets, open_rows, put_in_order
    from .scores import TITLES, Scores

    put_in_order(args)
    with team(args.timeout) as everyone:
        model = load(args.model)
        data = open_rows(args, model, args.data, labeled=True)
        classifies = hasattr(model, "classes_")
        targets = data.target_names(num_targets(model), classes=classifies)
        scores, rows, start = Scores(model, targets), 0, time.monotonic()
        seen: list[Any] = []
        parts = predict_parts(args, everyone, model, data, lambda _, points: scores.predict(points), title="evaluating")
        for piece, columns, whole in parts:
            known = (data.labels(piece, model.classes_) if classifies else data.targets(piece))[whole]
            if len(known):
                scores.add(known, columns)
            rows += len(known)
            seen += known.tolist() if classifies else []
        seconds = time.monotonic() - start
    require_some(data, rows)
    result = scores.result()
    say_found(data, rows)
    classes = count_classes(seen, model.classes_.tolist()) if classifies else None
    if classes is not None:
        say("classes", describe_classes(classes))
    say("model", f"{args.model}: {describe_model(model)}")
    for name, values in result.items():
        print(f"{name} ({rows} {data.unit})")
        for key, value in values.items():
            print(f"  {TITLES[key]:24}{value:.5g}")
    line = say_next("torchkrr", "update", args.model, "--add", data.path, "--out", "grown.krr")
    found = {"rows": rows, "skipped": data.skipped, "missing": data.missing, "classes": classes}
    return {**found, "seconds": seconds, "targets": result, "next": line}
