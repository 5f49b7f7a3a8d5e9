"""The page that leads from the paper to the code: what it names exists, and it leaves no equation out."""

import ast
import functools
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "paper-to-code.md").read_text()
PAPER = ROOT.parent / "shared" / "paper.tex"
NAMES = sorted(set(re.findall(r"`((?:torchkrr|paper)(?:\.\w+)+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE)))


def resolved(name: str) -> object:
    """The object behind a dotted name, modules imported as needed."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], found)
    raise AssertionError(name)


def rows(first: str) -> list[str]:
    return re.findall(rf"^\| {first} \|.*$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_of_the_page_exists(name):
    assert resolved(name) is not None


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_page_exists(name):
    path, function = name.split("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_equation_has_code_and_a_test():
    equations = rows(r"\(\d+\)")
    assert [int(re.match(r"\| \((\d+)\)", row)[1]) for row in equations] == list(range(1, 22))
    for row in equations:
        *_, code, held = row.strip("| ").split(" | ")
        assert "`" in code, row
        assert "tests/" in held, row


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not here")
def test_no_equation_table_or_figure_of_the_paper_is_left_out():
    body = PAPER.read_text().split(r"\begin{document}")[1]
    equations = len(re.findall(r"\\be\b|\\begin\{equation\}", body))
    assert len(rows(r"\(\d+\)")) == equations
    assert len(rows(r"Figure \d")) == len(re.findall(r"\\begin\{figure\}", body))
    assert len(rows(r"Table \d")) == len(re.findall(r"\\begin\{table\}", body))
