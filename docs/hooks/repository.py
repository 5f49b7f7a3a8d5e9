"""Where the site shows a file of the repository."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
FENCE = re.compile(r"^(```.*?^```)", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")


def place_on_site(path: pathlib.Path) -> str:
    """The page or file of the site for a file of the repository: scripts get a page that shows them."""
    if path.suffix == ".py":
        return f"source/{path.relative_to(ROOT).as_posix()}.md"
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def linked_file(page: pathlib.Path, target: str) -> pathlib.Path | None:
    """The file of the repository behind a relative link on a page, if it is one."""
    if re.match(r"[a-z]+:", target):
        return None
    path = (page.parent / target).resolve()
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def prose_of(markdown: str) -> str:
    """A page without its blocks of code, where brackets are no links."""
    return FENCE.sub("", markdown)
