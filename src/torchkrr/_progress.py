"""A progress line on standard error, without dependencies."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

BAR = 24
SECONDS_BETWEEN = 0.1


class Progress:
    """`with Progress("learning", total, shown=True) as bar: bar.advance(note="loss 0.1")`.

    On a terminal the line is rewritten in place; elsewhere (a log file) only the last state is written, once.
    """

    def __init__(self, title: str, total: int, *, shown: bool, stream: TextIO | None = None) -> None:
        self.title, self.total, self.shown = title, total, shown
        self.done, self.note = 0, ""
        self._stream = sys.stderr if stream is None else stream
        self._start = self._last = time.monotonic()
        self._live = shown and self._stream.isatty()

    def __enter__(self) -> Progress:
        return self

    def advance(self, steps: int = 1, *, note: str | None = None) -> None:
        """Without steps, the note says what begins now, and is shown at once."""
        self.done += steps
        self.note = self.note if note is None else note
        now = time.monotonic()
        if self._live and (not steps or now - self._last >= SECONDS_BETWEEN):
            self._last = now
            self._stream.write("\r" + self.line() + "\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        seconds = time.monotonic() - self._start
        filled = BAR * min(self.done, self.total) // max(self.total, 1)
        rest = f", {seconds / self.done * (self.total - self.done):.0f} s left" if 0 < self.done < self.total else ""
        note = f"  {self.note}" if self.note else ""
        return f"{self.title} |{'#' * filled}{'.' * (BAR - filled)}| {self.done}/{self.total} in {seconds:.0f} s{rest}{note}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.shown:
            self._stream.write(("\r" if self._live else "") + self.line() + ("\x1b[K\n" if self._live else "\n"))
            self._stream.flush()
