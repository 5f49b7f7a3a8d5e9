"""Commands that can be interrupted and given again."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from . import kinds


def add_time_limit(to: argparse._ActionsContainer) -> None:
    to.add_argument(
        "--time-limit",
        type=kinds.not_negative,
        metavar="MINUTES",
        help="start no run after so many minutes; the same command goes on",
    )


@contextlib.contextmanager
def resumable(out: Any) -> Iterator[None]:
    """An interrupt inside says that nothing in the folder `out` is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is done is kept in {out}; the same command goes on from there.") from None
