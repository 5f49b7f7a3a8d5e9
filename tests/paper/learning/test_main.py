"""The command `python -m paper.learning`."""

import os

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
