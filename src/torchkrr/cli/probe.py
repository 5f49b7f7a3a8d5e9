"""`torchkrr probe`: readouts at several depths of a frozen network."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from .options import add_frozen_network, budgets, config_fields, count, names, report, require_frozen_packages, resumable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data, network, readouts = add_frozen_network(parser, readouts="sk,head,linear,knn", out="runs/probe")
    data.add_argument("--train-limit", type=count, metavar="N", help="use N training images only, stratified (all)")
    network.add_argument(
        "--layers",
        type=functools.partial(names, what="names of layers"),
        metavar="A,B,C",
        help="last layer of each stage, in order (five stages of VGG, ResNet, EfficientNet, ViT)",
    )
    readouts.add_argument(
        "--sizes", type=budgets, default=(1000, None), metavar="N,all", help="training examples (1000,all)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_frozen_packages("torchkrr probe", args)
    from ..vision.depths import WRITTEN, ProbeConfig
    from ..vision.depths import run as run_probe
    from ..vision.summary import findings, text_tables

    layers = None if args.layers is None else tuple(args.layers)
    config = ProbeConfig(**config_fields(args, "train_limit"), layers=layers, budgets=args.sizes)
    with resumable(config.out):
        outcome = run_probe(config, progress=not args.quiet)
    found = findings(outcome.cells)
    notes = [outcome.note] if outcome.note else []
    result = report(outcome, text_tables(outcome.cells), WRITTEN, *found, *notes)
    return {**result, "findings": found, "notes": notes}
