"""The command `python -m paper.learning`."""

import os
import sys

import pytest
from paper.learning.__main__ import main
from tests.paper.tiny import LEARNING_OPTIONS

from torchkrr.runs import read_records


def test_the_command_writes_everything_and_the_next_one_uses_it(tmp_path, capsys):
    out = tmp_path / "out"
    asked = [*LEARNING_OPTIONS, "--epochs", "2", "--processes", "0", "--out", str(out)]
    assert main([*asked, "--tensorboard"]) == 0
    printed = capsys.readouterr()
    assert "kernel, leave-one-out minus linear, same seed" in printed.out
    assert "validation accuracy" in printed.err or "evaluating" in printed.err
    assert {"records.jsonl", "figure.png", "report.md", "report.html"} <= set(os.listdir(out))
    assert [record["head"] for record in read_records(out / "records.jsonl")] == ["kernel", "linear"]
    assert len(list((out / "models").iterdir())) == 2
    assert not list((out / "checkpoints").iterdir())
    assert list(out.glob("tensorboard/vgg-small-discard4-kernel-seed0-*/events*"))
    assert str(tmp_path) not in (out / "records.jsonl").read_text() + (out / "report.html").read_text()
    written = (out / "records.jsonl").read_bytes()
    assert main(asked) == 0
    assert "2 of 2 runs were there already" in capsys.readouterr().out
    assert (out / "records.jsonl").read_bytes() == written


def test_an_error_in_a_run_is_told(tmp_path, capsys):
    assert main([*LEARNING_OPTIONS, "--network", "vgg-tiny", "--processes", "1", "--out", str(tmp_path), "--quiet"]) == 1
    assert "There is no backbone 'vgg-tiny'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--depths", "0,5"), "must be among 0, 1, 2, 3, 4"),
        (("--samples", "3"), "at least 8, or all"),
        (("--heads", "forest"), "must be among kernel, linear"),
        (("--objective", "leaky"), "invalid choice"),
        (("--seeds", "0"), "whole number"),
        (("--speed", "3"), "unrecognized arguments: --speed"),
        (("--ridge", "0"), "ridge must be positive, got 0.0"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        ([], "matplotlib", "vision"),
        (["--dataset", "digits"], "matplotlib", "demo"),
        (["--tensorboard"], "tensorboard", "tensorboard"),
    ],
)
def test_a_package_is_missed_before_anything_is_trained(arguments, package, extra, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"needs {package}, which is not installed" in said
    assert f'"torchkrr[{extra}]"' in said
    assert not (tmp_path / "out").exists()
