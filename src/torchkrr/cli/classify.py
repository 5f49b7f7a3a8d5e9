"""`torchkrr classify`: the name that `torchkrr predict` had for pictures in 0.1.0."""

from __future__ import annotations

import argparse
from typing import Any

from . import predict
from .options import warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    predict.add_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    warn("classify will go in the next version. It is predict now: torchkrr predict DATA MODEL.")
    return predict.run(args)
