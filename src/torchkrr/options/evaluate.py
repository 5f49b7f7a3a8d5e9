"""`torchkrr evaluate`: how good the predictions of a table are."""

from __future__ import annotations

import argparse
from typing import Any

from . import kinds, tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file written by fit")
    parser.add_argument("table", help="rows with their targets, .csv or .parquet")
    parser.add_argument("--target", type=kinds.names, metavar="A,B", help="columns of the targets, if not as in the fit")
    tables.add_parts(parser)
    tables.add_delimiter(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    command = tables.command("evaluate")
    found = command.evaluate_table(tables.wanted(command, args))
    for name, scores in found.scores.items():
        print(f"{name} ({found.rows} rows)")
        for key, value in scores.items():
            print(f"  {tables.label(key):24}{value:.5g}")
    return {"rows": found.rows, "seconds": found.seconds, "targets": found.scores}
