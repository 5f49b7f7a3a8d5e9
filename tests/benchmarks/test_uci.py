"""The comparison on tables, on a small table of its own."""

import gzip

import numpy as np
import pytest
from benchmarks.optional import NotInstalledError

from benchmarks import harness, tabular, uci, uci_data


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
        folder / "uci.jsonl", uci.cases({"yacht": folder}, ["yacht"], ["torchkrr", "KNeighborsRegressor"], splits=1)
    )
    assert len(records) == 1 + 2 * 2
    before = [{**record, "rmse": 2 * record["rmse"]} for record in records if record.get("method") == "torchkrr"]
    text = uci.report(records, before)
    assert "| yacht |" in text
    assert "RMSE at most LightGBM's | 0 of 0" in text
    covered = 100 * np.mean([record["covered"] for record in before])
    assert f"| yacht | 0.500 | +0.00 | {covered:.1f} % |" in text
    assert covered > 60
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
    assert "LightGBM: not installed: get it." in uci.report([environment, record, ours], [])


def test_tables_with_a_header_and_words(tmp_path):
    (tmp_path / "mv").mkdir()
    with gzip.open(tmp_path / "mv" / "data.csv.gz", "wt") as file:
        file.write("x,color,target\n1,red,3\n2,green,5\n4,red,7\n")
    with gzip.open(tmp_path / "mv" / "test_mask.csv.gz", "wt") as file:
        file.write("0,1\n0,0\n1,0\n")
    assert uci_data.folders_of([tmp_path]) == {"mv": tmp_path}
    assert uci_data.numbers(tmp_path / "mv" / "data.csv.gz").tolist() == [[1, 0, 1, 3], [2, 1, 0, 5], [4, 0, 1, 7]]
    assert uci_data.load(tmp_path, "mv", 0).centers.shape == (2, 3)
