"""The command as it is installed: its output, its exit codes, its memory, and what an interrupt leaves."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import pandas as pd
import pytest
from tests.cli.running import COMMAND, FAST, installed, works

import torchkrr

ROWS = 300_000
# The memory of a command counts from when it is started, so it is started by a process that has little.
MEASURED = (
    "import os, subprocess, sys\n"
    "child = subprocess.Popen(sys.argv[1:])\n"
    "_, status, usage = os.wait4(child.pid, 0)\n"
    "print(usage.ru_maxrss, os.waitstatus_to_exitcode(status))\n"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of 200 rows, and tables of few and of many rows."""
    folder = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(0)
    for name, count in {"train": 200, "few": 10_000, "many": ROWS}.items():
        frame = pd.DataFrame({"id": np.arange(count), "a": rng.uniform(size=count), "b": rng.normal(size=count).round(4)})
        frame.assign(y=np.sin(6 * frame["a"]) + frame["b"]).to_csv(folder / f"{name}.csv", index=False)
    works("fit", folder / "train.csv", "--target", "y", "--ignore", "id", "--out", folder / "m.krr", *FAST)
    return folder


def test_fit_predict_evaluate(folder, tmp_path):
    model, out = tmp_path / "model.krr", tmp_path / "predictions.csv"
    fitted = installed(
        "fit", folder / "diabetes_train.csv", "--target", "target", "--out", model, "--seed", 1, "--threads", 1
    )
    assert fitted.returncode == 0, fitted.stderr
    lines = dict(line.split(maxsplit=1) for line in fitted.stdout.splitlines())
    assert lines["data"] == f"table {folder / 'diabetes_train.csv'}: 294 rows, 10 columns of numbers"
    assert lines["task"] == "regression of target"
    assert "kernel" in lines["chosen"]
    assert lines["left"].endswith("(in units of target)")
    assert 50 < float(lines["left"].split()[2].rstrip(",")) < 65
    assert lines["model"].startswith(str(model))
    assert "Warning" not in fitted.stderr

    wanted = ["--interval", 0.9, "--explain", 5, "--id", "age"]
    predicted = installed("predict", folder / "diabetes_test.parquet", model, "--out", out, *wanted)
    assert predicted.returncode == 0, predicted.stderr
    assert "148/148" in predicted.stderr
    assert "rows/s" in predicted.stderr
    assert len(pd.read_csv(out)) == 148

    evaluated = subprocess.run(
        [sys.executable, "-m", "torchkrr", "evaluate", folder / "diabetes_test.csv", model, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    scores = json.loads(evaluated.stdout)["targets"]["target"]
    assert 50 < scores["rmse"] < 60
    assert scores["coverage90"] > 0.8
    assert evaluated.stderr == ""


def test_version_and_a_users_error():
    assert installed("--version").stdout == f"torchkrr {torchkrr.__version__}\n"
    failed = installed("evaluate", "nowhere.csv", "nowhere.krr")
    assert failed.returncode == 1
    assert failed.stderr.startswith("torchkrr: The model nowhere.krr cannot be read")
    assert "Traceback" not in failed.stderr


def test_memory_does_not_grow_with_the_rows(small, tmp_path):
    peaks = {}
    for name in ("few", "many"):
        command = [
            COMMAND,
            "predict",
            small / f"{name}.csv",
            small / "m.krr",
            "--out",
            tmp_path / f"{name}.csv",
            "--id",
            "id",
        ]
        result = subprocess.run(
            [sys.executable, "-c", MEASURED, *command, "--quiet"], capture_output=True, text=True, check=True
        )
        kilobytes, code = map(int, result.stdout.split())
        assert code == 0, result.stderr
        peaks[name] = kilobytes / 1000
    with open(tmp_path / "many.csv") as file:
        assert sum(1 for _ in file) == ROWS + 1
    # The rows alone are 7 MB as numbers and more as text; parts of 10,000 rows are what both hold.
    assert peaks["many"] < 1000
    assert peaks["many"] - peaks["few"] < 80


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_prediction_leaves_nothing(small, tmp_path, sent, code):
    out = tmp_path / "o.csv"
    out.write_text("kept")
    command = [
        COMMAND,
        "predict",
        small / "many.csv",
        small / "m.krr",
        "--out",
        out,
        "--explain",
        "5",
        "--chunk-rows",
        "500",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(process, lambda: [name for name in os.listdir(tmp_path) if size(tmp_path / name) > 1000])
    process.send_signal(sent)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in error
    assert sent != signal.SIGINT or error.splitlines()[-1] == "torchkrr: interrupted. Nothing was written."
    assert os.listdir(tmp_path) == ["o.csv"]
    assert out.read_text() == "kept"


def test_an_interrupted_fit_leaves_nothing(folder, tmp_path):
    command = [COMMAND, "fit", folder / "diabetes_train.csv", "--target", "target", "--out", tmp_path / "m.krr"]
    ours, its = pty.openpty()  # on a terminal the progress of the fit is shown as it goes
    termios.tcsetwinsize(its, (24, 80))  # one without a width shows none
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True)
    os.close(its)
    seen = b""
    while b"kernels" not in seen:
        seen += os.read(ours, 1000)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    while b"Nothing was written" not in seen:
        seen += os.read(ours, 1000)
    os.close(ours)
    assert b"torchkrr: interrupted. Nothing was written." in seen
    assert b"Traceback" not in seen
    assert os.listdir(tmp_path) == []


def size(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def wait_for(process, happened):
    start = time.monotonic()
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - start < 60
        time.sleep(0.02)
