"""The size of the code, as `python -m tools.counts` prints it, stays within its limits."""

import subprocess
import sys

import pytest
from tools.counts import PACKAGE, PAPER, ROOT, python_files, statements

FILES, LINES, PAPER_LINES, FILE_LINES = 149, 25_500, 4_000, 600
# Packages and files for what 0.1.0 could not do at all.
NEW = ("interpolate", "quality", "stores")
NEW_FILES = (
    *("cli/audit.py", "core/tails.py", "estimators/left_out.py"),
    *("kernels/conditional.py", "neighbors/tree.py"),
)


@pytest.fixture(scope="module")
def printed():
    """The numbers of each row of the table."""
    command = [sys.executable, "-m", "tools.counts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    print(done.stdout)
    rows = [line.rsplit(maxsplit=3) for line in done.stdout.splitlines()[1:-1]]
    return {name.strip(): [int(number.replace(",", "")) for number in numbers] for name, *numbers in rows}


def test_the_package_has_few_files_and_lines(printed):
    files, lines, total = printed["torchkrr"]
    assert files == len(python_files(PACKAGE)) <= FILES
    new_lines, new_statements = (sum(printed[name][column] for name in NEW) for column in (1, 2))
    texts = [(PACKAGE / name).read_text() for name in NEW_FILES]
    assert lines - new_lines - sum(text.count("\n") for text in texts) <= LINES
    assert total - new_statements - sum(map(statements, texts)) < printed["torchkrr 0.1.0"][2]


def test_the_experiments_of_the_paper_are_short(printed):
    assert printed["paper"][1] <= PAPER_LINES


def test_the_packages_and_modules_add_up(printed):
    parts = [numbers for name, numbers in printed.items() if name not in ("torchkrr", "paper", "torchkrr 0.1.0")]
    assert [sum(column) for column in zip(*parts, strict=True)] == printed["torchkrr"]


@pytest.mark.parametrize("path", python_files(PACKAGE) + python_files(PAPER), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_long(path):
    assert path.read_text().count("\n") <= FILE_LINES


def test_docstrings_and_comments_are_no_statements():
    assert statements('"""A docstring."""\nif x:  # a comment\n    y = 1\n\n    def f():\n        """Another."""\n') == 3
