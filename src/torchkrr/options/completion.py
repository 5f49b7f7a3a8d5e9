"""`torchkrr completion`: a script for the shell."""

from __future__ import annotations

import argparse
from typing import Any

from .shells import SHELLS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS), help="whose script it is")


def run(args: argparse.Namespace) -> dict[str, Any]:
    script = SHELLS[args.shell](args.top)
    print(script, end="")
    return {"shell": args.shell, "script": script}
