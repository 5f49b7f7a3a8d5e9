"""Whole runs on CartPole: the same seed gives the same numbers, also when a run was killed in between."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch

from torchkrr.cli import main
from torchkrr.errors import FileError, InputError, KernelRidgeError
from torchkrr.experiments import lander_records, lander_training
from torchkrr.experiments.checkpoints import read_checkpoint, write_checkpoint
from torchkrr.experiments.lander_config import AGENTS, Config
from torchkrr.experiments.lander_records import finished
from torchkrr.experiments.lander_report import report
from torchkrr.experiments.lander_runs import run_all, run_one
from torchkrr.experiments.lander_training import Run

TINY = Config(
    environment="CartPole-v1",
    episodes=8,
    hidden=16,
    num_centers=8,
    random_states=100,
    batch_size=16,
    replay_size=60,
    evaluation_episodes=2,
    checkpoint_every=3,
)
SMOKE = ["--environment", "CartPole-v1", "--processes", "1", "--set", "hidden=16", "--set", "num_centers=8"]
SMOKE += ["--set", "random_states=100", "--set", "batch_size=16", "--checkpoint-every", "2", "--evaluation-episodes", "1"]


def numbers(record):
    """What must be the same whenever and however often a run was interrupted: all but times."""
    return {key: value for key, value in record.items() if not key.startswith("seconds")}


def weights(folder, label="dqk"):
    return read_checkpoint(folder / f"{label}-seed0.pt", "lander")["agent"]


@pytest.mark.parametrize("agent", ["dqn", "dqk"])
def test_same_seed_same_numbers_and_other_seed_others(tmp_path, agent):
    config = dataclasses.replace(TINY, agent=agent)
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, second = (run_one(config, folder) for folder in folders)
    assert numbers(first) == numbers(second)
    assert len(first["rewards"]) == 8
    assert len(first["evaluation"]) == 2
    assert any(first["losses"])
    other = run_one(dataclasses.replace(config, seed=1), tmp_path)
    assert other["rewards"] != first["rewards"]


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = run_one(TINY, whole)

    def stop(number, episode):
        if number == 5:  # two games after the last checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(TINY, broken, stop)
    assert len(read_checkpoint(broken / "dqk-seed0.pt", "lander")["episodes"]) == 3
    torch.manual_seed(99)  # whatever the state of the global generator
    assert numbers(run_one(TINY, broken)) == numbers(expected)
    torch.testing.assert_close(weights(broken), weights(whole), rtol=0, atol=0)


def test_a_longer_run_continues_a_shorter_one(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()
    run_one(dataclasses.replace(TINY, episodes=4), short)
    assert numbers(run_one(TINY, short)) == numbers(run_one(TINY, long))
    with pytest.raises(FileError, match="has 8 games, more than the 4 asked for"):
        Run(dataclasses.replace(TINY, episodes=4), long / "dqk-seed0.pt")


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """SIGKILL, at any moment: of the command and of its worker."""
    command = ["lander", "--agent", "dqk", "--seeds", "1", "--episodes", "30", *SMOKE, "--quiet", "--out"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-m", "torchkrr", *command, str(broken)]
    process = subprocess.Popen(run, env=environment, start_new_session=True)
    checkpoint = broken / "dqk-seed0.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    played = len(read_checkpoint(checkpoint, "lander")["episodes"])
    assert played < 30
    for folder in (broken, whole):
        assert (
            main(["lander", "--agent", "dqk", "--seeds", "1", "--episodes", "30", *SMOKE, "--quiet", "--out", str(folder)])
            == 0
        )
    found, expected = (json.loads((folder / "dqk-seed0.json").read_text()) for folder in (broken, whole))
    assert numbers(found) == numbers(expected)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    run_one(dataclasses.replace(TINY, episodes=1), tmp_path)
    with pytest.raises(FileError, match=r"another run: discount was 0\.99 and is 0\.5"):
        run_one(dataclasses.replace(TINY, discount=0.5), tmp_path)
    with pytest.raises(FileError, match="did not look whether it was solved"):
        run_one(dataclasses.replace(TINY, stop_when_solved=True), tmp_path)
    (tmp_path / "dqk-seed0.pt").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="is not a checkpoint"):
        run_one(TINY, tmp_path)


def test_what_another_version_has_left_is_not_used(tmp_path, monkeypatch):
    config = dataclasses.replace(TINY, episodes=1)
    run_one(config, tmp_path)
    assert finished(tmp_path, config) is not None
    for module in (lander_records, lander_training):
        monkeypatch.setattr(module, "__version__", "99")
    assert finished(tmp_path, config) is None
    with pytest.raises(FileError, match="another run: torchkrr was"):
        run_one(config, tmp_path)


def test_without_evaluation_there_is_no_difference_of_evaluations(tmp_path):
    runs = [run_one(dataclasses.replace(TINY, agent=agent, episodes=1, evaluation_episodes=0), tmp_path) for agent in AGENTS]
    text = report(runs, "torchkrr lander")
    assert "nan" not in text
    assert "Differences to dqn" in text
    assert " to +" not in text.split("Differences")[1]  # one run of each: there is nothing to resample


def test_a_time_limit_is_not_the_end_of_a_game(tmp_path, monkeypatch):
    """A truncated episode keeps its future, a terminated one has none."""
    run = Run(dataclasses.replace(TINY, agent="dqn"), tmp_path / "x.pt")
    for ending, going_on in (((True, False), 0.0), ((False, True), 1.0), ((True, True), 0.0)):
        monkeypatch.setattr(lander_training, "move", lambda game, action, e=ending: (torch.zeros(4), 1.0, *e))
        before = len(run.replay)
        assert run._episode(before).moves == 1
        assert float(run.replay._rows[before, -1]) == going_on


def test_a_solved_run_can_end_and_go_on(tmp_path, monkeypatch):
    # Of validation, not before the third game: lost at once, lost in the 100, won.
    rewards = iter([0] * 20 + [2] * 20 + [0] * 80 + [2] * 200)
    monkeypatch.setattr(Run, "threshold", 1.0)  # of any game, since each move gives 1
    monkeypatch.setattr(lander_training, "play", lambda *args, stream=0: float(next(rewards)) if stream else 0.0)
    config = dataclasses.replace(TINY, stop_when_solved=True)
    solved = run_one(config, tmp_path)
    assert len(solved["rewards"]) == 3
    assert len(run_one(config, tmp_path)["rewards"]) == 3  # from its checkpoint
    went_on = run_one(dataclasses.replace(config, stop_when_solved=False), tmp_path)
    assert len(went_on["rewards"]) == TINY.episodes
    (tmp_path / "whole").mkdir()
    monkeypatch.undo()
    assert went_on["rewards"] == run_one(TINY, tmp_path / "whole")["rewards"]


def test_finished_runs_are_not_repeated(tmp_path):
    config = dataclasses.replace(TINY, episodes=2)
    (first,) = run_all([config], tmp_path)
    written = (tmp_path / "dqk-seed0.pt").stat().st_mtime_ns
    (second,) = run_all([config], tmp_path)
    assert first == second
    assert (tmp_path / "dqk-seed0.pt").stat().st_mtime_ns == written


def test_runs_of_the_plain_agent_serve_beside_every_kernel(tmp_path):
    plain = dataclasses.replace(TINY, agent="dqn", episodes=1)
    run_one(plain, tmp_path)
    assert finished(tmp_path, dataclasses.replace(plain, ridge=0.5, parts="last", checkpoint_every=1)) is not None
    assert finished(tmp_path, dataclasses.replace(plain, hidden=8)) is None
    assert finished(tmp_path, dataclasses.replace(plain, evaluation_episodes=3)) is None


def test_a_loss_that_is_not_a_number_ends_a_run(tmp_path, monkeypatch):
    run = Run(dataclasses.replace(TINY, agent="dqn"), tmp_path / "x.pt")
    monkeypatch.setattr(run.agent, "learn", lambda batch: torch.tensor(torch.nan))
    with pytest.raises(KernelRidgeError, match=r"The loss of game \d+ is nan. Try a smaller learning_rate"):
        run.train()


def test_a_game_without_a_threshold_cannot_be_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "threshold", None)
    with pytest.raises(InputError, match="CartPole-v1 names no reward at which it is solved"):
        Run(dataclasses.replace(TINY, stop_when_solved=True), tmp_path / "x.pt")


def test_a_report_says_why_runs_ended(tmp_path):
    record = run_one(dataclasses.replace(TINY, episodes=1), tmp_path)
    assert "| first above 475.0 |" in report([record], "torchkrr lander")
    assert "A run ended once" not in report([record], "torchkrr lander")
    record["config"]["stop_when_solved"] = True
    assert "A run ended once 100 further games without exploration reached 475.0" in report([record], "torchkrr lander")


def test_an_error_in_a_worker_is_told(tmp_path):
    with pytest.raises(KernelRidgeError, match="Cannot make the environment 'Nothing-v0'"):
        run_all([dataclasses.replace(TINY, environment="Nothing-v0")], tmp_path)


def test_command_writes_report_figure_and_animation(tmp_path, capsys):
    out = tmp_path / "runs"
    assert main(["lander", "--seeds", "1", "--episodes", "3", *SMOKE, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "| dqn | 1 | 3 |" in text
    assert "| dqk | 1 | 3 |" in text
    assert "bootstrap interval" in text
    assert {"lander.md", "lander.jsonl", "lander.png"} <= {path.name for path in out.iterdir()}
    assert [json.loads(line)["label"] for line in (out / "lander.jsonl").read_text().splitlines()] == ["dqn", "dqk"]
    assert not list(out.glob("*.partial"))
    assert main(["lander", "--seeds", "1", "--episodes", "3", *SMOKE, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["label"], run["seed"], run["games"]) for run in found["runs"]] == [("dqn", 0, 3), ("dqk", 0, 3)]
    assert found["unfinished"] == 0
    gif = tmp_path / "game.gif"
    assert main(["lander", "--watch", str(out / "dqk-seed0.pt"), "--out", str(gif)]) == 0
    assert capsys.readouterr().out.startswith("reward ")
    from PIL import Image

    with Image.open(gif) as picture:
        assert picture.n_frames >= 3
        assert picture.width == 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "speed=3"], "--set: takes NAME=VALUE with a name among"),
        (["--set", "seed=3"], "--set: takes NAME=VALUE with a name among"),
        (["--set", "hidden=many"], "--set: hidden takes a value such as 64"),
        (["--study", "--variants", "best"], "there is no variant 'best', choose among dqn, dqk"),
    ],
)
def test_wrong_settings_are_usage_errors(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["lander", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--watch", "missing.pt"], "There is no checkpoint at missing.pt"),
        (["--watch", "missing.pt", "--out", "game.mp4"], "must end in .gif"),
        (["--variants", "first-only"], "--variants are those of a study: give --study too"),
        (["--study", "--agent", "dqk"], "A study has agents of its own"),
        (["--game", "3"], "--game is one of --watch"),
        (["--watch", __file__], "is not a checkpoint of `torchkrr lander`, or is damaged. Expected a file ending in .pt"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys):
    assert main(["lander", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_games_too_short_to_learn_from_are_reported(tmp_path, capsys):
    arguments = ["lander", "--seeds", "1", "--episodes", "1", *SMOKE, "--set", "batch_size=600", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err.count("warning") == 0
    assert "nan" not in out
    assert "Time per optimizer step" not in out
    assert json.loads((tmp_path / "dqk-seed0.json").read_text())["seconds_per_step"] is None


def test_a_checkpoint_of_another_command_is_refused(tmp_path, capsys):
    write_checkpoint(tmp_path / "x.pt", {"config": {}}, "learn")
    assert main(["lander", "--watch", str(tmp_path / "x.pt")]) == 1
    assert "is not a checkpoint of this version of `torchkrr lander`" in capsys.readouterr().err


def test_recorded_runs_can_be_read():
    """Records in the documentation are what this version writes."""
    folder = pathlib.Path(__file__).parents[2] / "docs" / "results"
    for path in sorted((*folder.glob("lander*.jsonl"), *folder.glob("cartpole*.jsonl"))):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            config, games = Config(**record["config"]), len(record["rewards"])
            assert games == config.episodes or (config.stop_when_solved and 0 < games < config.episodes)
        assert "| agent |" in report(records, "command")
