"""`torchkrr transfer`: heads on frozen features."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from ..errors import KernelRidgeError
from . import kinds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data")
    data.add_argument(
        "--dataset", default="digits", metavar="NAME|PATH", help="digits, cifar10, a folder of class folders, .npz or .csv"
    )
    data.add_argument("--test-share", type=float, default=0.2, metavar="X", help="of data without a test part (0.2)")
    frozen = parser.add_argument_group("backbone")
    frozen.add_argument(
        "--backbone", metavar="NAME", help="digits, or a torchvision or timm model (digits for digits, else resnet18)"
    )
    frozen.add_argument("--weights", metavar="FILE", help="its weights from a file, instead of its own pretrained ones")
    frozen.add_argument("--random-weights", action="store_true", help="untrained, to try things out")
    frozen.add_argument("--size", type=kinds.count, metavar="N", help="pixels of the images it is given")
    frozen.add_argument("--layer", metavar="NAME", help="where features are taken from (before its classifier)")
    frozen.add_argument("--pooling", default="mean", metavar="NAME", help="how maps and tokens become vectors (mean)")
    frozen.add_argument("--device", default="cpu", help="of the backbone (cpu)")
    frozen.add_argument("--batch-size", type=kinds.count, default=64, metavar="N", help="images at a time (64)")
    what = parser.add_argument_group("readouts")
    what.add_argument(
        "--budgets", type=budgets, default=(100, 1000, 10_000, None), metavar="N,N,all", help="labels (100,1000,10000,all)"
    )
    what.add_argument("--seeds", type=kinds.count, default=5, metavar="N", help="subsamples of each budget below all (5)")
    what.add_argument("--readouts", type=readout_names, metavar="A,B", help="some of the readouts only")
    parser.add_argument("--out", default="runs/transfer", metavar="DIR", help="results (runs/transfer)")
    parser.add_argument("--cache", metavar="DIR", help="features (DIR/features)")
    parser.add_argument("--timeout", type=kinds.count, default=60, metavar="S", help="of torchrun: wait for others (60 s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    # Late: --help needs none of it. First, so that the extra which is named is enough for the rest.
    importlib.import_module("..experiments.extras", __package__).needed("sklearn", "torchkrr transfer")
    config_of = importlib.import_module("..experiments.config", __package__).Config
    transfer = importlib.import_module("..experiments.transfer", __package__)
    summary = importlib.import_module("..experiments.summary", __package__)
    team = importlib.import_module("..distributed.team", __package__)
    given: dict[str, Any] = {name: getattr(args, name) for name in FIELDS}
    if args.readouts is not None:
        given["readouts"] = args.readouts
    config = config_of(**given)
    try:
        with team.team(args.timeout) as everyone:
            outcome = transfer.run_together(config, everyone, progress=not args.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is done is kept in {config.out}; the same command goes on from there.") from None
    if outcome is None:  # not the first of several processes
        return {}
    written = [outcome.out / name for name in transfer.WRITTEN]
    print(outcome.inputs.described)
    if outcome.reused:
        print(f"{outcome.reused} of {len(outcome.records)} results were there already")
    print(summary.text_table(outcome.cells))
    print(f"wrote {', '.join(map(str, written))}")
    return {
        "data": outcome.inputs.described,
        "results": [cell._asdict() for cell in outcome.cells],
        "records": len(outcome.records),
        "reused": outcome.reused,
        "written": written,
    }


FIELDS = (
    *("dataset", "test_share", "backbone", "weights", "random_weights", "size", "layer", "pooling", "device", "batch_size"),
    *("budgets", "seeds", "out", "cache"),
)


def budgets(text: str) -> tuple[int | None, ...]:
    """Numbers of labels; `None` is all."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "all" or (part.isdecimal() and int(part) >= 2) for part in parts):
        raise argparse.ArgumentTypeError(f"must be numbers of labels of at least 2, or all, with commas, got {text!r}")
    return tuple(None if part == "all" else int(part) for part in parts)


def readout_names(text: str) -> tuple[str, ...]:
    """Known readouts, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    try:
        lineup = importlib.import_module("..experiments.lineup", __package__)
        for name in names:
            lineup.readout_named(name)
    except KernelRidgeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names
