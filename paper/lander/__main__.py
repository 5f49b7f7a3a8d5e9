"""Double DQN with and without kernels, on LunarLander or another game of Gymnasium.

python -m paper.lander
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from torchkrr.errors import InputError

from .. import options
from ..checkpoints import replacing
from . import report, training
from .config import FIRST_STUDY_SEED, VARIANTS, Config, study

TEXTS = {
    "episodes": "games of each run",
    "stop_when_solved": "end a run once it wins without exploration",
    "environment": "a game with numbered actions",
    "evaluation_episodes": "games after training",
    "checkpoint_every": "games between checkpoints",
    "parts": "kernel parts of the network",
    "last_on": "what the last kernel part is a function of",
    "placing": "how the centers are chosen among states of a random policy",
    "lengthscale": "in mean distances of standardized states",
    "gromov_monge": "weight of the regularizer",
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m paper.lander", description=__doc__.splitlines()[0], allow_abbrev=False)
    runs = parser.add_argument_group("runs")
    runs.add_argument("--agent", choices=("dqn", "dqk", "both"), help="plain, with kernels, or both (both)")
    runs.add_argument(
        "--seeds", type=options.count, metavar="N", help="runs of each agent, from seed 0 on (5); of a study from 100 on (3)"
    )
    options.add_run_options(runs, None)
    runs.add_argument("--study", action="store_true", help="variants of the kernel agent instead of the two agents")
    runs.add_argument("--variants", type=options.choices(*VARIANTS), metavar="A,B", help="of the study: only these")
    film = parser.add_argument_group("a film")
    film.add_argument("--watch", metavar="CHECKPOINT", help="draw a game of this agent into the animated file --out")
    film.add_argument("--game", type=options.natural, metavar="N", help="of --watch: which game (0)")
    settings = parser.add_argument_group("every number of the experiment")
    options.add_options(settings, Config, without=("agent", "seed", "variant"), texts=TEXTS)
    return parser


def configs_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Config]:
    if args.variants and not args.study:
        raise InputError("--variants are those of a study: give --study too.")
    if args.agent and args.study:
        raise InputError("A study has agents of its own: leave out --agent, or choose some of them by --variants.")
    first, count = (FIRST_STUDY_SEED, 3) if args.study else (0, 5)
    seeds = list(range(first, first + (args.seeds or count)))
    if args.study:
        return study(options.settings_from(parser, args, Config, agent="dqk"), seeds, args.variants)
    agents = ("dqn", "dqk") if args.agent in (None, "both") else (args.agent,)
    return [options.settings_from(parser, args, Config, agent=agent, seed=seed) for seed in seeds for agent in agents]


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()

    def run(args: argparse.Namespace) -> dict[str, Any]:
        if args.watch is not None:
            return watch(args)
        if args.game is not None:
            raise InputError("--game is one of --watch: give the checkpoint of an agent to --watch too.")
        options.require(("gymnasium", "matplotlib"), parser.prog, extra="rl")
        configs, folder = configs_of(parser, args), args.out or pathlib.Path("runs/lander")
        records = training.run_all(
            configs, folder, processes=args.processes, seconds=args.time_limit, progress=not args.quiet
        )
        written: list[pathlib.Path] = []
        if records:
            text = report.report(records, options.command_line(parser, args))
            with replacing(folder / "report.md") as temporary:
                temporary.write_text(text)
            report.draw(records, folder / "figure.png")
            written = [folder / name for name in ("records.jsonl", "report.md", "figure.png")]
            print(text)
            print(f"wrote {', '.join(map(str, written))}")
        unfinished = len(configs) - len(records)
        if unfinished:
            print(f"{unfinished} runs are not finished. The same command goes on with them.")
        return {"runs": [summary(record) for record in records], "unfinished": unfinished, "written": written}

    return options.run_command(parser, run, argv)


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """What the table of the report is made of; records.jsonl has it all."""
    all_games, _, evaluation = (measure(record) for measure in report.MEASURES.values())
    about = {"label": record["label"], "seed": record["config"]["seed"], "games": len(record["rewards"])}
    return {**about, "mean_reward": all_games, "mean_evaluation": evaluation}


def watch(args: argparse.Namespace) -> dict[str, Any]:
    out = pathlib.Path(args.watch).with_suffix(".gif") if args.out is None else args.out
    reward = report.watch(args.watch, out, game_number=args.game or 0)
    print(f"reward {reward:.1f}: {out}")
    return {"reward": reward, "out": out}


if __name__ == "__main__":
    sys.exit(main())
