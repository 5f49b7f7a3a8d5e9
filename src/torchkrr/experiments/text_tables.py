"""Tables for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, "|---" * len(rows[0]) + "|", *others])


def markdown_page(title: str, command: str, versions: Mapping[str, str], parts: Sequence[str]) -> str:
    """Paragraphs and tables that were made by a command, with the versions of what made them."""
    made = f"Made by `{command}`, where files stand without their folders; records in `records.jsonl`."
    known = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    return "\n\n".join([f"# {title}", made, *parts, known]) + "\n"
