"""`torchkrr completion`: a script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from .._extras import import_extra

FILES = ("FILE", "DIR", "PATH", "IMAGE", "FOLDER")  # in what help calls the value of an option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that will read the script")


def run(args: argparse.Namespace) -> dict[str, Any]:
    shtab = import_extra("shtab", "torchkrr completion", extra="cli")
    from . import build_parser

    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            positional = not action.option_strings and action.choices is None
            if positional or any(word in str(action.metavar) for word in FILES):
                action.complete = shtab.FILE
    script = shtab.complete(parser, shell=args.shell)
    print(script, end="")
    return {"shell": args.shell, "script": script}
