"""`torchkrr lander`: Double DQN with and without kernels, on LunarLander or another game of Gymnasium."""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

from ..errors import InputError
from . import kinds
from .interrupts import add_time_limit, resumable
from .settings import setting_of

STUDY_SEEDS = 3
OWN = (  # other options
    *("agent", "environment", "seed", "episodes", "stop_when_solved"),
    *("evaluation_episodes", "checkpoint_every", "variant"),
)
MEANS = {"reward": "rewards", "evaluation": "evaluation"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--agent", choices=("dqn", "dqk", "both"), help="plain, with kernels, or both (both)")
    add("--seeds", type=kinds.count, metavar="N", help="runs of each agent, from seed 0 on (5); of a study from 100 on (3)")
    add("--episodes", type=kinds.count, default=500, metavar="N", help="games of each run (500)")
    add("--stop-when-solved", action="store_true", help="end a run once it wins without exploration")
    add("--environment", default="LunarLander-v3", metavar="NAME", help="a game with numbered actions (LunarLander-v3)")
    add("--evaluation-episodes", type=kinds.natural, default=100, metavar="N", help="games after training (100)")
    add("--checkpoint-every", type=kinds.count, default=25, metavar="N", help="games between checkpoints (25)")
    add("--processes", type=kinds.count, default=os.cpu_count() or 1, metavar="N", help="runs at a time (one per core)")
    add("--out", type=pathlib.Path, metavar="PATH", help="folder of checkpoints, records and report (runs/lander)")
    add(
        "--set",
        type=setting_of("lander_config", OWN),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other number of the experiment",
    )
    add("--study", action="store_true", help="variants of the kernel agent instead of the two agents")
    add("--variants", type=_variants, metavar="A,B", help="of the study: only these")
    add_time_limit(parser)
    add("--watch", metavar="CHECKPOINT", help="draw a game of this agent into an animated file, --out, instead")
    add("--game", type=kinds.natural, metavar="N", help="of --watch: which game (0)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.watch is not None:
        return _watch(args)
    if args.game is not None:
        raise InputError("--game is one of --watch: give the checkpoint of an agent to --watch too.")
    from ..experiments import lander_figure, lander_report, lander_runs  # late: --help needs no torch
    from ..experiments.extras import all_needed

    all_needed(("gymnasium", "matplotlib"), "torchkrr lander", extra="rl")
    configs = _configs(args)
    folder = pathlib.Path("runs/lander") if args.out is None else args.out
    seconds = None if args.time_limit is None else 60 * args.time_limit
    with resumable(folder):
        records = lander_runs.run_all(configs, folder, processes=args.processes, seconds=seconds, progress=not args.quiet)
    written: list[pathlib.Path] = []
    if records:
        print(lander_report.write_report(folder, records, _command(args)))
        lander_figure.draw(records, folder / "lander.png")
        written = [folder / name for name in ("lander.md", "lander.jsonl", "lander.png")]
        print(f"wrote {', '.join(map(str, written))}")
    unfinished = len(configs) - len(records)
    if unfinished:
        print(f"{unfinished} runs are not finished. The same command goes on with them.")
    return {"runs": [_short(record) for record in records], "unfinished": unfinished, "written": written}


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """What the table of the report is made of; lander.jsonl has it all."""
    means = {f"mean_{name}": sum(record[key]) / len(record[key]) if record[key] else None for name, key in MEANS.items()}
    return {"label": record["label"], "seed": record["config"]["seed"], "games": len(record["rewards"]), **means}


def _configs(args: argparse.Namespace) -> list[Any]:
    from ..experiments.lander_config import Config
    from ..experiments.lander_study import FIRST_SEED, study

    if args.variants and not args.study:
        raise InputError("--variants are those of a study: give --study too.")
    if args.agent and args.study:
        raise InputError("A study has agents of its own: leave out --agent, or choose some of them by --variants.")
    common = {
        "environment": args.environment,
        "episodes": args.episodes,
        "stop_when_solved": args.stop_when_solved,
        "evaluation_episodes": args.evaluation_episodes,
        "checkpoint_every": args.checkpoint_every,
        **{setting.name: setting.value for setting in args.set},
    }
    first, count = (FIRST_SEED, STUDY_SEEDS) if args.study else (0, 5)
    seeds = list(range(first, first + (args.seeds or count)))
    if args.study:
        return study(Config(**common), seeds, args.variants)
    agents = ("dqn", "dqk") if args.agent in (None, "both") else (args.agent,)
    return [Config(**{**common, "agent": agent, "seed": seed}) for seed in seeds for agent in agents]


def _variants(text: str) -> list[str]:
    from ..experiments.lander_study import VARIANTS

    found = kinds.names(text)
    unknown = [name for name in found if name not in VARIANTS]
    if unknown:
        raise kinds.Wrong(f"there is no variant {unknown[0]!r}, choose among {', '.join(VARIANTS)}")
    return found


def _watch(args: argparse.Namespace) -> dict[str, Any]:
    from ..experiments.lander_watch import watch

    out = pathlib.Path(args.watch).with_suffix(".gif") if args.out is None else args.out
    reward = watch(args.watch, out, game_number=args.game or 0)
    print(f"reward {reward:.1f}: {out}")
    return {"reward": reward, "out": out}


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same numbers, wherever it writes them."""
    from ..experiments.command_lines import command_line

    options = {
        "--study": args.study,
        "--agent": None if args.study else args.agent or "both",
        "--variants": tuple(args.variants) if args.variants else None,
        "--seeds": args.seeds or None,
        "--episodes": args.episodes,
        "--stop-when-solved": args.stop_when_solved,
        "--environment": args.environment,
        "--evaluation-episodes": args.evaluation_episodes if args.evaluation_episodes != 100 else None,
    }
    return command_line("lander", options, (setting.text for setting in args.set))
