"""The rule of trust switched off, and a count of what is solved again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from torchkrr.core import trust


@dataclass
class Solves:
    again: int = 0


@contextmanager
def switched_off() -> Iterator[None]:
    """Every factorization that goes through counts as resolved."""
    with mock.patch.object(trust, "TRUSTED", trust.Limits()):
        trust.limits.cache_clear()
        yield
    trust.limits.cache_clear()


@contextmanager
def counting() -> Iterator[Solves]:
    """How many results are solved again in float64."""
    counts = Solves()

    def count(number: int) -> None:
        counts.again += number

    with mock.patch.object(trust, "solved_again", count):
        yield counts
