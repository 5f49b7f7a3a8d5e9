"""The benchmark against peers runs in tiny sizes, and says which peers are not there."""

import json
import sys

import pytest

from benchmarks import harness, measures, methods, optional, peers, peers_report, pipelines

MODULES = ("scipy", "scipy.interpolate", "sklearn", "sklearn.neighbors", "faiss", "gpytorch", "MuyGPyS")
TINY = peers.QUICK._replace(
    neighbors=(10,),
    features=(8, 32),
    middle=10,
    centers=200,
    queries=20,
    large=(200, 20),
    ends=(peers.EndToEnd(10, 200, 32, peers.ALL, 1),),
    square=32,
    calls=10,
)


@pytest.fixture
def without_peers(monkeypatch):
    for module in MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    optional.muygpys.cache_clear()
    yield
    optional.muygpys.cache_clear()


@pytest.fixture
def records(without_peers, monkeypatch, tmp_path):
    """All cases but those that need a process of their own."""
    monkeypatch.setattr(measures, "memory", lambda *_: {"megabytes": 1.0})
    return harness.record(tmp_path / "peers.jsonl", peers.cases(TINY))


def test_every_case_runs_without_peers_and_the_tables_name_them(records, tmp_path):
    written = [json.loads(line) for line in (tmp_path / "peers.jsonl").read_text().splitlines()]
    assert [record["case"] for record in written] == [record["case"] for record in records]
    text = peers_report.summarize(records, [], TINY.middle)
    assert f"gpytorch {optional.ADVICE}" in text
    assert f"| {pipelines.SCIPY} | {optional.ADVICE}" in text
    peers.peers_figure.draw(records, tmp_path / "peers.png", TINY.middle)
    assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_a_missing_peer_is_in_the_record(records):
    by_case = {record["case"]: record for record in records}
    assert set(by_case["peers"]["versions"].values()) == {optional.ADVICE}
    solve = by_case["local solve, M=10, D=8, N=200"]
    peer_names = {methods.GPYTORCH, methods.GPYTORCH_ONE, methods.MUYGPS, methods.MUYGPS_NUMPY}
    assert solve["missing"] == dict.fromkeys(peer_names, optional.ADVICE)
    assert set(methods.fastest(solve["forward_us"])) == {methods.OURS, methods.TORCH_PATH, methods.PLAIN}
    end = by_case["end to end, Q=10, N=200, D=32, M=10"]
    assert set(end["missing"]) == set(pipelines.PIPELINES) - {pipelines.OURS, pipelines.OURS_GAUSSIAN, pipelines.OURS_AUTO}


def test_errors_are_measured_beside_times(records):
    solve = next(record for record in records if record["case"].startswith("local solve"))
    assert all(error < 1e-3 for error in solve["rmse_against_float64"].values())
    assert all(error < 1e-2 for error in solve["gradient_error"].values())
    end = next(record for record in records if record["case"].startswith("end to end"))
    assert all(difference < 1e-4 for difference in end["difference_to_float64"].values())


def test_what_was_asked_is_answered_by_what_was_measured(records):
    solve = {"case": "local solve", "neighbors": 100, "features": 512, "sgemm_fraction": {methods.OURS: 0.3}}
    solve["forward_us"] = {
        methods.OURS: 50.0,
        f"{methods.PLAIN}, chunks of 64": 400.0,
        f"{methods.PLAIN}, chunks of 256": 140.0,
    }
    solve["forward_backward_us"] = {methods.OURS: 100.0, f"{methods.PLAIN}, chunks of 64": 500.0}
    lines = list(peers_report._solve_lines([solve], 100))
    # The better of the two chunk sizes counts: 140 / 50 is below 3.
    assert [met for _, _, met in lines] == [False, True, True, True]


def test_a_million_centers_are_judged_by_the_records_of_search():
    found = {"build and predict": 30.0, "megabytes": 800.0, "recall": 0.99, "rmse": 0.1005}
    search = [
        {"case": "million, clustered, auto", **found},
        {"case": "million, clustered, exact", **found, "rmse": 0.1},
        {"case": "million, gaussian, auto", **found, "megabytes": 2500.0},
        {"case": "million, gaussian, exact", **found},
    ]
    lines = list(peers_report._other_lines([{"case": "one query", "best_ms": {}}], search))
    assert [met for _, _, met in lines] == [True, False]
