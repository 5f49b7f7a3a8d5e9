"""`torchrun -m torchkrr predict` and `evaluate` give what one process gives."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from tests.cli.running import FAST
from tests.distributed.conftest import once
from tests.distributed.launching import torchrun

from torchkrr.cli import main

CHUNK = ["--chunk-rows", "20"]
WANTED = [*CHUNK, "--interval", "0.9", "--explain", "3", "--id", "key"]


def prepare(folder):
    """A model with neighbors, whose rows have copies and weights; one of classes, with all rows; and new tables."""
    frame = datasets.load_diabetes(as_frame=True).frame
    frame.insert(0, "key", [f"P{number}" for number in range(len(frame))])
    frame["weight"] = 1 + np.arange(len(frame)) % 2
    pd.concat([frame[:300], frame[:20]]).to_csv(folder / "train.csv", index=False)
    frame[300:385].to_csv(folder / "new.csv", index=False)
    broken = frame[300:385].astype({"bmi": object})
    broken.iloc[35, 3] = "n.a.!"
    broken.to_csv(folder / "broken.csv", index=False)
    wine = datasets.load_wine(as_frame=True).frame.sample(frac=1, random_state=0)
    wine[:120].to_csv(folder / "wine.csv", index=False)
    wine[120:121].to_csv(folder / "bottle.csv", index=False)
    weighted = ["--target", "target", "--ignore", "key", "--sample-weight", "weight", "--out", folder / "m.krr"]
    classes = ["--target", "target", "--task", "classification", "--out", folder / "wine.krr"]
    run("fit", folder / "train.csv", *weighted, *FAST)
    run("fit", folder / "wine.csv", *classes, *FAST)


def commands(folder, end):
    """By name; their results end in `end`."""
    model, new = folder / "m.krr", folder / "new.csv"
    return {
        "predict": ["predict", model, new, "--out", folder / f"predict{end}.csv", *WANTED],
        "evaluate": ["evaluate", model, new, "--json", *CHUNK],
        "fewer rows than processes": [
            *("predict", folder / "wine.krr", folder / "bottle.csv", "--proba", "--out", folder / f"wine{end}.parquet"),
        ],
        "broken": ["predict", model, folder / "broken.csv", "--out", folder / f"broken{end}.csv", *WANTED],
    }


def run(*arguments):
    assert main([str(argument) for argument in arguments]) == 0


def run_all(folder):
    """Every launch, each of two processes, and what they said."""
    prepare(folder)
    wanted = {name: [str(word) for word in words] for name, words in commands(folder, "-two").items()}
    found = {"first": torchrun("-m", "torchkrr", *wanted.pop("predict"))}
    (folder / "launches.json").write_text(json.dumps(wanted))
    torchrun("-m", "tests.distributed.commands", folder)
    for name in wanted:
        for rank in range(2):
            found[f"{name} {rank}"] = json.loads((folder / f"{name}-{rank}.json").read_text())
    predict = commands(folder, "-died")["predict"]
    found["died"] = torchrun(
        "--max-restarts=1", "-m", "tests.distributed.dying_command", *predict, PREDICTED=str(folder / "log")
    )
    return {**found, "folder": str(folder), "files": sorted(os.listdir(folder)), "log": (folder / "log").read_text()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return once(tmp_path_factory, "commands", run_all)


@pytest.fixture
def alone(ran, tmp_path):
    """What one process predicts."""
    words = commands(pathlib.Path(ran["folder"]), "-one")["predict"]
    words[words.index("--out") + 1] = tmp_path / "one.csv"
    run(*words, "--quiet")
    return pd.read_csv(tmp_path / "one.csv")


@pytest.mark.timeout(280)
def test_two_processes_predict_what_one_does(ran, alone):
    assert ran["first"]["code"] == 0, ran["first"]["err"]
    pd.testing.assert_frame_equal(pd.read_csv(f"{ran['folder']}/predict-two.csv"), alone, rtol=1e-9, atol=1e-9)
    assert ran["first"]["out"].count("85 rows in") == 1  # only the first process reports
    assert ran["first"]["err"].count("predicting:   0%") == 1  # and has a progress bar
    assert sum("predicting: 100%" in line for line in ran["first"]["err"].split("\n")) == 1
    assert "predict-two.csv.parts" not in ran["files"]


@pytest.mark.timeout(280)
def test_two_processes_evaluate_as_one_does(ran, capsys):
    first, second = ran["evaluate 0"], ran["evaluate 1"]
    assert (first["code"], second["code"]) == (0, 0), first["err"]
    assert second["out"] == second["err"] == ""
    capsys.readouterr()
    run("evaluate", f"{ran['folder']}/m.krr", f"{ran['folder']}/new.csv", "--json")
    one, two = json.loads(capsys.readouterr().out), json.loads(first["out"])
    assert two["rows"] == one["rows"]
    assert two["targets"]["target"] == pytest.approx(one["targets"]["target"], rel=1e-9)


@pytest.mark.timeout(280)
def test_one_row_for_two_processes(ran, tmp_path):
    assert ran["fewer rows than processes 0"]["code"] == 0, ran["fewer rows than processes 0"]["err"]
    folder = ran["folder"]
    run("predict", f"{folder}/wine.krr", f"{folder}/bottle.csv", "--proba", "--out", tmp_path / "o.parquet", "--quiet")
    one, two = pd.read_parquet(tmp_path / "o.parquet"), pd.read_parquet(f"{folder}/wine-two.parquet")
    pd.testing.assert_frame_equal(two, one, rtol=1e-9)


@pytest.mark.timeout(280)
def test_a_wrong_value_stops_both_and_is_named_with_its_row(ran):
    first, second = ran["broken 0"], ran["broken 1"]
    assert (first["code"], second["code"]) == (1, 1)
    # Row 36 is in the second half of the second part, so the second process finds it.
    assert "torchkrr (rank 1): Column 'bmi'" in second["err"]
    assert "row 36 holds 'n.a.!'" in second["err"]
    assert "torchkrr (rank 0): Rank 1 was given something it cannot use" in first["err"]
    assert "broken-two.csv" not in ran["files"]
    assert "broken-two.csv.parts" in ran["files"]  # the first part, for another try


@pytest.mark.timeout(280)
def test_after_a_death_torchrun_goes_on_with_the_part_that_was_not_finished(ran, alone):
    assert ran["died"]["code"] == 0, ran["died"]["err"]
    pd.testing.assert_frame_equal(pd.read_csv(f"{ran['folder']}/predict-died.csv"), alone, rtol=1e-9, atol=1e-9)
    assert "predict-died.csv.parts" not in ran["files"]
    lines = [line.split() for line in ran["log"].splitlines()]
    # Five parts: of the first life two are finished, the second makes the others.
    for rank in ("0", "1"):
        assert [rows for life, who, rows in lines if (life, who) == ("0", rank)] == ["20", "20", "20"]
        assert [rows for life, who, rows in lines if (life, who) == ("1", rank)] == ["20", "20", "5"]
