"""`torchkrr fit`: a model from a table."""

from __future__ import annotations

import argparse
import math
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
    add(
        "--metric",
        choices=("auto", "none", "ard", "linear"),
        default="auto",
        help="what is learned about distances: nothing, a scale per column, a linear map",
    )
    neighbors = kinds.auto_or(kinds.count, "a whole number of at least 1")
    add("--neighbors", type=neighbors, default="auto", metavar="N", help="rows per prediction")
    add(
        "--alpha",
        type=kinds.auto_or(kinds.not_negative, "a number that is not negative"),
        default="auto",
        metavar="X",
        help="ridge: larger is smoother",
    )
    add("--kernel", choices=KERNELS, default="auto", help="auto: by leave-one-out")
    add("--seed", type=kinds.seed, default=0, help="of the rows that choices are made on, and of --folds (0)")
    add("--folds", type=kinds.folds, metavar="K", help="also K-fold cross-validation, with all choices made in each fold")
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
    for name, held in (fitted.held or {}).items():
        print(f"held out  {_held_line(name if len(args.target) > 1 else None, held, args.folds)}")
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
        "held_out": None if fitted.held is None else _plain(fitted.held),
        "seconds": fitted.seconds,
    }


def _held_line(name: str | None, held: dict[str, Any], folds: int) -> str:
    """Such as `RMSE 58.1 ± 3.2 (5 folds), coverage of 90 % 0.86`; with the name of the target where there are several."""
    first, second = [key for key in ("rmse", "accuracy", "coverage90", "log_loss") if key in held]
    of = "" if name is None else f" of {name}"
    mean, error, _ = held[first]
    # As many decimals as two digits of the error have.
    decimals = max(0, 1 - math.floor(math.log10(error))) if 0 < error < math.inf else 3
    main = f"{tables.label(first)}{of} {mean:.{decimals}f} ± {error:.{decimals}f} ({folds} folds)"
    return f"{main}, {tables.label(second)} {held[second].mean:.2f}"


def _plain(held: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: {key: score._asdict() for key, score in scores.items()} for name, scores in held.items()}
