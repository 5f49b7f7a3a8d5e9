"""The command `torchkrr`.

Each command is a module with `add_arguments(parser)` and `run(args)`: `run` prints a report for people and returns the
result that `--json` prints. These modules import nothing heavy, so that help and completion answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import pathlib
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import __version__
from ..errors import KernelRidgeError
from .options import threads

DONE, FAILED, INTERRUPTED, TERMINATED = 0, 1, 130, 143  # argparse exits with 2
EXIT_CODES = (
    "exit codes: 0 done, 1 something is wrong with what was given or found, 2 wrong usage, 130 interrupted, 143 terminated"
)
COMMANDS = {
    "fit": "Fit a model to a table, a column of text, pictures or features; everything is chosen by leave-one-out.",
    "predict": "Predict with a fitted model, and explain the predictions.",
    "evaluate": "Measure the predictions of rows whose targets are known.",
    "update": "Add rows to a model, or remove some, without fitting it again.",
    "audit": "Find labels that are likely wrong, outliers and near duplicates, and write a report.",
    "doctor": "Report what is installed, what works, and what each extra would add.",
    "completion": "Print a script that completes commands and options in a shell.",
    "transfer": "Compare classifier heads on a frozen network's features, at several label budgets.",
    "classify": "The former name of predict, for pictures.",
    "probe": "Compare readouts at several depths of a frozen network, to find the best layer for a kernel.",
}
MOVED = {"lander": "python -m paper.lander", "learn": "python -m paper.learning"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; without `argv`, as a program of its own."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    if words and words[0] in MOVED:
        parser.error(f"torchkrr {words[0]} is now {MOVED[words[0]]!r}. Run it from a clone of the repository.")
    args = parser.parse_args(words)
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        # Read when torch is imported. Where cores are shared, threads that spin while they wait cost minutes.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with warnings.catch_warnings():
        if argv is None:
            warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
        try:
            return _run(args)
        except KeyboardInterrupt as error:
            _say(f"interrupted. {str(error) or 'Nothing was written.'}")
            return INTERRUPTED
        except BrokenPipeError:  # the reader of the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return DONE
        except (KernelRidgeError, OSError, ValueError) as error:
            if args.debug:
                traceback.print_exc()
            _say(" ".join(str(error).split()))
            return FAILED


def build_parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    group = shared.add_argument_group("all commands")
    group.add_argument("--threads", type=threads, metavar="N", help="threads of the computation")
    group.add_argument("--quiet", action="store_true", help="print nothing but errors and warnings")
    group.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")
    group.add_argument("--debug", action="store_true", help="show where an error comes from")

    parser = argparse.ArgumentParser(
        prog="torchkrr",
        description="Local kernel ridge regression for tables, text, pictures and features.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"torchkrr {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for name, text in COMMANDS.items():
        module = importlib.import_module(f".{name}", __name__)
        command = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES, parents=[shared])
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _run(args: argparse.Namespace) -> int:
    if args.threads is not None:
        from .._threads import set_threads

        set_threads(args.threads)
    # Only the first of the processes that share the work reports.
    first = not hasattr(args, "timeout") or os.environ.get("RANK", "0") == "0"
    # Reports are silenced here, so that a command cannot forget it.
    args.quiet = args.quiet or args.json or not first
    with contextlib.redirect_stdout(io.StringIO()) if args.quiet else contextlib.nullcontext():
        result = args.run(args)
    if args.json and first:
        print(json.dumps(to_json(result), allow_nan=False))
    sys.stdout.flush()
    problems = result.get("problems", [])
    for problem in problems:
        _say(problem)
    return FAILED if problems else DONE


def to_json(result: Any) -> Any:
    """Turn paths into text, named tuples into dictionaries, and numbers that are not finite into `None`.

    Example:
        >>> to_json({"at": pathlib.PurePosixPath("a/b"), "scores": (0.5, math.nan)})
        {'at': 'a/b', 'scores': [0.5, None]}
        >>> import collections
        >>> to_json([collections.namedtuple("Cell", "depth right")(1, 0.9)])
        [{'depth': 1, 'right': 0.9}]
    """
    if hasattr(result, "_asdict"):  # a named tuple
        result = result._asdict()
    if isinstance(result, Mapping):
        return {str(key): to_json(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [to_json(value) for value in result]
    if isinstance(result, pathlib.PurePath):
        return str(result)
    return None if isinstance(result, float) and not math.isfinite(result) else result


def _say(text: str) -> None:
    rank = f" (rank {os.environ['RANK']})" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    print(f"torchkrr{rank}: {text}", file=sys.stderr, flush=True)
