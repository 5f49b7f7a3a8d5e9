"""`torchkrr predict`: a table of predictions."""

from __future__ import annotations

import argparse
from typing import Any

from . import kinds, tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a file written by fit")
    add("table", help="rows to predict, .csv or .parquet")
    add("--out", required=True, metavar="FILE", help="where predictions go, .csv or .parquet")
    add("--interval", type=kinds.share, metavar="P", help="limits that hold a new value with this probability")
    add("--explain", type=kinds.count, metavar="K", help="the K training rows of most weight, counted from 1")
    add("--std", action="store_true", help="standard deviations")
    add("--proba", action="store_true", help="the probability of each class")
    add("--id", dest="carry", metavar="COLUMN", help="a column that goes into the predictions as it is")
    tables.add_parts(parser)
    tables.add_delimiter(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    command = tables.command("predict")
    found = command.predict_table(tables.wanted(command, args))
    print(f"{found.rows} rows in {found.seconds:.1f} s: {args.out}")
    return {"out": args.out, "rows": found.rows, "seconds": found.seconds}
