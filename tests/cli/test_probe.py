"""`torchkrr probe`: its table, its notes, and options that make no sense."""

import re

import pytest
from tests.vision.labeled import write_folder

from torchkrr.cli import main
from torchkrr.runs import read_records
from torchkrr.vision.summary import summarize


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("probe") / "some <digits>", 250)


def test_the_command_prints_a_table(data, tmp_path, capsys):
    given = ["probe", str(data), "--backbone", "digits", "--sizes", "60,all", "--seeds", "2"]
    given += ["--readouts", "sk,knn", "--out", str(tmp_path)]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "200 training and 50 test examples of 10 classes; digits: part of torchkrr" in printed
    assert "accuracy in % with 60 training examples, means of 2 subsamples" in printed
    assert re.search(r"last layer +top +top\.0 +middle +middle\.0 +stem\n", printed)
    assert str(tmp_path / "report.html") in printed
    text = (tmp_path / "report.md").read_text()
    command = f"torchkrr probe '{data.name}' --backbone digits --sizes 60,all --seeds 2 --readouts sk,knn"
    assert f"Made by `{command}`" in text
    cells = summarize(read_records(tmp_path / "records.jsonl"))
    assert len(cells) == 2 * 2 * 5  # sizes, readouts, depths
    assert all(f"{100 * cell.accuracy:.1f}" in text for cell in cells)
    assert main([*given, "--layers", "stem,tip"]) == 1
    assert "has no layer 'tip'" in capsys.readouterr().err


def test_a_size_larger_than_the_data_is_said_to_be(data, tmp_path, capsys):
    asked = ["probe", str(data), "--backbone", "digits", "--readouts", "knn", "--out", str(tmp_path)]
    note = "There are 200 training examples, fewer than the 1,000 labels asked for: all are used instead."
    assert main([*asked, "--sizes", "1000"]) == 0
    assert note in capsys.readouterr().out.splitlines()
    for name in ("report.md", "report.html"):
        assert note in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sizes", "10,some"), "numbers of labels"),
        (("--layers", "a,,b"), "different names of layers"),
        (("--readouts", "nothing"), "no readout 'nothing'"),
        (("--train-limit", "0"), "whole number"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["probe", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
