"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length as lines: the first column flush left, the others flush right.

    Example:
        >>> print(aligned([["readout", "accuracy"], ["SK", "99.5"]]))
        readout  accuracy
        SK           99.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))])
        for first, *others in rows
    )
