"""`torchkrr lander`: Double DQN with and without kernels, on LunarLander or another game of Gymnasium."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import sys
from typing import Any

STUDY_SEEDS = 3
OWN = ("agent", "environment", "seed", "episodes", "evaluation_episodes", "checkpoint_every", "variant")  # other options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--agent", choices=("dqn", "dqk", "both"), default="both", help="plain, with kernels, or both (both)")
    add("--seeds", type=_count, metavar="N", help="runs of each agent, seeds 0 to N - 1 (5; of a study 3)")
    add("--episodes", type=_count, default=500, metavar="N", help="games of each run (500)")
    add("--environment", default="LunarLander-v3", metavar="NAME", help="a game with numbered actions (LunarLander-v3)")
    add("--evaluation-episodes", type=_natural, default=100, metavar="N", help="games after training (100)")
    add("--checkpoint-every", type=_count, default=25, metavar="N", help="games between checkpoints (25)")
    add("--processes", type=_count, default=os.cpu_count() or 1, metavar="N", help="runs at a time (one per core)")
    add("--out", type=pathlib.Path, metavar="PATH", help="folder of checkpoints, records and report (runs/lander)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any other number of the experiment")
    add("--study", action="store_true", help="variants of the kernel agent instead of the two agents")
    add("--variants", type=_names, metavar="A,B", help="of the study: only these")
    add("--time-limit", type=float, metavar="MINUTES", help="begin no run later; the same command goes on")
    add("--watch", metavar="CHECKPOINT", help="draw a game of this agent into an animated file, --out, instead")
    add("--game", type=_natural, default=0, metavar="N", help="of --watch: which game (0)")


def run(args: argparse.Namespace) -> None:
    if args.watch is not None:
        _watch(args)
        return
    from ..experiments import lander_figure, lander_report, lander_runs  # late: --help needs no torch

    configs = _configs(args)
    folder = pathlib.Path("runs/lander") if args.out is None else args.out
    seconds = None if args.time_limit is None else 60 * args.time_limit
    try:
        records = lander_runs.run_all(configs, folder, processes=args.processes, seconds=seconds, progress=not args.quiet)
    except KeyboardInterrupt:
        print("torchkrr: interrupted. The same command goes on from the last checkpoints.", file=sys.stderr, flush=True)
        raise SystemExit(130) from None
    if not records:
        print(f"torchkrr: no run was finished in time; {folder} has what was begun.", file=sys.stderr)
        return
    text = lander_report.write_report(folder, records, _command(args))
    lander_figure.draw(records, folder / "lander.png")
    if not args.quiet:
        print(text)
        print(f"wrote lander.md, lander.jsonl and lander.png to {folder}")
        if len(records) < len(configs):
            print(f"{len(configs) - len(records)} runs are not finished. The same command goes on with them.")


def _configs(args: argparse.Namespace) -> list[Any]:
    from ..errors import InputError
    from ..experiments.lander_config import Config
    from ..experiments.lander_study import VARIANTS, study
    from .settings import parse_settings

    common = {
        "environment": args.environment,
        "episodes": args.episodes,
        "evaluation_episodes": args.evaluation_episodes,
        "checkpoint_every": args.checkpoint_every,
        **parse_settings(args.set, Config, OWN),
    }
    seeds = list(range(args.seeds or (STUDY_SEEDS if args.study else 5)))
    if args.study:
        unknown = [name for name in args.variants or [] if name not in VARIANTS]
        if unknown:
            raise InputError(f"There is no variant {unknown[0]!r}. Choose among {', '.join(VARIANTS)}.")
        return study(Config(**common), seeds, args.variants)
    agents = ("dqn", "dqk") if args.agent == "both" else (args.agent,)
    return [Config(**{**common, "agent": agent, "seed": seed}) for seed in seeds for agent in agents]


def _watch(args: argparse.Namespace) -> None:
    from ..experiments.lander_watch import watch

    out = pathlib.Path(args.watch).with_suffix(".gif") if args.out is None else args.out
    reward = watch(args.watch, out, game_number=args.game)
    if not args.quiet:
        print(f"reward {reward:.1f}: {out}")


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same numbers, wherever it writes them."""
    parts = ["torchkrr lander", "--study" if args.study else f"--agent {args.agent}"]
    parts += [f"--variants {','.join(args.variants)}"] if args.variants else []
    parts += [f"--seeds {args.seeds}"] if args.seeds else []
    parts += [f"--episodes {args.episodes}", f"--environment {args.environment}"]
    parts += [f"--evaluation-episodes {args.evaluation_episodes}"] if args.evaluation_episodes != 100 else []
    return " ".join([*parts, *(f"--set {shlex.quote(text)}" for text in args.set)])


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number that is not negative, got {text!r}")
    return int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]
