"""`torchkrr probe`: readouts at several depths of a frozen network."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from . import frozen, kinds
from .interrupts import resumable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = frozen.add_data(parser)
    data.add_argument("--train-limit", type=kinds.count, metavar="N", help="use N training images only, stratified (all)")
    network = frozen.add_network(parser)
    network.add_argument(
        "--layers",
        type=_layers,
        metavar="A,B,C",
        help="last layer of each stage, in order (five stages of VGG, ResNet, EfficientNet, ViT)",
    )
    readouts = frozen.add_readouts(parser, "sk,sk-select,linear,knn")
    readouts.add_argument(
        "--sizes", type=frozen.budgets, default=(1000, None), metavar="N,all", help="training examples (1000,all)"
    )
    frozen.add_results(parser, "runs/probe")


def run(args: argparse.Namespace) -> dict[str, Any]:
    frozen.check_packages("probe", args)
    # Late: --help needs none of it.
    probe = importlib.import_module("..vision.probe", __package__)
    summary = importlib.import_module("..vision.summary", __package__)
    config = probe.ProbeConfig(**frozen.given(args, "train_limit", "layers"), budgets=args.sizes)
    with resumable(config.out):
        outcome = probe.run(config, progress=not args.quiet)
    written = [outcome.out / name for name in probe.WRITTEN]
    findings = summary.findings(outcome.cells)
    notes = [outcome.note] if outcome.note else []
    shown = frozen.show(outcome, summary.text_tables(outcome.cells), written, *findings, *notes)
    return {**shown, "findings": findings, "notes": notes}


def _layers(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"must be different names of layers, separated by commas, got {text!r}")
    return names
