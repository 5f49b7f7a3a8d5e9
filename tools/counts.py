"""How large the code is: files, lines and statements of the package, folder by folder, and of `paper/`.

    python -m tools.counts

prints a table, with 0.1.0 beside it. A statement is one of Python's, found by `ast`; docstrings do not count.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE, PAPER = ROOT / "src" / "torchkrr", ROOT / "paper"


class Count(NamedTuple):
    """The size of some files."""

    files: int
    lines: int
    statements: int


BEFORE = Count(224, 26_462, 14_048)  # torchkrr 0.1.0 at commit 2fc1805, where the experiments were part of the package


def count(paths: Iterable[pathlib.Path]) -> Count:
    texts = [path.read_text() for path in paths]
    return Count(len(texts), sum(text.count("\n") for text in texts), sum(map(statements, texts)))


def statements(source: str) -> int:
    """The statements of a file, docstrings and other lone constants left out."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def python_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.rglob("*.py"))


def counts() -> dict[str, Count]:
    """The size of each package of `src/torchkrr`, of the modules beside them, of all, and of `paper/`."""
    packages = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    return {
        **{package.name: count(python_files(package)) for package in packages},
        "modules": count(PACKAGE.glob("*.py")),
        "torchkrr": count(python_files(PACKAGE)),
        "paper": count(python_files(PAPER)),
    }


def main() -> None:
    rows = {**counts(), "torchkrr 0.1.0": BEFORE}
    print(f"{'':<16}{'files':>7}{'lines':>9}{'statements':>12}")
    for name, (files, lines, number) in rows.items():
        print(f"{name:<16}{files:>7,}{lines:>9,}{number:>12,}")
    longest = max((count([path]).lines, str(path.relative_to(ROOT))) for path in python_files(PACKAGE) + python_files(PAPER))
    print(f"the longest file: {longest[1]}, {longest[0]} lines")


if __name__ == "__main__":
    main()
