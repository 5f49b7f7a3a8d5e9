"""`torchkrr fit`: a model from a table."""

from __future__ import annotations

import argparse
import os
from typing import Any

from . import kinds, tables

KERNELS = ("auto", "exponential", "matern32", "matern52", "gaussian", "laplacian")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", help="training data, .csv or .parquet")
    add("--target", type=kinds.names, required=True, metavar="A,B", help="column to predict, or several")
    add("--out", required=True, metavar="FILE", help="where the model goes, such as model.krr")
    add("--task", choices=("auto", "regression", "classification"), default="auto", help="auto: by the target")
    add("--categorical", type=kinds.names, default=[], metavar="A,B", help="columns of numbers that are categories")
    add("--ignore", type=kinds.names, default=[], metavar="A,B", help="columns to leave out")
    add("--sample-weight", metavar="A", help="column with the weight of each row")
    add("--metric", choices=("auto", "none", "ard", "linear"), default="auto", help="what is learned of it")
    neighbors = kinds.auto_or(kinds.count, "a whole number of at least 1")
    add("--neighbors", type=neighbors, default="auto", metavar="N", help="rows per prediction")
    add("--alpha", type=kinds.auto_or(float, "a number"), default="auto", metavar="X", help="ridge")
    add("--kernel", choices=KERNELS, default="auto", help="auto: by leave-one-out")
    add("--seed", type=int, default=0, help="of the rows that choices are made on (0)")
    tables.add_delimiter(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    command = tables.command("fit")
    fitted = command.fit_table(tables.wanted(command, args))
    size = os.path.getsize(args.out)
    print(f"task      {fitted.task} of {', '.join(args.target)}, {fitted.rows} rows: {fitted.features.described()}")
    print(f"chosen    {fitted.chosen}")
    for name, scores in fitted.scores.items():
        unit = "" if fitted.task == "classification" else f" (in units of {name})"
        print(f"left out  {', '.join(f'{tables.label(key)} {value:.4g}' for key, value in scores.items())}{unit}")
    print(f"time      {fitted.seconds:.1f} s")
    print(f"model     {args.out} ({size / 1000:.0f} kB)")
    return {
        "model": args.out,
        "bytes": size,
        "task": fitted.task,
        "rows": fitted.rows,
        "features": list(fitted.features.names),
        "categorical": list(fitted.features.categorical),
        "chosen": {
            "kernel": type(fitted.model.kernel_).__name__,
            "alpha": float(fitted.model.alpha_),
            "neighbors": int(fitted.model.n_neighbors_),
        },
        "left_out": fitted.scores,
        "seconds": fitted.seconds,
    }
