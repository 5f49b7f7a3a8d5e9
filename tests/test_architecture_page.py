"""The files that docs/architecture.md names for a call are those that the call enters, in this order."""

import json
import pathlib
import re

import pytest
from tools.walk import calls, walk

from torchkrr import native

DOCS = pathlib.Path(__file__).parents[1] / "docs"
NAMES = ["forward", "backward", "fit", "predict"]


@pytest.fixture(scope="module")
def prepared():
    return calls()


def files_on_the_page(name):
    section = re.search(
        rf"^### {name}\n(.*?)(?=^#|\Z)", (DOCS / "architecture.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return re.findall(r"^\| `([\w/]+\.py)` \| \S", section[1], flags=re.MULTILINE)


@pytest.mark.skipif(native.library() is None, reason="the page describes calls with the compiled solver")
@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_the_files_of_a_call_in_order(name, prepared):
    assert files_on_the_page(name) == walk(prepared[name]).files


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_was_drawn_from_the_same_files(name):
    drawn = json.loads((DOCS / "results" / "architecture.json").read_text())["files"]
    assert files_on_the_page(name) == drawn[name]
