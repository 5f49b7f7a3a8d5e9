"""`torchkrr probe`: readouts at several depths of a frozen network."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from . import kinds
from .transfer import budgets, readout_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data")
    data.add_argument(
        "--dataset", default="digits", metavar="NAME|PATH", help="digits, cifar10, a folder of class folders, .npz or .csv"
    )
    data.add_argument("--test-share", type=float, default=0.2, metavar="X", help="of data without a test part (0.2)")
    data.add_argument(
        "--train-limit",
        type=kinds.count,
        metavar="N",
        help="use N training images only, stratified (all)",
    )
    frozen = parser.add_argument_group("network")
    frozen.add_argument(
        "--backbone", metavar="NAME", help="digits, or a torchvision or timm model (digits for digits, else resnet18)"
    )
    frozen.add_argument("--weights", metavar="FILE", help="its weights from a file, instead of its own pretrained ones")
    frozen.add_argument("--random-weights", action="store_true", help="untrained, to try things out")
    frozen.add_argument("--size", type=kinds.count, metavar="N", help="pixels of the images it is given")
    frozen.add_argument(
        "--layers",
        type=_layers,
        metavar="A,B,C",
        help="last layer of each stage, in order (five stages of VGG, ResNet, EfficientNet, ViT)",
    )
    frozen.add_argument(
        "--pooling",
        default="mean",
        metavar="NAME",
        help="maps and tokens to vectors: mean, max, class_token, flatten",
    )
    frozen.add_argument("--device", default="cpu", help="of the network (cpu)")
    frozen.add_argument("--batch-size", type=kinds.count, default=64, metavar="N", help="images at a time (64)")
    what = parser.add_argument_group("readouts")
    what.add_argument("--sizes", type=budgets, default=(1000, None), metavar="N,all", help="training examples (1000,all)")
    what.add_argument("--seeds", type=kinds.count, default=5, metavar="N", help="subsamples of each size below all (5)")
    what.add_argument("--readouts", type=readout_names, metavar="A,B", help="readouts (sk,sk-select,linear,knn)")
    parser.add_argument("--out", default="runs/probe", metavar="DIR", help="results (runs/probe)")
    parser.add_argument("--cache", metavar="DIR", help="features (DIR/features)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    # Late: --help needs none of it.
    config_of = importlib.import_module("..experiments.probe_config", __package__).ProbeConfig
    probe = importlib.import_module("..experiments.probe", __package__)
    summary = importlib.import_module("..experiments.probe_summary", __package__)
    given: dict[str, Any] = {name: getattr(args, name) for name in FIELDS}
    if args.readouts is not None:
        given["readouts"] = args.readouts
    config = config_of(**given, budgets=args.sizes)
    try:
        outcome = probe.run(config, progress=not args.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is done is kept in {config.out}; the same command goes on from there.") from None
    written = [outcome.out / name for name in probe.WRITTEN]
    findings = summary.findings(outcome.cells)
    print(outcome.inputs.described)
    if outcome.reused:
        print(f"{outcome.reused} of {len(outcome.records)} results were there already")
    print(summary.text_tables(outcome.cells))
    print("\n".join((*findings, f"wrote {', '.join(map(str, written))}")))
    return {
        "data": outcome.inputs.described,
        "results": [cell._asdict() for cell in outcome.cells],
        "findings": findings,
        "records": len(outcome.records),
        "reused": outcome.reused,
        "written": written,
    }


FIELDS = (
    *("dataset", "test_share", "train_limit", "backbone", "weights", "random_weights", "size", "layers", "pooling"),
    *("device", "batch_size", "seeds", "out", "cache"),
)


def _layers(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"must be different names of layers, separated by commas, got {text!r}")
    return names
