"""The command `python -m paper.lander`."""

import json

import pytest
from paper.checkpoints import write_checkpoint
from paper.lander.__main__ import main
from tests.paper.tiny import LANDER_OPTIONS

from torchkrr.runs import read_records


def test_command_writes_report_figure_and_animation(tmp_path, capsys):
    out = tmp_path / "runs"
    assert main(["--seeds", "1", "--episodes", "3", *LANDER_OPTIONS, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "| dqn | 1 | 3 |" in text
    assert "| dqk | 1 | 3 |" in text
    assert "bootstrap interval" in text
    assert {"report.md", "records.jsonl", "figure.png"} <= {path.name for path in out.iterdir()}
    assert [record["label"] for record in read_records(out / "records.jsonl")] == ["dqn", "dqk"]
    assert not list(out.glob("*.partial"))
    assert main(["--seeds", "1", "--episodes", "3", *LANDER_OPTIONS, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["label"], run["seed"], run["games"]) for run in found["runs"]] == [("dqn", 0, 3), ("dqk", 0, 3)]
    assert found["unfinished"] == 0
    gif = tmp_path / "game.gif"
    assert main(["--watch", str(out / "dqk-seed0.pt"), "--out", str(gif)]) == 0
    assert capsys.readouterr().out.startswith("reward ")
    from PIL import Image

    with Image.open(gif) as picture:
        assert picture.n_frames >= 3
        assert picture.width == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--watch", "missing.pt"], "There is no checkpoint at missing.pt"),
        (["--watch", "missing.pt", "--out", "game.mp4"], "must end in .gif"),
        (["--variants", "first-only"], "--variants are those of a study: give --study too"),
        (["--study", "--agent", "dqk"], "A study has agents of its own"),
        (["--game", "3"], "--game is one of --watch"),
        (
            ["--watch", __file__],
            "is not a checkpoint of `python -m paper.lander`, or is damaged. Expected a file ending in .pt",
        ),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_games_too_short_to_learn_from_are_reported(tmp_path, capsys):
    arguments = ["--seeds", "1", "--episodes", "1", *LANDER_OPTIONS, "--batch-size", "600", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err.count("warning") == 0
    assert "nan" not in out
    assert "Time per optimizer step" not in out
    assert all(record["seconds_per_step"] is None for record in read_records(tmp_path / "records.jsonl"))


def test_a_checkpoint_of_another_command_is_refused(tmp_path, capsys):
    write_checkpoint(tmp_path / "x.pt", {"config": {}}, "learn")
    assert main(["--watch", str(tmp_path / "x.pt")]) == 1
    assert "is not a checkpoint of this version of `python -m paper.lander`" in capsys.readouterr().err
