"""`torchkrr transfer`: heads on frozen features."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from ..errors import KernelRidgeError
from . import frozen, kinds
from .interrupts import resumable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    frozen.add_data(parser)
    network = frozen.add_network(parser)
    network.add_argument("--layer", metavar="NAME", help="where features are taken from (before its classifier)")
    readouts = frozen.add_readouts(parser, "all")
    readouts.add_argument(
        "--budgets",
        type=frozen.budgets,
        default=(100, 1000, 10_000, None),
        metavar="N,N,all",
        help="labels (100,1000,10000,all)",
    )
    readouts.add_argument(
        "--head",
        type=_head,
        metavar="NAME",
        help="readout to write as a head: sk, sk-select, faded (sk-select if run)",
    )
    frozen.add_results(parser, "runs/transfer")
    parser.add_argument("--timeout", type=kinds.count, default=60, metavar="S", help="of torchrun: wait for others (60 s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    frozen.check_packages("transfer", args)
    # Late: --help needs none of it.
    given = frozen.given(args, "layer", "budgets", "head")
    transfer = importlib.import_module("..vision.transfer", __package__)
    config = transfer.TransferConfig(**given)
    summary = importlib.import_module("..vision.summary", __package__)
    team = importlib.import_module("..distributed.launch", __package__)
    with resumable(config.out), team.team(args.timeout) as everyone:
        outcome = transfer.run_together(config, everyone, progress=not args.quiet)
    if outcome is None:  # not the first of several processes
        return {}
    written = [outcome.out / name for name in transfer.WRITTEN]
    notes = [outcome.note] if outcome.note else []
    shown = frozen.show(outcome, summary.text_table(outcome.cells), written, *notes)
    head, path = outcome.head_summary, outcome.out / "head.safetensors"
    print(f"head: {head.title}, right on {100 * head.accuracy:.1f} % of the test examples ({path})")
    return {**shown, "notes": notes, "head": {**head._asdict(), "path": path}}


def _head(text: str) -> str:
    try:
        importlib.import_module("..vision.readouts", __package__).head_named(text)
    except KernelRidgeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
