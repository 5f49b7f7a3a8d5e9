"""Whole runs on CartPole: the same seed gives the same numbers, also when a run was killed in between."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from paper.checkpoints import read_checkpoint
from paper.lander.__main__ import main
from paper.lander.training import Run, run_all
from tests.paper.tiny import LANDER, LANDER_OPTIONS, numbers, play, stop_at

import torchkrr
from paper.lander import training
from torchkrr._threads import threads
from torchkrr.errors import FileError, InputError, KernelRidgeError
from torchkrr.runs import read_records


def weights(folder, label="dqk"):
    return read_checkpoint(folder / f"{label}-seed0.pt", "lander")["agent"]


@pytest.mark.parametrize("agent", ["dqn", "dqk"])
def test_same_seed_same_numbers_and_other_seed_others(tmp_path, agent):
    config = dataclasses.replace(LANDER, agent=agent)
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, second = (play(config, folder) for folder in folders)
    assert numbers(first) == numbers(second)
    assert len(first["rewards"]) == 8
    assert len(first["evaluation"]) == 2
    assert any(first["losses"])
    other = play(dataclasses.replace(config, seed=1), tmp_path)
    assert other["rewards"] != first["rewards"]


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = play(LANDER, whole)
    with pytest.raises(KeyboardInterrupt):
        play(LANDER, broken, stop_at(5))  # two games after the last checkpoint
    assert len(read_checkpoint(broken / "dqk-seed0.pt", "lander")["episodes"]) == 3
    torch.manual_seed(99)  # whatever the state of the global generator
    assert numbers(play(LANDER, broken)) == numbers(expected)
    torch.testing.assert_close(weights(broken), weights(whole), rtol=0, atol=0)


def test_a_longer_run_continues_a_shorter_one(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    short.mkdir()
    long.mkdir()
    play(dataclasses.replace(LANDER, episodes=4), short)
    assert numbers(play(LANDER, short)) == numbers(play(LANDER, long))
    with pytest.raises(FileError, match="has 8 games, more than the 4 asked for"):
        Run(dataclasses.replace(LANDER, episodes=4), long / "dqk-seed0.pt")


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """SIGKILL, at any moment: of the command and of its worker."""
    command = ["--agent", "dqk", "--seeds", "1", "--episodes", "30", *LANDER_OPTIONS, "--quiet", "--out"]
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-m", "paper.lander", *command, str(broken), "--processes", "1"]
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
    with threads(1):  # as the worker had: sums depend on that
        for folder in (broken, whole):
            assert main([*command, str(folder)]) == 0
    (found,), (expected,) = (read_records(folder / "records.jsonl") for folder in (broken, whole))
    assert numbers(found) == numbers(expected)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    play(dataclasses.replace(LANDER, episodes=1), tmp_path)
    with pytest.raises(FileError, match=r"another run: discount was 0\.99 and is 0\.5"):
        play(dataclasses.replace(LANDER, discount=0.5), tmp_path)
    with pytest.raises(FileError, match="did not look whether it was solved"):
        play(dataclasses.replace(LANDER, stop_when_solved=True), tmp_path)
    (tmp_path / "dqk-seed0.pt").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="is not a checkpoint"):
        play(LANDER, tmp_path)


def test_what_another_version_has_left_is_not_used(tmp_path, monkeypatch):
    config = dataclasses.replace(LANDER, episodes=1)
    run_all([config], tmp_path, processes=0)
    monkeypatch.setattr(torchkrr, "__version__", "99")
    with pytest.raises(FileError, match="another run: torchkrr was"):
        run_all([config], tmp_path, processes=0)


def test_a_time_limit_is_not_the_end_of_a_game(tmp_path, monkeypatch):
    """A truncated episode keeps its future, a terminated one has none."""
    run = Run(dataclasses.replace(LANDER, agent="dqn"), tmp_path / "x.pt")
    for ending, going_on in (((True, False), 0.0), ((False, True), 1.0), ((True, True), 0.0)):
        monkeypatch.setattr(training, "move", lambda game, action, e=ending: (torch.zeros(4), 1.0, *e))
        before = len(run.replay)
        assert run._episode(before).moves == 1
        assert float(run.replay._rows[before, -1]) == going_on


def test_a_solved_run_can_end_and_go_on(tmp_path, monkeypatch):
    # Of validation, not before the third game: lost at once, lost in the 100, won.
    rewards = iter([0] * 20 + [2] * 20 + [0] * 80 + [2] * 200)
    monkeypatch.setattr(Run, "threshold", 1.0)  # of any game, since each move gives 1
    monkeypatch.setattr(training, "play", lambda *args, stream=0: float(next(rewards)) if stream else 0.0)
    config = dataclasses.replace(LANDER, stop_when_solved=True)
    solved = play(config, tmp_path)
    assert len(solved["rewards"]) == 3
    assert len(play(config, tmp_path)["rewards"]) == 3  # from its checkpoint
    went_on = play(dataclasses.replace(config, stop_when_solved=False), tmp_path)
    assert len(went_on["rewards"]) == LANDER.episodes
    (tmp_path / "whole").mkdir()
    monkeypatch.undo()
    assert went_on["rewards"] == play(LANDER, tmp_path / "whole")["rewards"]


def test_finished_runs_are_not_repeated(tmp_path):
    config = dataclasses.replace(LANDER, episodes=2)
    (first,) = run_all([config], tmp_path, processes=0)
    written = (tmp_path / "dqk-seed0.pt").stat().st_mtime_ns
    (second,) = run_all([config], tmp_path, processes=0)
    assert first == second
    assert (tmp_path / "dqk-seed0.pt").stat().st_mtime_ns == written


def test_runs_of_the_plain_agent_serve_beside_every_kernel(tmp_path):
    plain = dataclasses.replace(LANDER, agent="dqn", episodes=1)
    same = dataclasses.replace(plain, ridge=0.5, parts="last", checkpoint_every=1)
    assert run_all([same], tmp_path, processes=0) == run_all([plain], tmp_path, processes=0)
    assert len(read_records(tmp_path / "records.jsonl")) == 1
    for changes in ({"hidden": 8}, {"evaluation_episodes": 3}, {"episodes": 2}, {"agent": "dqk"}):
        assert dataclasses.replace(plain, **changes).record_identity() != plain.record_identity()


def test_a_loss_that_is_not_a_number_ends_a_run(tmp_path, monkeypatch):
    run = Run(dataclasses.replace(LANDER, agent="dqn"), tmp_path / "x.pt")
    monkeypatch.setattr(run.agent, "learn", lambda batch: torch.tensor(torch.nan))
    with pytest.raises(KernelRidgeError, match=r"The loss of game \d+ is nan. Try a smaller learning_rate"):
        run.train()


def test_a_game_without_a_threshold_cannot_be_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "threshold", None)
    with pytest.raises(InputError, match="CartPole-v1 names no reward at which it is solved"):
        Run(dataclasses.replace(LANDER, stop_when_solved=True), tmp_path / "x.pt")


def test_an_error_in_a_worker_is_told(tmp_path):
    with pytest.raises(KernelRidgeError, match="Cannot make the environment 'Nothing-v0'"):
        run_all([dataclasses.replace(LANDER, environment="Nothing-v0")], tmp_path)
