"""The paper's experiments are written with what every user has."""

import ast
import pathlib

import pytest

PAPER = pathlib.Path(__file__).parents[2] / "paper"


@pytest.mark.parametrize("path", sorted(PAPER.rglob("*.py")), ids=lambda path: str(path.relative_to(PAPER)))
def test_only_public_names_of_the_package_are_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            private = [part for part in name.split(".") if part.startswith("_")]
            assert not name.startswith("torchkrr") or not private, name
