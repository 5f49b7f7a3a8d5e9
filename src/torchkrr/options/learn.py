"""`torchkrr learn`: a network trained end to end under a kernel readout, at several depths, beside a linear head."""

from __future__ import annotations

import argparse
import os
from typing import Any

from . import kinds
from .interrupts import add_time_limit, resumable
from .settings import setting_of

OWN = (
    *("dataset", "network", "weights", "size", "discard", "pooling", "head", "seed", "samples", "epochs", "objective"),
    *("augmentation", "checkpoint_every", "tensorboard", "keep_model"),
)  # other options
DEPTHS = (0, 1, 2, 3, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data and network")
    add = data.add_argument
    add(
        "--dataset",
        default="cifar10",
        metavar="NAME|PATH",
        help="cifar10, digits, a folder of class folders, .npz or .csv (cifar10)",
    )
    add("--samples", type=_samples, default=1000, metavar="N|all", help="training examples of each seed (1000)")
    add("--network", default="vgg-small", metavar="NAME", help="vgg-small, vit-small, or of torchvision or timm (vgg-small)")
    add("--weights", metavar="FILE", help="start from a file of weights, or pretrained; otherwise from scratch")
    add("--size", type=kinds.count, metavar="N", help="pixels of the images it is given")
    add("--depths", type=_depths, default=DEPTHS, metavar="N,N", help="numbers of top stages to discard (0,1,2,3,4)")
    add("--pooling", choices=kinds.POOLINGS, default="mean", help="maps and tokens to vectors (mean)")
    train = parser.add_argument_group("training")
    add = train.add_argument
    add("--objective", choices=("loo", "split", "centers"), default="loo", help="of the kernel readout (loo)")
    add("--heads", type=_heads, default=("kernel", "linear"), metavar="A,B", help="what is trained (kernel,linear)")
    add("--seeds", type=kinds.count, default=5, metavar="N", help="runs of each, seeds 0 to N - 1 (5)")
    add("--epochs", type=kinds.count, default=40, metavar="N", help="of each run, at the most (40)")
    add("--augmentation", choices=("none", "shift", "flip-shift"), default="flip-shift", help="of images (flip-shift)")
    add(
        "--set",
        type=setting_of("learn_config", OWN),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other number of the experiment",
    )
    runs = parser.add_argument_group("runs")
    add = runs.add_argument
    add(
        "--processes",
        type=kinds.natural,
        default=os.cpu_count() or 1,
        metavar="N",
        help="at a time; 0: one, on all threads",
    )
    add("--checkpoint-every", type=kinds.count, default=5, metavar="N", help="epochs between checkpoints (5)")
    add_time_limit(runs)
    add("--tensorboard", action="store_true", help="curves for TensorBoard")
    add("--no-models", action="store_true", help="do not keep the trained networks")
    add("--out", default="runs/learn", metavar="DIR", help="records, figure, report, models (runs/learn)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    from ..experiments import learn_report, learn_runs  # late: --help needs no torch
    from ..experiments.extras import all_needed

    extra = "demo" if args.dataset == "digits" else "vision"
    all_needed(("sklearn", "matplotlib"), "torchkrr learn", extra=extra)
    if args.tensorboard:
        all_needed(("tensorboard",), "torchkrr learn --tensorboard", extra="tensorboard")
    configs = _configs(args)
    seconds = None if args.time_limit is None else 60 * args.time_limit
    with resumable(args.out):
        outcome = learn_runs.run_all(
            configs,
            args.out,
            command=_command(args),
            processes=args.processes,
            seconds=seconds,
            progress=not args.quiet,
        )
    written = [outcome.out / name for name in learn_runs.WRITTEN] if outcome.records else []
    if outcome.records:
        print(learn_report.described(outcome.records))
        if outcome.reused:
            print(f"{outcome.reused} of {len(configs)} runs were there already")
        print(learn_report.text_table(outcome.cells))
        print(f"wrote {', '.join(map(str, written))}")
    if outcome.missing:
        print(f"{outcome.missing} runs are not finished; {args.out} has what was begun. The same command goes on with them.")
    return {
        "results": [cell._asdict() for cell in outcome.cells],
        "records": len(outcome.records),
        "reused": outcome.reused,
        "unfinished": outcome.missing,
        "written": written,
    }


def _configs(args: argparse.Namespace) -> list[Any]:
    from ..experiments.learn_config import Config
    from ..experiments.learn_runs import plan

    names = ("dataset", "network", "weights", "size", "pooling", "samples", "epochs", "objective", "augmentation")
    config = Config(
        **{name: getattr(args, name) for name in names},
        checkpoint_every=args.checkpoint_every,
        tensorboard=args.tensorboard,
        keep_model=not args.no_models,
        **{setting.name: setting.value for setting in args.set},
    )
    return plan(config, depths=args.depths, seeds=args.seeds, heads=args.heads)


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same numbers, wherever it writes them."""
    from ..experiments.command_lines import command_line

    options = {
        "--dataset": args.dataset,
        "--network": args.network,
        "--weights": args.weights,
        "--size": args.size,
        "--depths": args.depths,
        "--samples": args.samples or "all",
        "--seeds": args.seeds,
        "--epochs": args.epochs,
        "--objective": args.objective,
        "--heads": args.heads if len(args.heads) == 1 else None,
        "--pooling": args.pooling if args.pooling != "mean" else None,
        "--augmentation": args.augmentation if args.augmentation != "flip-shift" else None,
    }
    return command_line("learn", options, (setting.text for setting in args.set))


def _samples(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 8:
        raise argparse.ArgumentTypeError(f"must be a number of examples of at least 8, or all, got {text!r}")
    return int(text)


def _depths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in DEPTHS for part in parts):
        raise argparse.ArgumentTypeError(f"must be numbers of stages from 0 to 4, with commas, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _heads(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(names) <= {"kernel", "linear"}:
        raise argparse.ArgumentTypeError(f"must be kernel, linear or both, with a comma, got {text!r}")
    return names
