"""What the commands of this folder share: options made from the fields of a dataclass, flags, exit codes.

A settings dataclass annotates its fields with `int`, `float`, `str`, `bool`, a `Literal`, or one of these `| None`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import math
import os
import pathlib
import shlex
import signal
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from torchkrr.cli import main as torchkrr
from torchkrr.errors import InputError, KernelRidgeError, MissingExtraError
from torchkrr.runs import set_threads

T = TypeVar("T")
Options = Mapping[str, str]
DONE, FAILED, INTERRUPTED, TERMINATED = 0, 1, 130, 143  # wrong usage is argparse's: 2
EXIT_CODES = "exit codes: 0 done, 1 an error, 2 wrong usage, 130 interrupted, 143 terminated"
MISSING = ("all", "none")  # on the command line, `None`
FILES = ("dataset", "weights")  # commands in reports name these without their folders
# Where and how a command runs, and what it shows: none of it changes a number.
RUN_ONLY = ("out", "processes", "time_limit", "checkpoint_every", "threads", "quiet", "json", "debug")
RULES: dict[str, Callable[[float], bool]] = {
    "be at least 1": lambda value: value >= 1,
    "be positive": lambda value: 0 < value < math.inf,
    "not be negative": lambda value: 0 <= value < math.inf,
    "lie between 0 and 1": lambda value: 0 <= value <= 1,
    "lie between 0 and 1, both excluded": lambda value: 0 < value < 1,
}


def check_fields(settings: Any, rules: Mapping[str, Sequence[str]]) -> None:
    """Check the fields of a dataclass: choices and whole numbers by annotation, numbers by the `RULES` that name them.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     rate: float = 0.1
        >>> check_fields(Settings(rate=-1.0), {"be positive": ["rate"]})
        Traceback (most recent call last):
        torchkrr.errors.InputError: rate must be positive, got -1.0.
    """
    for name, kind in typing.get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
            raise InputError(f"{name} must be one of {', '.join(typing.get_args(kind))}, got {value!r}.")
        if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{name} must be a whole number, got {value!r}.")
    for rule, names in rules.items():
        for name in names:
            if not RULES[rule](getattr(settings, name)):
                raise InputError(f"{name} must {rule}, got {getattr(settings, name)}.")


def add_options(
    parser: argparse._ActionsContainer, settings: type[Any], *, without: Collection[str] = (), texts: Mapping[str, str]
) -> None:
    """One option for each field of a dataclass, named after it, except those in `without`; `texts` explains them.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     num_centers: int = 64
        ...     learn: bool = True
        >>> parser = argparse.ArgumentParser()
        >>> add_options(parser, Settings, texts={})
        >>> parser.parse_args(["--num-centers", "8", "--no-learn"])
        Namespace(num_centers=8, learn=False)
    """
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        if field.name in without:
            continue
        kind, default = hints[field.name], field.default
        how: dict[str, Any] = {"type": kind, "metavar": "N" if kind in (int, float) else "NAME"}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        elif typing.get_origin(kind) is Literal:
            how = {"choices": typing.get_args(kind)}
        elif isinstance(kind, types.UnionType):
            how = {"type": _optional(typing.get_args(kind)[0]), "metavar": "VALUE"}
        text = f"{texts.get(field.name, '')} ({_shown(default)})".strip()
        parser.add_argument(_option(field.name), default=default, help=text.replace("%", "%%"), **how)


def at_least(least: int) -> Callable[[str], int]:
    """Reads whole numbers of at least `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return read


def choices(*allowed: T, kind: Callable[[str], T] = str) -> Callable[[str], tuple[T, ...]]:  # type: ignore[assignment]
    """Different values among those allowed, separated by commas.

    Example:
        >>> choices("kernel", "linear")("linear, kernel")
        ('linear', 'kernel')
    """

    def read(text: str) -> tuple[T, ...]:
        with contextlib.suppress(ValueError):
            values = tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",")))
            if set(values) <= set(allowed):
                return values
        named = ", ".join(map(str, allowed))
        raise argparse.ArgumentTypeError(f"must be among {named}, separated by commas, got {text!r}")

    return read


def minutes(text: str) -> float:
    """In seconds."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return 60 * float(text)
    raise argparse.ArgumentTypeError(f"must be a number that is not negative, got {text!r}")


def add_run_options(parser: argparse._ActionsContainer, out: str | None) -> None:
    """Of commands that do several runs, which can be interrupted."""
    add, cores = parser.add_argument, os.cpu_count() or 1
    add("--processes", type=at_least(0), default=cores, metavar="N", help="at a time (one per core); 0: one, on all threads")
    add("--time-limit", type=minutes, metavar="MINUTES", help="start no run after so many; the same command goes on")
    add("--out", type=pathlib.Path, default=out and pathlib.Path(out), metavar="DIR", help=f"results ({out})")


def settings_from(parser: argparse.ArgumentParser, args: argparse.Namespace, settings: type[T], **others: Any) -> T:
    """The dataclass with what was given on the command line; values that it refuses are wrong usage."""
    names = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    try:
        return settings(**{**{name: value for name, value in vars(args).items() if name in names}, **others})
    except InputError as error:
        parser.error(str(error))


def command_line(parser: argparse.ArgumentParser, args: argparse.Namespace, *, without: Collection[str] = ()) -> str:
    """The command that makes the same numbers, wherever files lie: the options that differ from their defaults.

    Example:
        >>> parser = argparse.ArgumentParser(prog="python -m paper.learning")
        >>> _ = parser.add_argument("--dataset"), parser.add_argument("--samples", default=1000)
        >>> command_line(parser, argparse.Namespace(dataset="/data/my photos", samples=None))
        "python -m paper.learning --dataset 'my photos' --samples all"
    """
    words = [parser.prog]
    for name, value in vars(args).items():
        if name in (*RUN_ONLY, *without) or value == parser.get_default(name):
            continue
        if isinstance(value, bool):
            words.append(_option(name) if value else _option(f"no_{name}"))
            continue
        text = os.path.basename(str(value).rstrip("/")) if name in FILES else _shown(value)
        words.append(f"{_option(name)} {shlex.quote(text)}")
    return " ".join(words)


def require(modules: Sequence[str], user: str, *, extra: str) -> None:
    """Look for optional packages before any work is done for which they are needed at its end."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            package = module.partition(".")[0]
            if error.name is None or error.name.partition(".")[0] != package:
                raise
            message = f'{user} needs {package}, which is not installed: pip install "torchkrr[{extra}]".'
            raise MissingExtraError(message) from None


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Any], argv: Sequence[str] | None = None
) -> int:
    """Parse, call `run`, and print what it returns if it is asked for; the exit code.

    `run` prints for people and returns plain values for programs.
    """
    add = parser.add_argument_group("all experiments").add_argument
    add("--threads", type=at_least(1), metavar="N", help="threads of the computation")
    add("--quiet", action="store_true", help="print nothing but errors and warnings")
    add("--json", action="store_true", help="print the result as one JSON object, and nothing else")
    add("--debug", action="store_true", help="show where an error comes from")
    parser.epilog = EXIT_CODES
    args = parser.parse_args(argv)
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    if args.threads is not None:
        set_threads(args.threads)
    args.quiet = args.quiet or args.json
    try:
        with contextlib.redirect_stdout(io.StringIO()) if args.quiet else contextlib.nullcontext():
            result = run(args)
        if args.json:
            print(json.dumps(result, default=str, allow_nan=False))
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        _say(parser, f"interrupted. {str(error) or 'Nothing was written.'}")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (KernelRidgeError, OSError, ValueError) as error:
        if args.debug:
            traceback.print_exc()
        _say(parser, " ".join(str(error).split()))
        return FAILED
    return DONE


def run_torchkrr(
    command: str, prog: str, settings: Mapping[str, Options], smoke: Mapping[str, Options], argv: Sequence[str] | None
) -> int:
    """Run a command of `torchkrr` with the options of the paper, which are named by the folder of their results."""
    parser = argparse.ArgumentParser(prog, description=f"torchkrr {command} with the paper's settings.", allow_abbrev=False)
    add = parser.add_argument
    add("--smoke", action="store_true", help="some seconds on the digits instead")
    add("--weights", type=pathlib.Path, metavar="DIR", help="files of weights (those of the network's library)")
    add("--out", type=pathlib.Path, default=pathlib.Path("runs"), metavar="DIR", help="folders of results (runs)")
    args = parser.parse_args(argv)
    for name, options in (smoke if args.smoke else settings).items():
        given = dict(options)
        if "weights" in given:
            file = given.pop("weights")
            given |= {} if args.weights is None else {"weights": str(args.weights / file)}
        given["out"] = str(args.out / name)
        data = given.pop("dataset")
        code = torchkrr([command, data, *(word for option, value in given.items() for word in (f"--{option}", value))])
        if code:
            return code
    return DONE


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return MISSING[0] if value is None else str(value)


def _optional(kind: type[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if text in MISSING else kind(text)

    read.__name__ = kind.__name__  # argparse names it in its errors
    return read


def _say(parser: argparse.ArgumentParser, text: str) -> None:
    print(f"{parser.prog}: {text}", file=sys.stderr, flush=True)
