"""`torchrun -m torchkrr predict` and `evaluate` give what one process gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from tests.cli.running import FAST
from tests.distributed.conftest import once

from torchkrr.cli import main
from torchkrr.commands.parts import Parts
from torchkrr.errors import FileError

CHUNK = 20


def torchrun(*arguments, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, arguments)]
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(command, env=everything, capture_output=True, text=True, timeout=240, check=False)


def prepare(folder):
    """A model with neighbors, whose rows have copies and weights, and what one process predicts."""
    frame = datasets.load_diabetes(as_frame=True).frame
    frame.insert(0, "key", [f"P{number}" for number in range(len(frame))])
    frame["weight"] = 1 + np.arange(len(frame)) % 2
    train = pd.concat([frame[:300], frame[:20]])
    train.to_csv(folder / "train.csv", index=False)
    frame[300:385].to_csv(folder / "new.csv", index=False)
    broken = frame[300:385].astype({"bmi": object})
    broken.iloc[35, 3] = "n.a.!"
    broken.to_csv(folder / "broken.csv", index=False)
    fit = ["fit", "train.csv", "--target", "target", "--ignore", "key", "--sample-weight", "weight", "--out", "m.krr", *FAST]
    one = ["predict", "m.krr", "new.csv", "--out", "one.csv", *WANTED, "--quiet"]
    for command in (fit, one):
        assert main([str(folder / word) if word.split(".")[-1] in ("csv", "krr") else word for word in command]) == 0


WANTED = ["--chunk-rows", str(CHUNK), "--interval", "0.9", "--explain", "3", "--id", "key"]


def run_all(folder):
    """Every launch, each of two processes, and what they said."""
    prepare(folder)
    model, new, broken = folder / "m.krr", folder / "new.csv", folder / "broken.csv"
    found = {}
    launches = {
        "predict": ("-m", "torchkrr", "predict", model, new, "--out", folder / "two.csv", *WANTED),
        "evaluate": ("-m", "torchkrr", "evaluate", model, new, "--json", "--chunk-rows", CHUNK),
        "broken": ("-m", "torchkrr", "predict", model, broken, "--out", folder / "broken_out.csv", *WANTED),
        "dying": (
            "--max-restarts=1",
            "-m",
            "tests.distributed.dying_command",
            *("predict", model, new, "--out", folder / "died.csv", *WANTED),
        ),
    }
    for name, arguments in launches.items():
        arguments = ("--max-restarts=1", *arguments[1:]) if arguments[0] == "--max-restarts=1" else arguments
        done = torchrun(*arguments, PREDICTED=str(folder / "log"))
        found[name] = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
    return {**found, "folder": str(folder), "files": sorted(os.listdir(folder)), "log": (folder / "log").read_text()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return once(tmp_path_factory, "commands", run_all)


def agree(ran, name):
    one, two = (pd.read_csv(f"{ran['folder']}/{file}") for file in ("one.csv", name))
    pd.testing.assert_frame_equal(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.timeout(280)
def test_two_processes_predict_what_one_does(ran):
    assert ran["predict"]["code"] == 0, ran["predict"]["err"]
    agree(ran, "two.csv")
    assert "85 rows in" in ran["predict"]["out"]
    assert ran["predict"]["out"].count("rows in") == 1  # only the first process reports
    assert ran["predict"]["err"].count("predicting |") == 1


@pytest.mark.timeout(280)
def test_two_processes_evaluate_as_one_does(ran, capsys):
    assert ran["evaluate"]["code"] == 0, ran["evaluate"]["err"]
    capsys.readouterr()
    assert main(["evaluate", f"{ran['folder']}/m.krr", f"{ran['folder']}/new.csv", "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out), json.loads(ran["evaluate"]["out"])
    assert two["rows"] == one["rows"]
    assert two["targets"]["target"] == pytest.approx(one["targets"]["target"], rel=1e-9)


@pytest.mark.timeout(280)
def test_a_wrong_value_stops_both_and_is_named_with_its_row(ran):
    assert ran["broken"]["code"] != 0
    # Row 36 is in the second half of the second part, so the second process finds it.
    assert "torchkrr (rank 1): Column 'bmi'" in ran["broken"]["err"]
    assert "row 36 holds 'n.a.!'" in ran["broken"]["err"]
    assert "torchkrr (rank 0): Rank 1 was given something it cannot use" in ran["broken"]["err"]
    assert "broken_out.csv" not in ran["files"]
    assert "broken_out.csv.parts" in ran["files"]  # the first part, for another try


@pytest.mark.timeout(280)
def test_after_a_death_torchrun_goes_on_with_the_part_that_was_not_finished(ran):
    assert ran["dying"]["code"] == 0, ran["dying"]["err"]
    agree(ran, "died.csv")
    assert "died.csv.parts" not in ran["files"]
    lines = [line.split() for line in ran["log"].splitlines()]
    # Five parts: of the first life two are finished, the second makes the others.
    for rank in ("0", "1"):
        assert [rows for life, who, rows in lines if (life, who) == ("0", rank)] == ["20", "20", "20"]
        assert [rows for life, who, rows in lines if (life, who) == ("1", rank)] == ["20", "20", "5"]


def test_parts_of_something_else_are_not_used(tmp_path):
    out = str(tmp_path / "o.csv")
    parts = Parts(out, {"model": 1})
    parts.write(0, {"a": [1, 2]})
    assert Parts(out, {"model": 1}).done == 1
    assert Parts(out, {"model": 2}).done == 0
    assert not (tmp_path / "o.csv").exists()


def test_parts_are_joined_in_order_and_go(tmp_path):
    parts = Parts(str(tmp_path / "o.csv"), {})
    for number in range(12):
        parts.write(number, {"a": [number], "b": ["x"]})
    parts.join()
    assert pd.read_csv(tmp_path / "o.csv")["a"].tolist() == list(range(12))
    assert os.listdir(tmp_path) == ["o.csv"]


def test_a_file_in_the_place_of_parts_is_named(tmp_path):
    (tmp_path / "o.csv.parts").write_text("mine")
    with pytest.raises(FileError, match=r"o\.csv\.parts cannot be used"):
        Parts(str(tmp_path / "o.csv"), {})
    assert (tmp_path / "o.csv.parts").read_text() == "mine"
