"""`torchrun -m torchkrr transfer` gives what one process gives, and each goes on where the other was stopped."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import torch
from tests.distributed.conftest import once
from tests.distributed.launching import free_port, torchrun
from tests.distributed.transferring import DIES_AT, quick

from torchkrr.cli import main
from torchkrr.distributed.launch import AllRanks, SingleProcess
from torchkrr.errors import InputError
from torchkrr.runs import read_records
from torchkrr.vision import features, readouts
from torchkrr.vision.features import read_inputs
from torchkrr.vision.heads import read_head
from torchkrr.vision.transfer import TransferConfig

READOUTS = ("sk", "faded", "knn", "sk-select")
FILES = {"records.jsonl", "figure.png", "report.html", "report.md", "head.safetensors"}
FINISHED, BATCH = 5, 50  # batches that one process had computed, and how many pictures it took at a time


def command(out: pathlib.Path, cache: pathlib.Path, readouts: tuple[str, ...] = READOUTS) -> list[str]:
    asked = ["transfer", "--budgets", "60,150", "--seeds", "1", "--readouts", ",".join(readouts)]
    return [*asked, "--out", str(out), "--cache", str(cache)]


def run_alone(arguments: list[str]) -> str:
    """What one process prints."""
    entry = readouts.READOUTS["sk-select"]
    readouts.READOUTS["sk-select"] = quick()
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
            assert main(arguments) == 0
    finally:
        readouts.READOUTS["sk-select"] = entry
    return printed.getvalue()


def run_dying(folder: pathlib.Path) -> list[int]:
    """Exit codes of two processes, the second of which dies; not started by torchrun, which would end the other one."""
    (folder / "launches.json").write_text(json.dumps({"died": command(folder / "died", folder / "cache")}))
    together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **together, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-m", "tests.distributed.transferring", str(folder), "dies"]
    running = [subprocess.Popen(program, env={**environment, "RANK": str(rank)}) for rank in range(2)]
    try:
        return [process.wait(timeout=270) for process in running]
    finally:
        for process in running:
            process.kill()


def extract_some(cache: pathlib.Path) -> None:
    """What is left of a run of one process that was stopped while it computed features."""
    compute, computed = features._features, []

    def stopping(*arguments):
        if len(computed) == FINISHED:
            raise InputError("stopped")
        computed.append(compute(*arguments))
        return computed[-1]

    features._features = stopping
    try:
        read_inputs(TransferConfig(cache=str(cache), batch_size=BATCH))
    except InputError:
        pass
    finally:
        features._features = compute


def run_all(folder: pathlib.Path) -> dict[str, object]:
    extract_some(folder / "cache")
    run_alone(command(folder / "one", folder / "other cache", ("sk", "knn")))
    begun = len(read_records(folder / "one" / "records.jsonl"))
    commands = {
        "fresh": command(folder / "two", folder / "cache"),
        "resumed": command(folder / "one", folder / "other cache"),
        "wrong": [*command(folder / "wrong", folder / "cache"), "--dataset", str(folder / "nowhere")],
    }
    (folder / "launches.json").write_text(json.dumps(commands))
    launched = torchrun("-m", "tests.distributed.transferring", folder)
    died = run_dying(folder)
    said = {file.stem: json.loads(file.read_text()) for file in folder.glob("*-[01].json")}
    return {"folder": str(folder), "launched": launched, "died": died, "said": said, "begun": begun}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return once(tmp_path_factory, "transfers", run_all)


@pytest.fixture(scope="module")
def alone(ran, tmp_path_factory):
    """Records of one process, which finds the features that two have computed."""
    out = tmp_path_factory.mktemp("alone")
    run_alone(command(out, pathlib.Path(ran["folder"]) / "cache"))
    return read_records(out / "records.jsonl")


def assert_same(found, expected):
    assert [record["key"] for record in found] == [record["key"] for record in expected]
    for one, other in zip(found, expected, strict=True):
        for name in set(one) - {"seconds", "ranks", "chosen", "log_loss", "threads"}:
            assert one[name] == other[name], name
        for name in set(one["chosen"]) - {"temperature", "leave_one_out_log_loss", "screened"}:  # equal to rounding
            assert one["chosen"][name] == other["chosen"][name], name
        assert one["log_loss"] == (None if other["log_loss"] is None else pytest.approx(other["log_loss"], abs=1e-5))


@pytest.mark.timeout(280)
def test_two_processes_record_what_one_does(ran, alone):
    assert ran["launched"]["code"] == 0, ran["launched"]["err"]
    found = read_records(f"{ran['folder']}/two/records.jsonl")
    assert [record["readout"] for record in found] == [*READOUTS, *READOUTS]
    assert_same(found, alone)
    assert {record["ranks"] for record in found} == {2}
    assert {record["ranks"] for record in alone} == {1}


@pytest.mark.timeout(280)
def test_only_the_first_process_reports(ran):
    first, second = ran["said"]["fresh-0"], ran["said"]["fresh-1"]
    assert (first["code"], second["code"]) == (0, 0), first["err"]
    assert "1,438 training and 359 test examples" in first["out"]
    lines = first["err"].split("\n")
    assert [sum(f"{count}/{count} [" in line for line in lines) for count in (359, 1438)] == [1, 1]
    assert second["out"] == second["err"] == ""
    assert set(os.listdir(f"{ran['folder']}/two")) == FILES


@pytest.mark.timeout(280)
def test_two_processes_go_on_with_the_features_that_one_has_begun(ran):
    cache = pathlib.Path(ran["folder"]) / "cache"
    headers = sorted((read_records(path)[0] for path in cache.glob("*.jsonl")), key=lambda header: header["shape"])
    assert [header["shape"][0] for header in headers] == [359, 1438]
    assert [header["batch_size"] for header in headers] == [64, BATCH]  # of the command, and of the process that began
    assert {path.suffix for path in cache.iterdir()} == {".f32", ".jsonl"}
    for path in cache.glob("*.f32"):
        (other,) = (pathlib.Path(ran["folder"]) / "other cache").glob(path.name)
        torch.testing.assert_close(*(torch.from_file(str(p), size=p.stat().st_size // 4) for p in (path, other)))


@pytest.mark.timeout(280)
def test_two_processes_go_on_with_the_records_of_one(ran):
    first = ran["said"]["resumed-0"]
    assert first["code"] == 0, first["err"]
    assert f"{ran['begun']} of 8 results were there already" in first["out"]
    found = read_records(f"{ran['folder']}/one/records.jsonl")
    assert [record["ranks"] for record in found] == [1, 1, 1, 1, 2, 2, 2, 2]


@pytest.mark.timeout(280)
def test_one_process_goes_on_with_the_records_of_two(ran, tmp_path):
    folder = pathlib.Path(ran["folder"])
    out = tmp_path / "died"
    out.mkdir()
    (out / "records.jsonl").write_bytes((folder / "died" / "records.jsonl").read_bytes())
    assert f"{DIES_AT - 1} of 8 results were there already" in run_alone(command(out, folder / "cache"))


@pytest.mark.timeout(280)
def test_the_head_has_the_rows_of_all_processes(ran, alone):
    head = read_head(f"{ran['folder']}/two/head.safetensors")
    inputs = read_inputs(TransferConfig(cache=f"{ran['folder']}/cache"))
    record = alone[-1]
    assert (head.key, head.layer.num_centers) == (record["key"], 150)
    right = head.probabilities(inputs.test.features).argmax(1) == inputs.test.labels
    assert float(right.double().mean()) == record["accuracy"]


@pytest.mark.timeout(280)
def test_what_the_first_process_cannot_use_stops_both(ran):
    first, second = ran["said"]["wrong-0"], ran["said"]["wrong-1"]
    assert (first["code"], second["code"]) == (1, 1)
    assert "nowhere" in first["err"]
    assert "torchkrr (rank 1): Rank 0 could not do its part" in second["err"]


@pytest.mark.timeout(280)
def test_a_process_that_dies_stops_the_other_one_and_what_is_done_is_kept(ran):
    assert ran["died"] == [0, -signal.SIGKILL]  # the first one has written what the command returned
    first = ran["said"]["died-0"]
    assert first["code"] == 1
    assert "torchkrr (rank 0): Rank 0 of 2 could not" in first["err"]
    assert "One of them died" in first["err"]
    assert len(read_records(f"{ran['folder']}/died/records.jsonl")) == DIES_AT - 1


def test_each_process_of_a_machine_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ranks = AllRanks.__new__(AllRanks)
    assert [ranks.device(name) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]
    assert SingleProcess().device("cuda") == "cuda"
