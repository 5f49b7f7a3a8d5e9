"""LanceDB: indexes, versions, other processes, and names and values that look like SQL."""

import multiprocessing
import os

import numpy as np
import pyarrow as pa
import pytest
import torch

from torchkrr import kernels, neighbors, stores
from torchkrr.errors import InputError, StoreError

lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
torch.manual_seed(6)
POINTS, QUERY = torch.randn(2000, 16), torch.randn(20, 16)
VALUES = POINTS[:, :2].sin()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lance")
    store = stores.LanceStore(path, kernel=kernels.Exponential(2.0), columns={"tenant": int})
    store.add(POINTS, VALUES, np.arange(2000), tenant=np.arange(2000) % 100)
    return path


def recall(found, expected):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), expected.tolist(), strict=True)])


@pytest.mark.parametrize(("kind", "least"), [("ivf", 0.9), ("ivf_pq", 0.6), ("hnsw", 0.9)])
def test_an_index_finds_most_neighbors_and_their_distances_are_exact(folder, kind, least):
    store, expected = stores.LanceStore(folder), neighbors.nearest(QUERY, POINTS, 50).numpy()
    store.create_index(kind, num_partitions=8)
    found = store.search(QUERY, 50)
    assert recall(found.ids, expected) > least
    torch.testing.assert_close(found.points, POINTS[found.ids] / 2)
    distances = (found.points - QUERY[:, None] / 2).norm(dim=2)
    assert bool((distances.diff(dim=1) >= 0).all())
    exact = stores.LanceStore(folder, exact=True)
    np.testing.assert_array_equal(exact.search(QUERY, 50).ids, expected)
    # A filter is applied before the search: one row in a hundred is enough, whatever the index finds first.
    mine = stores.LanceStore(folder, where=("tenant", "=", 7))
    rows = np.arange(7, 2000, 100)
    np.testing.assert_array_equal(mine.search(QUERY, 30).ids, rows[neighbors.nearest(QUERY, POINTS[rows], 20)])


def test_metadata_whose_rows_are_still_to_come_are_of_no_table_yet(tmp_path):
    kernel = kernels.Exponential(2.0)
    stores.LanceStore(tmp_path, "rows", kernel=kernel).add(POINTS[:5], VALUES[:5])
    lancedb.connect(tmp_path).drop_table("rows")  # as of a process that is just making it
    with pytest.raises(StoreError, match="There is no table 'rows'"):
        stores.LanceStore(tmp_path, "rows")
    store = stores.LanceStore(tmp_path, "rows", kernel=kernel)
    assert len(store) == 0
    store.add(POINTS[:7], VALUES[:7])
    assert len(store) == 7


def test_rows_that_come_after_the_index_are_found(folder, tmp_path):
    store = stores.LanceStore(tmp_path, kernel=kernels.Exponential(2.0))
    store.add(POINTS, VALUES, np.arange(2000))
    store.create_index()
    store.add(QUERY[:1], VALUES[:1], [5000])
    assert store.search(QUERY[:1], 3).ids[0, 0] == 5000
    store.remove(5000)
    assert 5000 not in store.search(QUERY[:1], 3).ids
    before = store.search(QUERY, 20).ids
    store.optimize()
    np.testing.assert_array_equal(store.search(QUERY, 20).ids, before)


def _write(path, start):
    store = stores.LanceStore(path)
    for at in range(start, start + 100, 20):
        store.add(POINTS[at : at + 20], VALUES[at : at + 20], np.arange(at, at + 20))
    store.remove(np.arange(start, start + 10))


def test_two_processes_write_and_a_third_sees_all_of_it_at_once(tmp_path):
    store = stores.LanceStore(tmp_path, kernel=kernels.Exponential(2.0))
    store.add(POINTS[1000:1010], VALUES[1000:1010], np.arange(1000, 1010))
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(tmp_path, 0))
    writer.start()
    _write(tmp_path, 100)
    writer.join()
    assert writer.exitcode == 0
    expected = [*range(10, 100), *range(110, 200), *range(1000, 1010)]
    assert sorted(store.search(POINTS[:1], 500).ids[0].tolist()) == expected  # a stale handle would miss them


def test_a_store_that_was_forked_says_so(folder, monkeypatch):
    store, own = stores.LanceStore(folder), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(StoreError, match="opened before a fork"):
        store.search(QUERY, 3)


HOSTILE = ["a'b", 'a"b', "x; DROP TABLE rows; --", "Ünï 表", "select", "' OR '1'='1"]


@pytest.mark.parametrize("name", HOSTILE)
def test_columns_and_values_are_names_and_values(tmp_path, name):
    with pytest.raises(StoreError, match="Invalid table name"):
        stores.LanceStore(tmp_path, f"{name} ", kernel=kernels.Exponential(1.0))
    store = stores.LanceStore(tmp_path, kernel=kernels.Exponential(1.0), columns={name: str})
    store.add(POINTS[:20], VALUES[:20], [f"{name}{at}" for at in range(20)], **{name: ["ok"] * 19 + [name]})
    assert len(stores.LanceStore(tmp_path, where=(name, "=", name))) == 1
    assert stores.LanceStore(tmp_path, where=(name, "in", [name, "x"])).search(QUERY, 5).ids.tolist() == [[f"{name}19"]] * 20
    with pytest.raises(InputError, match="1 of 1 ids are not"):
        store.remove([name])
    store.remove([f"{name}3"])
    assert len(store) == 19


def test_keys_of_object_storage_are_in_no_message(tmp_path):
    key = "sw0rdf!sh"
    options = {
        "aws_secret_access_key": key,
        "aws_region": "nowhere",
        "timeout": "1s",
        "client_max_retries": "0",
        "connect_timeout": "1s",
    }
    options |= {"aws_endpoint": f"http://127.0.0.1:1/{key}", "allow_http": "true", "aws_access_key_id": key}
    with pytest.raises(StoreError, match="LanceDB refuses") as caught:
        stores.LanceStore("s3://bucket/folder", kernel=kernels.Exponential(1.0), storage_options=options)
    assert key not in str(caught.value)
    store = stores.LanceStore(tmp_path, kernel=kernels.Exponential(1.0), storage_options={"key": key})
    assert key not in repr(store)


def test_a_table_that_is_not_as_its_metadata_says_is_named(tmp_path):
    stores.LanceStore(tmp_path, kernel=kernels.Exponential(1.0)).add(POINTS, VALUES)
    base = lancedb.connect(tmp_path)
    points = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6, np.float32)), 3)
    base.create_table("torchkrr", pa.table({"id": [1, 2], "point": points, "values": points}), mode="overwrite")
    with pytest.raises(StoreError, match=r"not as its metadata says: \(3, 3\)"):
        stores.LanceStore(tmp_path)
    base.create_table("torchkrr", pa.table({"id": [1]}), mode="overwrite")
    with pytest.raises(StoreError, match="lacks its columns"):
        stores.LanceStore(tmp_path)
    base.drop_table("torchkrr")
    with pytest.raises(StoreError, match="There is no table"):
        stores.LanceStore(tmp_path)


def test_a_folder_without_a_table_and_one_that_cannot_be_are_named(tmp_path):
    with pytest.raises(StoreError, match="no table 'torchkrr' that a store has made"):
        stores.LanceStore(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="LanceDB refuses"):
        stores.LanceStore(tmp_path / "file", kernel=kernels.Exponential(1.0)).add(POINTS, VALUES)
