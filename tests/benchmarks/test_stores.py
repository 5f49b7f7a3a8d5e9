"""The benchmark of stores: its cases run, and its table names them."""

import numpy as np
import pytest
import torch

from benchmarks import stores


@pytest.fixture
def rows(tmp_path):
    stores.prepare(tmp_path, 600)
    return tmp_path


def test_rows_are_the_same_in_files_and_in_a_store(rows):
    points, values = stores.opened(rows)
    torch.testing.assert_close(points, stores.made(600, 100))
    torch.testing.assert_close(values, stores.truth(points))


def test_a_way_in_memory_and_one_on_a_store_find_the_same(rows, tmp_path, monkeypatch):
    pytest.importorskip("lancedb")
    monkeypatch.setattr(stores, "ALONE", 3)
    place, header = (
        str(tmp_path / "lance"),
        {"case": "environment", "processor": "x", "threads": 1, "torch": "2", "commit": "c"},
    )
    ways = (("memory", "-"), ("lance, load", place), ("lance, all rows", place))
    found = [{"case": way, "way": way, "rows": 600, **stores.one(way, rows, where, 600)} for way, where in ways]
    assert found[0]["recall"] == found[2]["recall"] == 1
    np.testing.assert_allclose(found[2]["rmse"], found[0]["rmse"], rtol=1e-5)
    page = stores.report([header, *found])
    assert "600 rows:" in page
    assert "| lance, all rows |" in page
    assert "| lance, load |" not in page
