"""Whole runs on digits: what was interrupted goes on to the same numbers, and the test part is only for the end."""

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
from tests.experiments.labelled import write_features

from torchkrr._threads import threads
from torchkrr.cli import main
from torchkrr.errors import FileError, InputError
from torchkrr.experiments.checkpoints import read_checkpoint
from torchkrr.experiments.learn_config import Config
from torchkrr.experiments.learn_data import open_collection
from torchkrr.experiments.learn_records import READINGS, make_record, readings, reopen, run_key
from torchkrr.experiments.learn_report import accuracy_rows, markdown, page, who_wins
from torchkrr.experiments.learn_runs import Job, plan, run_one
from torchkrr.experiments.learn_summary import differences, summarize
from torchkrr.experiments.learn_training import Run
from torchkrr.experiments.records import read_records
from torchkrr.vision.readouts import Quality

TINY = Config(dataset="digits", samples=60, epochs=4, discard=4, checkpoint_every=2, augmentation="shift")
ASKED = ["learn", "--dataset", "digits", "--samples", "60", "--depths", "4", "--seeds", "1", "--augmentation", "shift"]


@pytest.fixture(scope="module")
def digits():
    return open_collection("digits")


def numbers(record):
    """What must be the same whenever and however often a run was interrupted: all but times."""
    return {key: value for key, value in record.items() if key != "seconds"}


@pytest.mark.parametrize("changes", [{}, {"head": "linear"}, {"objective": "centers", "gromov_monge": 0.1}], ids=str)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, digits, changes):
    config = dataclasses.replace(TINY, **changes)
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
    run = Run(TINY, digits, tmp_path / "x.pt")
    run.train()
    assert {part for part, _ in seen} == {"training"}
    assert set().union(*(rows for _, rows in seen)) == set(run.rows.all.tolist())


def test_gradients_come_from_the_fitted_rows_alone(tmp_path, digits, monkeypatch):
    run = Run(TINY, digits, tmp_path / "x.pt")
    read, seen = type(digits.train).read, []

    def watched(self, rows):
        if run.cut.backbone.training:
            seen.extend(rows)
        return read(self, rows)

    monkeypatch.setattr(type(digits.train), "read", watched)
    run.train()
    assert sorted(seen) == sorted(TINY.epochs * run.rows.fit.tolist())
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
    config = dataclasses.replace(TINY, epochs=9, patience=2, smoothing=smoothing)
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
    Run(dataclasses.replace(TINY, epochs=1), digits, tmp_path / "x.pt").train()
    with pytest.raises(FileError, match=r"another run: epochs was 1 and is 4"):
        Run(TINY, digits, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="is not a checkpoint"):
        Run(TINY, digits, tmp_path / "x.pt")


def test_a_record_says_what_was_measured_and_the_model_can_be_opened_again(tmp_path, digits):
    config = dataclasses.replace(TINY, objective="centers", num_centers=20, num_neighbors=30)
    key = run_key(config, digits.fingerprint)
    record = run_one(Job(config, key, tmp_path))
    assert list(record["readings"]) == ["sk", "sk-fit", "centers", "sk-paper"]
    assert set(record["readings"]) <= set(READINGS)
    assert (record["samples"], record["num_fit"], record["num_test"], record["steps"]) == (60, 54, 359, 4)
    assert record["parameters"] == {"backbone": 928, "head": 20 * 32 + 20 * 10 + 3}
    path = next((tmp_path / "models").iterdir())
    with pytest.raises(FileError, match="another run: dataset was"):
        reopen(path, digits._replace(train=digits.test))
    run = reopen(path, digits)
    assert readings(run) == record["readings"]
    # The accuracy, once more by hand: SK on all 60 rows with the trained kernel.
    backbone, prepare = run.cut.backbone.eval(), run.cut.prepare
    with torch.no_grad():
        centers, query = (
            backbone(prepare(pictures.read(rows)))
            for pictures, rows in ((digits.train, run.rows.all.tolist()), (digits.test, range(359)))
        )
        found = run.head.readout(centers, digits.train.labels[run.rows.all])(query).argmax(1)
    assert record["accuracy"] == pytest.approx(float((found == digits.test.labels).double().mean()), abs=0.003)


def test_keys_depend_on_settings_and_data_and_not_on_how_runs_are_looked_at():
    key = run_key(TINY, "data")
    assert key == run_key(dataclasses.replace(TINY, checkpoint_every=9, tensorboard=True, keep_model=False), "data")
    assert len({key, run_key(TINY, "other"), run_key(dataclasses.replace(TINY, ridge=0.5), "data")}) == 3


def test_keys_depend_on_what_is_in_a_file_of_weights_and_not_on_its_place(tmp_path):
    for name, contents in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.pth").write_bytes(contents)
    one, other, copy = (
        run_key(dataclasses.replace(TINY, weights=str(tmp_path / name / "w.pth")), "data") for name in ("a", "b", "c")
    )
    assert one == copy != other


def test_a_run_goes_on_where_its_data_are_spelled_otherwise(tmp_path, digits):
    run = Run(TINY, digits, tmp_path / "x.pt")
    run.train()
    again = Run(dataclasses.replace(TINY, dataset="./digits"), digits, tmp_path / "x.pt")
    assert again.epochs == run.epochs
    with pytest.raises(FileError, match="another run: ridge was"):
        Run(dataclasses.replace(TINY, ridge=0.5), digits, tmp_path / "x.pt")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_command_that_was_stopped_goes_on_to_the_same_numbers(tmp_path, digits, how):
    out = tmp_path / "out"
    asked = [*ASKED, "--epochs", "300", "--heads", "kernel", "--checkpoint-every", "2", "--set", "patience=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = "0" if how == signal.SIGINT else "1"
    run = [sys.executable, "-m", "torchkrr", *asked, "--processes", processes, "--out", str(out)]
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


def test_the_command_writes_everything_and_the_next_one_uses_it(tmp_path, capsys):
    out = tmp_path / "out"
    asked = [*ASKED, "--epochs", "2", "--processes", "0", "--out", str(out)]
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
    assert main([*ASKED, "--network", "vgg-tiny", "--processes", "1", "--out", str(tmp_path), "--quiet"]) == 1
    assert "There is no backbone 'vgg-tiny'" in capsys.readouterr().err


def test_features_cannot_be_trained(tmp_path):
    with pytest.raises(InputError, match="has features, not pictures"):
        open_collection(str(write_features(tmp_path / "some.npz")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--depths", "0,5"), "numbers of stages from 0 to 4"),
        (("--samples", "3"), "at least 8, or all"),
        (("--heads", "forest"), "kernel, linear or both"),
        (("--objective", "leaky"), "invalid choice"),
        (("--seeds", "0"), "whole number"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["learn", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_setting_that_does_not_exist_is_told(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["learn", "--set", "speed=3"])
    assert "--set: takes NAME=VALUE with a name among batch_size, learning_rate" in capsys.readouterr().err


def test_a_plan_has_every_run_seed_by_seed():
    found = plan(TINY, depths=[0, 2], seeds=2)
    assert [(run.seed, run.discard, run.head) for run in found[:4]] == [
        (0, 0, "kernel"),
        (0, 0, "linear"),
        (0, 2, "kernel"),
        (0, 2, "linear"),
    ]
    assert len(found) == 8
    with pytest.raises(InputError, match="at least one depth"):
        plan(TINY, depths=[], seeds=1)


def made_up(head, discard, seed, accuracy):
    shown = {"sk": {"accuracy": accuracy}} if head == "kernel" else {"linear": {"accuracy": accuracy}}
    return {
        "head": head,
        "discard": discard,
        "seed": seed,
        "accuracy": accuracy,
        "readings": shown,
        "steps": 10,
        "dataset": "<data>",
        "network": "vgg-small",
        "samples": 100,
        "num_fit": 90,
        "num_test": 50,
        "size": 32,
        "config": dataclasses.asdict(dataclasses.replace(TINY, head=head)),
        "parameters": {"backbone": 1000, "head": 2},
        "num_features": 32,
        "epochs": {"accuracy": [0.1, 0.2]},
        "seconds": {"train": 1.0, "step": 0.1},
        "versions": {"torch": "2"},
    }


RECORDS = [
    made_up(head, discard, seed, accuracy)
    for head, accuracies in (("kernel", (0.5, 0.6, 0.3, 0.4)), ("linear", (0.45, 0.67, 0.4, 0.6)))
    for (discard, seed), accuracy in zip(((0, 0), (0, 1), (1, 0), (1, 1)), accuracies, strict=True)
]


def test_the_table_has_means_ranges_and_paired_differences():
    cells = summarize(RECORDS)
    assert differences(cells, "loo")[0] == pytest.approx([0.05, -0.07])
    rows = accuracy_rows(cells)
    assert rows[1] == ["kernel, leave-one-out", "55.0 (50.0 to 60.0)", "35.0 (30.0 to 40.0)"]
    assert rows[2] == ["linear head", "56.0 (45.0 to 67.0)", "50.0 (40.0 to 60.0)"]
    assert rows[3][1] == "-1.0 (-7.0 to +5.0)"
    assert rows[3][2] == "-15.0 (-20.0 to -10.0)"
    assert "has the larger mean at 0 of 2 depths" in who_wins(
        summarize(RECORDS[:2] + RECORDS[4:6] + RECORDS[2:4] + RECORDS[6:])
    )


def test_pages_have_the_numbers_and_need_no_other_file():
    text, shown = markdown(RECORDS, "torchkrr learn"), page(RECORDS, "torchkrr learn")
    for found in (text, shown):
        assert "55.0 (50.0 to 60.0)" in found
        assert "10 of them held out" in found
    assert "&lt;data&gt;" in shown
    assert 'src="http' not in shown
    assert "$" not in shown.replace("$schema", "").split("</style>")[1].split("base64")[0]


def test_recorded_runs_can_be_read():
    """Records in the documentation are what this version writes."""
    folder = pathlib.Path(__file__).parents[2] / "docs" / "results"
    for path in sorted(folder.glob("learn-*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(len(record["epochs"]["loss"]) <= Config(**record["config"]).epochs for record in records)
        assert "| test accuracy" in markdown(records, "command")


def test_epochs_are_reported_as_they_come(tmp_path):
    said = []
    key = "0" * 32
    run_one(Job(dataclasses.replace(TINY, epochs=2), key, tmp_path), lambda steps, note: said.append((steps, note)))
    assert [steps for steps, _ in said] == [1, 1, 0]
    assert "epoch 1, loss " in said[0][1]
