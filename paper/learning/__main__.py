"""A network trained end to end under a kernel readout, at several depths, beside a linear head.

python -m paper.learning
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from .. import options
from . import report, runs
from .config import HEADS, NUM_STAGES, Config, plan

DEPTHS = tuple(range(NUM_STAGES))
TEXTS = {
    "dataset": "cifar10, digits, a folder of class folders, .npz or .csv",
    "samples": "training examples of each seed, or all",
    "network": "vgg-small, vit-small, or of torchvision or timm",
    "weights": "start from a file of weights, or pretrained; otherwise from scratch",
    "size": "pixels of the images it is given",
    "pooling": "maps and tokens to vectors",
    "objective": "of the kernel readout",
    "epochs": "of each run, at the most",
    "augmentation": "of images",
    "patience": "epochs without a better one that end a run; 0: none",
    "checkpoint_every": "epochs between checkpoints",
    "tensorboard": "curves for TensorBoard",
    "num_centers": "of the objective centers",
    "support_share": "of the objective split",
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m paper.learning", description=__doc__.splitlines()[0], allow_abbrev=False)
    group = parser.add_argument_group("runs")
    add = group.add_argument
    add(
        "--depths",
        type=options.choices(*DEPTHS, kind=int),
        default=DEPTHS,
        metavar="N,N",
        help="numbers of top stages to discard (0,1,2,3,4)",
    )
    add("--heads", type=options.choices(*HEADS), default=HEADS, metavar="A,B", help="what is trained (kernel,linear)")
    add("--seeds", type=options.count, default=5, metavar="N", help="runs of each, seeds 0 to N - 1 (5)")
    add("--no-models", dest="keep_model", action="store_false", help="do not keep the trained networks")
    options.add_run_options(group, "runs/learn")
    settings = parser.add_argument_group("every number of the experiment")
    options.add_options(settings, Config, without=("discard", "head", "seed", "keep_model"), texts=TEXTS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()

    def run(args: argparse.Namespace) -> dict[str, Any]:
        extra = "demo" if args.dataset == "digits" else "vision"
        options.require(("sklearn", "matplotlib"), parser.prog, extra=extra)
        if args.tensorboard:
            options.require(("tensorboard",), f"{parser.prog} --tensorboard", extra="tensorboard")
        config = options.settings_from(parser, args, Config)
        configs = plan(config, depths=args.depths, seeds=args.seeds, heads=args.heads)
        records = runs.run_all(configs, args.out, processes=args.processes, seconds=args.time_limit, progress=not args.quiet)
        written, unfinished = [], len(configs) - len(records)
        if records:
            command = options.command_line(parser, args, without=("keep_model", "tensorboard"))
            report.write_report(args.out, records, command)
            written = [args.out / name for name in report.WRITTEN]
            print(report.about(records))
            print(report.accuracy_table(report.summarize(records)).text())
            print(f"wrote {', '.join(map(str, written))}")
        if unfinished:
            print(f"{unfinished} runs are not finished; {args.out} has what was begun. The same command goes on with them.")
        results = [dataclasses.asdict(cell) for cell in report.summarize(records)]
        return {"results": results, "records": len(records), "unfinished": unfinished, "written": written}

    return options.run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
