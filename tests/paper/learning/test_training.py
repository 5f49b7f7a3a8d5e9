"""Whole runs on digits: what was interrupted goes on to the same numbers, and the test part is only for the end."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from paper.checkpoints import read_checkpoint
from paper.learning.config import Config
from paper.learning.data import open_images
from paper.learning.runs import make_record
from paper.learning.training import Run
from tests.paper.tiny import LEARNING, LEARNING_OPTIONS, numbers

from torchkrr._threads import threads
from torchkrr.errors import FileError
from torchkrr.vision.readouts import Quality, quality


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")


@pytest.mark.parametrize("changes", [{}, {"head": "linear"}, {"objective": "centers", "gromov_monge": 0.1}], ids=str)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, digits, changes):
    config = dataclasses.replace(LEARNING, **changes)
    whole, broken = Run(config, digits, tmp_path / "whole.pt"), Run(config, digits, tmp_path / "broken.pt")
    whole.train()

    def stop(number, epoch):
        if number == 3:  # one epoch after the last checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.train(stop)
    torch.manual_seed(99)  # whatever the state of the global generator
    resumed = Run(config, digits, tmp_path / "broken.pt")
    assert len(resumed.epochs) == 2
    resumed.train()
    first, second = (read_checkpoint(tmp_path / f"{name}.pt", "learn") for name in ("whole", "broken"))
    for part in ("weights", "optimizer", "best_weights"):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)
    assert numbers(make_record(whole, "a")) == numbers(make_record(resumed, "a"))
    other = Run(dataclasses.replace(config, seed=1), digits, tmp_path / "other.pt")
    other.train()
    assert other.epochs[0].loss != whole.epochs[0].loss


def test_training_looks_at_the_validation_part_and_never_at_the_test_part(tmp_path, digits, monkeypatch):
    seen = []
    read = type(digits.train).read
    monkeypatch.setattr(
        type(digits.train), "read", lambda self, rows: seen.append((self.part, set(rows))) or read(self, rows)
    )
    run = Run(LEARNING, digits, tmp_path / "x.pt")
    run.train()
    assert {part for part, _ in seen} == {"training"}
    assert set().union(*(rows for _, rows in seen)) == set(run.rows.all.tolist())


def test_gradients_come_from_the_fitted_rows_alone(tmp_path, digits, monkeypatch):
    run = Run(LEARNING, digits, tmp_path / "x.pt")
    read, seen = type(digits.train).read, []

    def watched(self, rows):
        if run.cut.backbone.training:
            seen.extend(rows)
        return read(self, rows)

    monkeypatch.setattr(type(digits.train), "read", watched)
    run.train()
    assert sorted(seen) == sorted(LEARNING.epochs * run.rows.fit.tolist())
    assert len(seen) == 4 * 54


@pytest.mark.parametrize(
    ("smoothing", "found", "best", "ended"),
    [
        (1, [(0.1, 1.0), (0.3, 1.0), (0.3, 0.9), (0.3, 0.95), (0.2, 0.1), (0.9, 0.1)], 3, 5),
        (2, [(0.1, 1.0), (0.9, 1.0), (0.2, 1.0), (0.7, 1.0), (0.6, 1.0), (0.1, 1.0), (0.2, 1.0)], 5, 7),
        (3, [(0.9, 1.0), (0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.1, 1.0), (0.0, 1.0)], 3, 5),
        (8, [(0.3, 1.0), (0.9, 1.0), (0.0, 1.0), (0.0, 1.0)], 2, 4),
    ],
)
def test_the_best_epoch_on_the_validation_part_is_taken_and_patience_ends(
    tmp_path, digits, monkeypatch, smoothing, found, best, ended
):
    config = dataclasses.replace(LEARNING, epochs=9, patience=2, smoothing=smoothing)
    run = Run(config, digits, tmp_path / "x.pt")
    given, weights = iter(found), []

    def validate():
        weights.append(next(run.cut.backbone.parameters()).detach().clone())
        return Quality(*next(given))

    monkeypatch.setattr(run, "validate", validate)
    run.train()
    assert (run.best, len(run.epochs)) == (best, ended)
    assert torch.equal(next(run.cut.backbone.parameters()), weights[best - 1])
    assert not torch.equal(weights[best - 1], weights[-1])
    assert Run(config, digits, tmp_path / "x.pt").finished


def test_a_checkpoint_of_other_settings_is_refused(tmp_path, digits):
    Run(dataclasses.replace(LEARNING, epochs=1), digits, tmp_path / "x.pt").train()
    with pytest.raises(FileError, match=r"another run: epochs was 1 and is 4"):
        Run(LEARNING, digits, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="is not a checkpoint"):
        Run(LEARNING, digits, tmp_path / "x.pt")


def test_a_run_goes_on_where_its_data_are_spelled_otherwise(tmp_path, digits):
    run = Run(LEARNING, digits, tmp_path / "x.pt")
    run.train()
    again = Run(dataclasses.replace(LEARNING, dataset="./digits"), digits, tmp_path / "x.pt")
    assert again.epochs == run.epochs
    with pytest.raises(FileError, match="another run: ridge was"):
        Run(dataclasses.replace(LEARNING, ridge=0.5), digits, tmp_path / "x.pt")


def test_validation_predicts_from_features_of_the_network_as_it_is(tmp_path, digits):
    run = Run(LEARNING, digits, tmp_path / "x.pt")
    run.cut.backbone.train()
    before, judged = run.features(run.rows.fit), run.validate()
    images = run.cut.prepare(digits.train.read(run.rows.fit[:20].tolist()))
    for _ in range(5):
        run.learn(images, digits.train.labels[run.rows.fit[:20]])
    after = run.features(run.rows.fit)
    assert not torch.equal(after, before)
    assert run.cut.backbone.training
    query, labels = run.features(run.rows.validation), digits.train.labels[run.rows.validation]
    with torch.no_grad():
        scores = run.head.readout(after, digits.train.labels[run.rows.fit])(query)
        expected = quality(scores, labels, float(run.head.temperature))
    assert run.validate() == expected != judged


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_command_that_was_stopped_goes_on_to_the_same_numbers(tmp_path, digits, how):
    out = tmp_path / "out"
    asked = [*LEARNING_OPTIONS, "--epochs", "300", "--heads", "kernel", "--checkpoint-every", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = "0" if how == signal.SIGINT else "1"
    run = [sys.executable, "-m", "paper.learning", *asked, "--processes", processes, "--out", str(out)]
    process = subprocess.Popen(run, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not list(out.glob("checkpoints/*.pt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, how)
    _, error = process.communicate(timeout=120)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from there" in error
    (checkpoint,) = out.glob("checkpoints/*.pt")
    begun = read_checkpoint(checkpoint, "learn")
    assert 0 < len(begun["epochs"]) < 300
    # Going on in this process, to a near end.
    config = Config(**{**begun["config"], "epochs": 300})
    with threads(1 if how == signal.SIGKILL else torch.get_num_threads()):  # as many as it had: sums depend on that
        resumed, whole = Run(config, digits, checkpoint), Run(config, digits, tmp_path / "whole.pt")
        for _ in range(3):
            resumed.epochs.append(resumed._epoch(len(resumed.epochs)))
        while len(whole.epochs) < len(resumed.epochs):
            whole.epochs.append(whole._epoch(len(whole.epochs)))
    assert [epoch.loss for epoch in whole.epochs] == [epoch.loss for epoch in resumed.epochs]
    torch.testing.assert_close(resumed._weights(), whole._weights(), rtol=0, atol=0)
