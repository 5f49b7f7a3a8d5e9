"""Options of the commands that read a frozen network: data, network, readouts, results."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from ..errors import KernelRidgeError
from . import kinds

SHARED = (  # fields of a configuration that every such command takes as they are
    *("dataset", "test_share", "backbone", "weights", "random_weights", "size", "pooling", "device", "batch_size"),
    *("seeds", "out", "cache"),
)


def add_data(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--dataset",
        default="digits",
        metavar="NAME|PATH",
        help="digits, cifar10, a folder of class folders, .npz or .csv (digits)",
    )
    group.add_argument("--test-share", type=kinds.share, default=0.2, metavar="X", help="of data without a test part (0.2)")
    return group


def add_network(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--backbone",
        metavar="NAME",
        help="digits, identity (pixels), or a torchvision or timm model (digits for digits, else resnet18)",
    )
    group.add_argument("--weights", metavar="FILE", help="its weights from a file, instead of its own pretrained ones")
    group.add_argument("--random-weights", action="store_true", help="untrained, to try things out")
    group.add_argument("--size", type=kinds.count, metavar="N", help="pixels of the images it is given")
    group.add_argument("--pooling", choices=kinds.POOLINGS, default="mean", help="maps and tokens to vectors (mean)")
    group.add_argument("--device", default="cpu", help="of the network (cpu)")
    group.add_argument("--batch-size", type=kinds.count, default=64, metavar="N", help="images at a time (64)")
    return group


def add_readouts(parser: argparse.ArgumentParser, default: str) -> argparse._ArgumentGroup:
    """`default` says which readouts there are without the option."""
    group = parser.add_argument_group("readouts")
    group.add_argument("--seeds", type=kinds.count, default=5, metavar="N", help="subsamples of each number below all (5)")
    group.add_argument("--readouts", type=readout_names, metavar="A,B", help=f"some of the readouts only ({default})")
    return group


def add_results(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--out", default=out, metavar="DIR", help=f"results ({out})")
    parser.add_argument("--cache", metavar="DIR", help="features (DIR/features)")


def check_packages(command: str, args: argparse.Namespace) -> None:
    """What a run needs to its end, before it begins."""
    extras = importlib.import_module("..experiments.extras", __package__)
    extra = "demo" if (args.backbone or args.dataset) == "digits" else "vision"
    extras.all_needed(("sklearn", "safetensors", "matplotlib"), f"torchkrr {command}", extra=extra)


def given(args: argparse.Namespace, *more: str) -> dict[str, Any]:
    """The fields of a configuration: the shared ones, those named, and readouts if some were asked for."""
    found = {name: getattr(args, name) for name in (*SHARED, *more)}
    return found if args.readouts is None else {**found, "readouts": args.readouts}


def show(outcome: Any, tables: str, written: list[Any], *more: str) -> dict[str, Any]:
    """Print what came out; the same for scripts."""
    print(outcome.inputs.text)
    if outcome.reused:
        print(f"{outcome.reused} of {len(outcome.records)} results were there already")
    print("\n".join((tables, *more, f"wrote {', '.join(map(str, written))}")))
    return {
        "data": outcome.inputs.text,
        "results": [cell._asdict() for cell in outcome.cells],
        "records": len(outcome.records),
        "reused": outcome.reused,
        "written": written,
    }


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
        readouts = importlib.import_module("..vision.readouts", __package__)
        for name in names:
            readouts.readout_named(name)
    except KernelRidgeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names
