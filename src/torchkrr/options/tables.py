"""What the commands for tables have in common."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from . import kinds

LABELS = {"rmse": "RMSE", "mae": "MAE", "r2": "R2", "nll": "NLL", "coverage90": "coverage of 90 %", "log_loss": "log-loss"}


def add_delimiter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delimiter", type=kinds.delimiter, metavar="C", help="of a CSV file: one character, or tab")


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Of commands that read a part at a time, and that torchrun may start."""
    parser.add_argument(
        "--chunk-rows", type=kinds.count, default=10_000, metavar="N", help="rows in memory at a time (10000)"
    )
    parser.add_argument(
        "--timeout", type=kinds.count, default=60, metavar="S", help="of torchrun: wait for a process (60 s)"
    )


def command(name: str) -> Any:
    # Late: --version and --help need no tables.
    return importlib.import_module(f"..commands.{name}", __package__)


def wanted(module: Any, args: argparse.Namespace) -> Any:
    """The arguments of a command, under the names that they have here."""
    args.progress = not args.quiet
    return module.Wanted(**{name: getattr(args, name) for name in module.Wanted._fields})


def label(key: str) -> str:
    return LABELS.get(key, key.replace("_", " "))
