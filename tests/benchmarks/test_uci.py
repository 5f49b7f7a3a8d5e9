"""The comparison on tables, on a small table of its own."""

import gzip

import numpy as np
import pytest
from benchmarks.optional import NotInstalledError

from benchmarks import harness, tabular, uci


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(120, 3))
    table = np.column_stack((x, np.sin(5 * x[:, 0]) + x[:, 1]))
    masks = rng.uniform(size=(120, 10)) < 0.2
    (tmp_path / "yacht").mkdir()
    for name, values in (("data", table), ("test_mask", masks.astype(int))):
        with gzip.open(tmp_path / "yacht" / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, values, delimiter=",")
    return tmp_path


def test_records_tables_and_figure(folder, monkeypatch):
    monkeypatch.setattr(uci, "SMALL_SPLITS", 2)
    records = harness.record(
        folder / "uci.jsonl", uci.cases(folder, ["yacht"], ["torchkrr", "KNeighborsRegressor"], splits=1)
    )
    assert len(records) == 1 + 2 * 2
    text = uci.report(records)
    assert "| yacht |" in text
    assert "RMSE at most LightGBM's on 8 of 10 | 0 of 0" in text
    found = uci.collected(records)
    assert np.mean(found["yacht", "torchkrr"]["rmse"]) < np.mean(found["yacht", "KNeighborsRegressor"]["rmse"]) < 0.5
    uci.draw(records, folder / "uci.png")
    assert (folder / "uci.png").stat().st_size > 10_000


def test_a_missing_peer_is_named(folder, monkeypatch):
    def absent(*_):
        raise NotInstalledError("not installed: get it")

    monkeypatch.setitem(tabular.METHODS, "LightGBM", absent)
    record = uci.run(folder, "yacht", 0, "LightGBM")
    assert record["missing"] == "not installed: get it"
    ours = uci.run(folder, "yacht", 0, "torchkrr")
    environment = harness.environment()
    assert "LightGBM: not installed: get it." in uci.report([environment, record, ours])
