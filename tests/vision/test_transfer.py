"""Runs from data to report, on a features file and on a folder of images; interrupted ones give the same numbers."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tests.cli.running import fails
from tests.vision.labeled import write_features, write_folder

from torchkrr.cli import main
from torchkrr.errors import InputError
from torchkrr.estimators import load
from torchkrr.nn import LocalKernelRidge
from torchkrr.runs import read_records
from torchkrr.vision import readouts, transfer
from torchkrr.vision.transfer import TransferConfig

FILES = {"records.jsonl", "figure.png", "report.html", "report.md", "head.safetensors"}


def config(data, out, **changes):
    given = {"budgets": (50, None), "seeds": 2, "readouts": ("sk", "knn", "head"), **changes}
    return TransferConfig(dataset=str(data), out=str(out), **given)


def numbers(records):
    """All that must not depend on when and how often a run was stopped."""
    return {record["key"]: {name: value for name, value in record.items() if name != "seconds"} for record in records}


def test_a_run_on_features_leaves_everything_and_the_next_one_uses_it(tmp_path):
    data, out = write_features(tmp_path / "some.npz"), tmp_path / "out"
    first = transfer.run(config(data, out))
    assert set(os.listdir(out)) == FILES
    assert (first.reused, len(first.records)) == (0, 9)  # two budgets: 2 seeds and 1, three readouts
    assert [(cell.budget, cell.num_seeds) for cell in first.cells[:2]] == [(50, 2), (320, 1)]
    assert all(record["accuracy"] > 0.8 for record in first.records)
    written = (out / "records.jsonl").read_bytes()
    again = transfer.run(config(data, out))
    assert again.reused == 9
    assert (out / "records.jsonl").read_bytes() == written
    more = transfer.run(config(data, out, budgets=(30, 50, None)))
    assert (more.reused, len(more.records)) == (9, 15)


def test_other_data_in_the_same_file_reuse_nothing(tmp_path):
    data, out = write_features(tmp_path / "some.npz"), tmp_path / "out"
    before = transfer.run(config(data, out, readouts=("knn",)))
    changed = dict(np.load(data))
    changed["features"][7, 3] += 0.25
    np.savez(data, **changed)
    after = transfer.run(config(data, out, readouts=("knn",)))
    assert (before.reused, after.reused) == (0, 0)
    assert len(read_records(out / "records.jsonl")) == 6
    assert load(out / "head.safetensors").notes_["key"] != before.head.notes_["key"]


def test_a_run_on_a_folder_of_images(tmp_path):
    data, out = write_folder(tmp_path / "my digits", 200), tmp_path / "out"
    found = transfer.run(config(data, out, backbone="identity", size=8, seeds=1))
    assert found.inputs.classes == [f"digit {label}" for label in range(10)]
    assert found.inputs.train.features.shape[1] == 3 * 8 * 8
    assert all(record["accuracy"] > 0.7 for record in found.records)
    assert found.records[0]["seconds"]["features"] > 0
    assert found.head._ids[0].startswith("digit 0")
    assert str(tmp_path) not in (out / "records.jsonl").read_text() + (out / "report.html").read_text()


def test_a_record_says_what_was_measured(tmp_path):
    found = transfer.run(config(write_features(tmp_path / "some.npz"), tmp_path / "out", seeds=1))
    record = next(r for r in found.records if r["readout"] == "sk" and r["budget"] == 50)
    rows = transfer.budget_rows(found.inputs.train.labels, 50, 0)
    layer = LocalKernelRidge(
        found.inputs.train.features[rows],
        torch.nn.functional.one_hot(found.inputs.train.labels[rows], 10).float(),
        num_neighbors=50,
    )
    right = layer(found.inputs.test.features).argmax(1) == found.inputs.test.labels
    assert record["accuracy"] == pytest.approx(float(right.double().mean()))
    assert record["settings"] == {"num_neighbors": 100, "ridge": 1e-9, "fade": False}
    assert record["num_test"] == len(found.inputs.test.labels) == 80


def test_the_head_file_says_what_its_rows_are(tmp_path):
    data = write_folder(tmp_path / "photos", 200)
    found = transfer.run(config(data, tmp_path / "out", backbone="identity", size=8, seeds=1, readouts=("knn",)))
    head = load(tmp_path / "out" / "head.safetensors")
    rows = transfer.budget_rows(found.inputs.train.labels, None, 0).tolist()
    assert head._ids.tolist() == [found.inputs.train.source.describe(row) for row in rows]
    assert head.classes_.tolist() == found.inputs.classes
    about = head.notes_["input"]["backbone"]
    assert (head.notes_["input"]["kind"], about["name"], about["size"]) == ("images", "identity", 8)
    assert about["fingerprint"] == found.inputs.backbone["fingerprint"]
    labels = head.predict(found.inputs.test.features.numpy())
    right = sum(label == found.inputs.classes[truth] for label, truth in zip(labels, found.inputs.test.labels, strict=True))
    assert right / len(labels) == pytest.approx(found.examination.accuracy)
    given = transfer.run(config(write_features(tmp_path / "some.npz", 150), tmp_path / "two", seeds=1, readouts=("knn",)))
    assert given.head.notes_["input"] == {"kind": "features"}


def test_a_file_that_a_manifest_names_twice_is_two_rows(tmp_path):
    folder = write_folder(tmp_path / "photos", 100)
    files = sorted(path.relative_to(tmp_path) for path in folder.rglob("*.png"))
    lines = [f"{path},{path.parent.name}" for path in [*files, *files[:30]]]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    found = transfer.run(
        config(tmp_path / "some.csv", tmp_path / "out", backbone="identity", size=8, seeds=1, readouts=("knn",))
    )
    assert any(name.endswith(".png (2)") for name in found.head._ids)


def test_a_head_of_another_run_is_replaced_and_a_lost_one_made_again(tmp_path):
    data, out = write_features(tmp_path / "some.npz"), tmp_path / "out"
    first = transfer.run(config(data, out, seeds=1))
    (out / "head.safetensors").write_bytes(b"damaged")
    again = transfer.run(config(data, out, seeds=1))
    assert again.reused == len(again.records)
    assert load(out / "head.safetensors").notes_["key"] == first.head.notes_["key"]
    query = first.inputs.test.features.numpy()
    np.testing.assert_array_equal(again.head.predict_proba(query), first.head.predict_proba(query))


def test_the_head_is_written_whatever_the_readouts(tmp_path):
    found = transfer.run(
        config(write_features(tmp_path / "some.npz", 150), tmp_path / "out", budgets=(50,), readouts=("knn",))
    )
    assert {record["readout"] for record in found.records} == {"knn"}
    assert found.head.notes_["key"] == transfer.case_key(transfer.Case("head", 50, 0), found.inputs)
    assert len(found.head._ids) == 50


def test_what_was_fitted_as_a_readout_is_not_fitted_again_for_the_head(tmp_path, monkeypatch):
    fits, fit = [], readouts.EstimatorReadout.fit

    def counted(self, training):
        fits.append(len(training.labels))
        return fit(self, training)

    monkeypatch.setattr(readouts.EstimatorReadout, "fit", counted)
    given = config(write_features(tmp_path / "some.npz"), tmp_path / "out", seeds=1, readouts=("head", "knn"))
    found = transfer.run(given)
    assert fits == [50, 320]
    assert found.examination.accuracy == next(r["accuracy"] for r in found.records if r["budget"] == 320)
    transfer.run(given)
    assert fits == [50, 320]


LONG = {"budgets": (40, 80), "seeds": 20, "readouts": ("knn", "sk", "blended")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Data, and the numbers of a long run on them."""
    folder = tmp_path_factory.mktemp("long")
    data = write_features(folder / "some.npz")
    return data, numbers(transfer.run(config(data, folder / "out", **LONG)).records)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(uninterrupted, tmp_path, how):
    (data, expected), out = uninterrupted, tmp_path / "out"
    asked = ["transfer", str(data), "--budgets", "40,80", "--seeds", "20", "--readouts", "knn,sk,blended"]
    running = subprocess.Popen(
        [sys.executable, "-m", "torchkrr", *asked, "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    records = out / "records.jsonl"
    deadline = time.monotonic() + 200
    while (not records.exists() or records.read_bytes().count(b"\n") < 2) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(how)
    _, error = running.communicate(timeout=200)
    if how == signal.SIGINT:
        assert running.returncode == 130
        assert "the same command goes on from there" in error
    done = len(read_records(records))
    assert 2 <= done < 120
    with open(records, "a") as file:  # as if it had been killed a little later
        file.write('{"key": "half a li')
    resumed = transfer.run(config(data, out, **LONG))
    assert resumed.reused == done
    assert numbers(resumed.records) == expected


def test_the_command_prints_a_table(tmp_path, capsys):
    data, out = write_features(tmp_path / "some.npz"), tmp_path / "out"
    given = ["transfer", str(data), "--budgets", "50,all", "--seeds", "1", "--readouts", "sk,knn"]
    assert main([*given, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "320 training and 80 test examples of 10 classes; 64 features as given" in printed
    assert "weighted kNN" in printed
    assert str(pathlib.Path(out) / "report.html") in printed
    last = printed.splitlines()[-1]
    assert re.fullmatch(rf"head: right on \d+\.\d % of the test examples \({out}/head.safetensors\)", last)
    assert main([*given, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(cell["readout"], cell["budget"]) for cell in found["results"]] == [
        (r, b) for r in ("sk", "knn") for b in (50, 320)
    ]
    assert found["reused"] == found["records"] == 4
    assert str(pathlib.Path(out) / "report.html") in found["written"]
    accuracy = found["head"]["accuracy"]
    path = str(out / "head.safetensors")
    assert "% are right in the group of the smallest indicator" in found["head"].pop("indicator")
    assert found["head"] == {"accuracy": accuracy, "path": path}
    assert f"{100 * accuracy:.1f} %" in last
    text = (out / "report.md").read_text()
    assert f"It is right on {100 * accuracy:.1f} % of 80 test examples." in text
    assert "Made by `torchkrr transfer some.npz --budgets 50,all --seeds 1 --readouts sk,knn`" in text
    assert "where files stand without their folders" in text
    assert all(f"{100 * cell['accuracy']:.1f}" in text for cell in found["results"])
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budgets", "10,some"), "numbers of labels"),
        (("--budgets", "1"), "numbers of labels"),
        (("--readouts", "sk,nothing"), "no readout 'nothing'"),
        (("--seeds", "0"), "whole number"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["transfer", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["transfer", "probe"])
@pytest.mark.parametrize("device", ["gpu", f"cuda:{torch.cuda.device_count()}", "meta"])
def test_a_device_that_is_not_there_is_an_error_before_anything_else(command, device, tmp_path, capsys):
    message = fails(capsys, command, "nowhere", "--device", device, "--out", tmp_path / "out", "--quiet")
    assert f"device must be one that torch can use here, such as cpu, got '{device}'" in message
    assert not (tmp_path / "out").exists()


def test_a_budget_larger_than_the_data_is_said_to_be(tmp_path, capsys):
    data, out = write_features(tmp_path / "some.npz", 100), tmp_path / "out"
    asked = ["transfer", str(data), "--seeds", "1", "--readouts", "knn", "--out", str(out)]
    note = "There are 80 training examples, fewer than the 90 and 1,000 labels asked for: all are used instead."
    assert main([*asked, "--budgets", "50,90,1000"]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert note in (out / "report.md").read_text()
    assert note in (out / "report.html").read_text()
    assert main([*asked, "--budgets", "50,90,1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]
    assert main(asked) == 0  # the default, which nobody asked for
    assert "asked for" not in capsys.readouterr().out


def test_a_run_of_nothing_is_an_error():
    with pytest.raises(InputError, match="at least one budget and one readout"):
        TransferConfig(budgets=())
    with pytest.raises(InputError, match="seeds must be at least 1, got 0"):
        TransferConfig(seeds=0)


def test_the_backbone_follows_the_data_unless_it_is_named():
    assert [TransferConfig().network, TransferConfig(dataset="photos").network] == ["digits", "resnet18"]
    assert TransferConfig(dataset="photos", backbone="identity").network == "identity"
