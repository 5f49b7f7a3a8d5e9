"""The command `torchkrr`: fit a model to a table, predict another, evaluate.

Exit codes: 0 done, 1 something is wrong with what was given, 2 usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

from . import __version__
from ._threads import set_threads
from .errors import KernelRidgeError

Args = argparse.Namespace
Parser = argparse.ArgumentParser
# Commands with a module of their own in `options`, which has `add_arguments(parser)` and `run(args)`: name -> help.
EXPERIMENTS: dict[str, str] = {
    "transfer": "Heads on the features of a frozen network: accuracy and time against the number of labels.",
    "classify": "Classify images with a head that transfer wrote, with explanations.",
    "lander": "Learn to land: Double DQN with and without kernels, on games of Gymnasium.",
    "learn": "Train a network end to end under a kernel readout, at several depths, beside a linear head.",
}
LABELS = {"rmse": "RMSE", "mae": "MAE", "r2": "R2", "nll": "NLL", "coverage90": "coverage of 90 %", "log_loss": "log-loss"}


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
            with _only_the_first_reports(args):
                args.run(args)
                sys.stdout.flush()
        except KeyboardInterrupt as error:
            _say(f"interrupted. {str(error) or 'Nothing was written.'}")
            return 130
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 0
        except (KernelRidgeError, OSError, ValueError) as error:
            if args.debug:
                traceback.print_exc()
            _say(" ".join(str(error).split()))
            return 1
    return 0


def fit(args: Args) -> None:
    command = _command("fit")
    fitted = command.fit_table(_wanted(command, args))
    if args.quiet:
        return
    print(f"task      {fitted.task} of {', '.join(args.target)}, {fitted.rows} rows: {fitted.features.described()}")
    print(f"chosen    {fitted.chosen}")
    for name, scores in fitted.scores.items():
        unit = "" if fitted.task == "classification" else f" (in units of {name})"
        print(f"left out  {', '.join(f'{_label(key)} {value:.4g}' for key, value in scores.items())}{unit}")
    print(f"time      {fitted.seconds:.1f} s")
    print(f"model     {args.out} ({os.path.getsize(args.out) / 1000:.0f} kB)")


def predict(args: Args) -> None:
    command = _command("predict")
    found = command.predict_table(_wanted(command, args))
    if not args.quiet:
        print(f"{found.rows} rows in {found.seconds:.1f} s: {args.out}")


def evaluate(args: Args) -> None:
    command = _command("evaluate")
    found = command.evaluate_table(_wanted(command, args))
    if args.json:
        numbers = {name: {key: _finite(v) for key, v in scores.items()} for name, scores in found.scores.items()}
        print(json.dumps({"rows": found.rows, "seconds": found.seconds, "targets": numbers}))
        return
    for name, scores in found.scores.items():
        print(f"{name} ({found.rows} rows)")
        for key, value in scores.items():
            print(f"  {_label(key):24}{value:.5g}")


def parser() -> Parser:
    shared = Parser(add_help=False)
    shared.add_argument("--threads", type=_positive, metavar="N", help="threads of the computation")
    shared.add_argument("--quiet", action="store_true", help="no progress and no report, only results and errors")
    shared.add_argument("--delimiter", type=_delimiter, metavar="C", help="of a CSV file: one character, or tab")
    shared.add_argument("--debug", action="store_true", help="show where an error comes from")
    parts = Parser(add_help=False)
    parts.add_argument("--chunk-rows", type=_positive, default=10_000, metavar="N", help="rows in memory at a time (10000)")
    parts.add_argument("--timeout", type=_positive, default=60, metavar="S", help="of torchrun: wait for a process (60 s)")

    top = Parser(prog="torchkrr", description="Local kernel ridge regression for tables, and for images on frozen networks.")
    top.add_argument("--version", action="version", version=f"torchkrr {__version__}")
    commands = top.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Callable[[Args], None], text: str, *parents: Parser) -> Parser:
        added = commands.add_parser(name, help=text, description=text, parents=[*parents, shared])
        added.set_defaults(run=run)
        return added

    one = command("fit", fit, "Fit a model to a table; everything is chosen by leave-one-out.")
    one.add_argument("table", help="training data, .csv or .parquet")
    one.add_argument("--target", type=_names, required=True, metavar="A,B", help="column to predict, or several")
    one.add_argument("--out", required=True, metavar="FILE", help="where the model goes, such as model.krr")
    one.add_argument("--task", choices=("auto", "regression", "classification"), default="auto", help="auto: by the target")
    one.add_argument("--categorical", type=_names, default=[], metavar="A,B", help="columns of numbers that are categories")
    one.add_argument("--ignore", type=_names, default=[], metavar="A,B", help="columns to leave out")
    one.add_argument("--sample-weight", metavar="A", help="column with the weight of each row")
    one.add_argument("--metric", choices=("auto", "none", "ard", "linear"), default="auto", help="what is learned of it")
    one.add_argument("--neighbors", type=_auto_or(_positive), default="auto", metavar="N", help="rows per prediction")
    one.add_argument("--alpha", type=_auto_or(float), default="auto", metavar="X", help="ridge")
    one.add_argument("--kernel", default="auto", help="exponential, matern32, matern52, gaussian, laplacian or auto")
    one.add_argument("--seed", type=int, default=0, help="of the rows that choices are made on (0)")

    one = command("predict", predict, "Predict the rows of a table, a part at a time.", parts)
    one.add_argument("model", help="a file written by fit")
    one.add_argument("table", help="rows to predict, .csv or .parquet")
    one.add_argument("--out", required=True, metavar="FILE", help="where predictions go, .csv or .parquet")
    one.add_argument("--interval", type=_share, metavar="P", help="limits that hold a new value with this probability")
    one.add_argument("--explain", type=_positive, metavar="K", help="the K training rows of most weight, counted from 1")
    one.add_argument("--std", action="store_true", help="standard deviations")
    one.add_argument("--proba", action="store_true", help="the probability of each class")
    one.add_argument("--id", dest="carry", metavar="COLUMN", help="a column that goes into the predictions as it is")

    one = command("evaluate", evaluate, "Measure the predictions of a table whose targets are known.", parts)
    one.add_argument("model", help="a file written by fit")
    one.add_argument("table", help="rows with their targets, .csv or .parquet")
    one.add_argument("--target", type=_names, metavar="A,B", help="columns of the targets, if not as in the fit")
    one.add_argument("--json", action="store_true", help="one line of JSON")

    for name, text in EXPERIMENTS.items():
        module = importlib.import_module(f".options.{name}", __package__)
        module.add_arguments(command(name, module.run, text))
    return top


def _command(name: str) -> Any:
    # Late: --version and --help need no tables.
    return importlib.import_module(f".commands.{name}", __package__)


def _wanted(command: Any, args: Args) -> Any:
    """The arguments of a command, under the names that they have here."""
    args.progress = not args.quiet and not getattr(args, "json", False)
    return command.Wanted(**{name: getattr(args, name) for name in command.Wanted._fields})


def _only_the_first_reports(args: Args) -> contextlib.AbstractContextManager[Any]:
    """Of processes that share the work, the others are quiet, but for errors."""
    if not hasattr(args, "timeout") or os.environ.get("RANK", "0") == "0":
        return contextlib.nullcontext()
    args.quiet = True
    return contextlib.redirect_stdout(io.StringIO())


def _label(key: str) -> str:
    return LABELS.get(key, key.replace("_", " "))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has nothing else


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
    raise SystemExit(143)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"must be different names of columns, separated by commas, got {text!r}")
    return names


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _auto_or(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return text if text == "auto" else kind(text)

    return read


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, such as 0.9, got {text!r}")
    return share


def _delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(text) != 1 or not text.isascii():
        raise argparse.ArgumentTypeError(f"must be one character or tab, got {text!r}")
    return text
