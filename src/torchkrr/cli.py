"""The command `torchkrr`: parse, call, print.

Exit codes: 0 done, 1 something is wrong with what was given or found, 2 usage, 130 interrupted, 143 terminated.
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
from typing import Any, NoReturn, TextIO

from . import __version__
from ._threads import set_threads
from .errors import KernelRidgeError
from .options import kinds

Args = argparse.Namespace
Parser = argparse.ArgumentParser
DONE, FAILED, INTERRUPTED, TERMINATED = 0, 1, 130, 143  # wrong usage is argparse's: 2
ENDING = (
    "exit codes: 0 done, 1 something is wrong with what was given or found, 2 wrong usage, 130 interrupted, 143 terminated"
)
# Each has a module in `options`: `add_arguments(parser)`, and `run(args)`, which prints for people and returns for programs.
COMMANDS: dict[str, str] = {
    "fit": "Fit a model to a table; everything is chosen by leave-one-out.",
    "predict": "Predict the rows of a table, a part at a time.",
    "evaluate": "Measure the predictions of a table whose targets are known.",
    "doctor": "Say what is installed, what works, and what an extra would add.",
    "completion": "Print a script that completes commands and options in a shell.",
    "transfer": "Heads on the features of a frozen network: accuracy and time against the number of labels.",
    "classify": "Classify images with a head that transfer wrote, with explanations.",
    "update": "Add examples to a head that transfer wrote, or take some out, without fitting it again.",
    "probe": "Readouts at several depths of a frozen network: which layer is the best basis for a kernel.",
}


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if argv is None:
        signal.signal(signal.SIGTERM, _terminated)
    if args.threads is not None:
        set_threads(args.threads)
    with warnings.catch_warnings():
        if argv is None:
            warnings.showwarning = _warn
        try:
            return _run(args)
        except KeyboardInterrupt as error:
            _say(f"interrupted. {str(error) or 'Nothing was written.'}")
            return INTERRUPTED
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return DONE
        except (KernelRidgeError, OSError, ValueError) as error:
            if args.debug:
                traceback.print_exc()
            _say(" ".join(str(error).split()))
            return FAILED


def parser() -> Parser:
    # Here and not in the commands, so that each has them.
    shared = Parser(add_help=False)
    common = shared.add_argument_group("all commands")
    common.add_argument("--threads", type=kinds.threads, metavar="N", help="threads of the computation")
    common.add_argument("--quiet", action="store_true", help="print nothing but errors and warnings")
    common.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")
    common.add_argument("--debug", action="store_true", help="show where an error comes from")

    top = Parser(
        prog="torchkrr",
        description="Local kernel ridge regression for tables, and for images on frozen networks.",
        epilog=ENDING,
    )
    top.add_argument("--version", action="version", version=f"torchkrr {__version__}")
    commands = top.add_subparsers(required=True, metavar="command", dest="command")
    for name, text in COMMANDS.items():
        module = importlib.import_module(f".options.{name}", __package__)
        added = commands.add_parser(name, help=text, description=text, epilog=ENDING, parents=[shared])
        module.add_arguments(added)
        added.set_defaults(run=module.run, top=top)
    return top


def _run(args: Args) -> int:
    first = not hasattr(args, "timeout") or os.environ.get("RANK", "0") == "0"  # of processes that share the work
    # Silenced here too, so that a command cannot forget it.
    args.quiet = args.quiet or args.json or not first
    with contextlib.redirect_stdout(io.StringIO()) if args.quiet else contextlib.nullcontext():
        result = args.run(args)
    if args.json and first:
        print(json.dumps(plain(result), allow_nan=False))
    sys.stdout.flush()
    problems = result.get("problems", [])
    for problem in problems:
        _say(problem)
    return FAILED if problems else DONE


def plain(result: Any) -> Any:
    """As JSON has it: paths are text, named tuples have names, and numbers that are not finite are missing.

    Example:
        >>> plain({"at": pathlib.PurePosixPath("a/b"), "scores": (0.5, math.nan)})
        {'at': 'a/b', 'scores': [0.5, None]}
        >>> import collections
        >>> plain([collections.namedtuple("Cell", "depth right")(1, 0.9)])
        [{'depth': 1, 'right': 0.9}]
    """
    if hasattr(result, "_asdict"):  # a named tuple
        result = result._asdict()
    if isinstance(result, Mapping):
        return {str(key): plain(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [plain(value) for value in result]
    if isinstance(result, pathlib.PurePath):
        return str(result)
    return None if isinstance(result, float) and not math.isfinite(result) else result


def _say(text: str) -> None:
    rank = f" (rank {os.environ['RANK']})" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    print(f"torchkrr{rank}: {text}", file=sys.stderr, flush=True)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _say(f"warning: {message}")


def _terminated(*_: Any) -> NoReturn:
    raise SystemExit(TERMINATED)
