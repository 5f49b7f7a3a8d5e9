"""`torchkrr transfer`: classifier heads on frozen features."""

from __future__ import annotations

import argparse
from typing import Any

from .options import (
    add_frozen_network,
    add_timeout,
    budgets,
    config_fields,
    report,
    require_frozen_packages,
    resumable,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _, network, readouts = add_frozen_network(parser, readouts="linear,mlp,sk,han-sk,knn,head", out="runs/transfer")
    network.add_argument("--layer", metavar="NAME", help="where features are taken from (before its classifier)")
    default = (100, 1000, 10_000, None)
    readouts.add_argument("--budgets", type=budgets, default=default, metavar="N,N,all", help="labels (100,1000,10000,all)")
    add_timeout(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_frozen_packages("torchkrr transfer", args)
    from ..distributed.launch import team
    from ..vision.summary import text_table
    from ..vision.transfer import WRITTEN, TransferConfig, run_together

    config = TransferConfig(**config_fields(args, "layer", "budgets"))
    with resumable(config.out), team(args.timeout) as everyone:
        outcome = run_together(config, everyone, progress=not args.quiet)
    if outcome is None:  # not the first of several processes
        return {}
    notes = [outcome.note] if outcome.note else []
    result = report(outcome, text_table(outcome.cells), WRITTEN, *notes)
    head, path = outcome.examination, outcome.out / "head.safetensors"
    print(f"head: right on {100 * head.accuracy:.1f} % of the test examples ({path})")
    return {**result, "notes": notes, "head": {"accuracy": head.accuracy, "indicator": head.indicator, "path": path}}
