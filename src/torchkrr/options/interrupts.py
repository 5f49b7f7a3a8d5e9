"""What an interrupted command says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def resumable(out: Any) -> Iterator[None]:
    """An interrupt inside says that nothing in the folder `out` is lost."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is done is kept in {out}; the same command goes on from there.") from None
