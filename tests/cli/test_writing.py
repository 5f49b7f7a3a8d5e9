"""Tables of predictions, whole and in parts."""

import os

import pandas as pd
import pytest
from tests.cli.running import FAST, GOOD, fails, read, works

from torchkrr.cli.writing import Parts
from torchkrr.errors import FileError


def test_carried_text_is_quoted_where_it_must_be(models, tmp_path):
    works(
        "predict", models / "mixed_test.csv", models / "mixed.krr", "--out", tmp_path / "o.csv", "--id", "color", "--quiet"
    )
    text = (tmp_path / "o.csv").read_text()
    assert '\n"dark, blue",' in text
    assert list(read(tmp_path / "o.csv")["color"].fillna("")) == list(read(models / "mixed_test.csv")["color"].fillna(""))
    works("predict", models / "mixed_test.csv", models / "mixed.krr", "--out", tmp_path / "o.csv", "--id", "code", "--quiet")
    assert '"' not in (tmp_path / "o.csv").read_text()


def test_what_is_read_is_not_replaced(model, tmp_path, capsys):
    table, link = tmp_path / "test.csv", tmp_path / "link.csv"
    table.write_text(GOOD)
    link.symlink_to(table)
    for command in (
        ("predict", table, model, "--out", table),
        ("predict", table, model, "--out", link),
        ("fit", table, "--target", "y", "--out", table, *FAST),
    ):
        assert "is read, and the result would take its place" in fails(capsys, *command)
    assert table.read_text() == GOOD


def test_parts_of_something_else_are_not_used(tmp_path):
    out = str(tmp_path / "o.csv")
    parts = Parts(out, {"model": 1})
    parts.write(0, {"a": [1, 2]})
    assert Parts(out, {"model": 1}).done == 1
    assert Parts(out, {"model": 2}).done == 0
    assert not (tmp_path / "o.csv").exists()


def test_parts_are_joined_in_order_and_go(tmp_path):
    parts = Parts(str(tmp_path / "o.csv"), {})
    for number in range(12):
        parts.write(number, {"a": [number], "b": ["x"]})
    parts.join()
    assert pd.read_csv(tmp_path / "o.csv")["a"].tolist() == list(range(12))
    assert os.listdir(tmp_path) == ["o.csv"]


def test_a_file_in_the_place_of_parts_is_named(tmp_path):
    (tmp_path / "o.csv.parts").write_text("mine")
    with pytest.raises(FileError, match=r"o\.csv\.parts cannot be used"):
        Parts(str(tmp_path / "o.csv"), {})
    assert (tmp_path / "o.csv.parts").read_text() == "mine"
