"""faiss proposes, the library ranks: what is found is exact in order and number, and rows stay aligned."""

from __future__ import annotations

import copy
import importlib
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from torchkrr import kernels, neighbors, nn
from torchkrr.errors import InputError, KernelRidgeError, MissingExtraError, SearchError

faiss = pytest.importorskip("faiss")

COUNT = 10
FACTORIES = ["Flat", "IVF8,Flat", "HNSW16", "SQ8", "IVF8,SQ8"]


@pytest.fixture(scope="module")
def points() -> Tensor:
    return torch.randn(3000, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def query() -> Tensor:
    return torch.randn(200, 16, generator=torch.Generator().manual_seed(2))


def recall(found: Tensor, expected: Tensor) -> float:
    shared = (found.unsqueeze(2) == expected.unsqueeze(1)).any(2)
    return shared.double().mean().item()


# Floors a little below what was measured: 0.28, 0.64, 0.98, 1, 0.93, 1, 1.
RECALL = [
    ("IVF32,Flat", {"nprobe": 1}, 0.2),
    ("IVF32,Flat", {"nprobe": 4}, 0.55),
    ("IVF32,Flat", {"nprobe": 16}, 0.95),
    ("IVF32,Flat", {}, 1.0),
    ("HNSW16", {"ef_search": 16}, 0.85),
    ("HNSW32", {}, 0.99),
    ("Flat", {}, 1.0),
]


@pytest.mark.parametrize(("factory", "choices", "floor"), RECALL)
def test_recall(factory, choices, floor, points, query):
    expected = neighbors.ExactIndex().build(points).search(query, COUNT).indices
    found = neighbors.FaissIndex(factory, **choices).build(points).search(query, COUNT).indices
    assert recall(found, expected) >= floor


def test_recall_rises_with_the_effort(points, query):
    expected = neighbors.ExactIndex().build(points).search(query, COUNT).indices
    efforts = [neighbors.FaissIndex("IVF32,Flat", nprobe=nprobe).build(points) for nprobe in (1, 4, 16, 32)]
    recalls = [recall(index.search(query, COUNT).indices, expected) for index in efforts]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.5 < 0.999 < recalls[-1]


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_is_found_is_ranked_by_exact_distance_then_index(factory, dtype):
    # Integer coordinates, so that there are ties, and every point three times.
    points = torch.cartesian_prod(*[torch.arange(6.0)] * 2).repeat(3, 1).to(dtype)
    found = neighbors.FaissIndex(factory).build(points).search(points + 0.25, 9)
    squared = (points[found.indices].double() - (points + 0.25).double()[:, None]).square().sum(-1)
    torch.testing.assert_close(found.distances.double(), squared.sqrt(), rtol=1e-6, atol=1e-6)
    assert found.indices.dtype == torch.int64
    for row, distances in zip(found.indices.tolist(), squared.tolist(), strict=True):
        assert [i for _, i in sorted(zip(distances, row, strict=True))] == row
        assert len(set(row)) == 9


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat"])
def test_an_exhaustive_index_is_exact_search(factory, points, query):
    exact = neighbors.ExactIndex().build(points).search(query, COUNT)
    found = neighbors.FaissIndex(factory, nprobe=8).build(points).search(query, COUNT)
    assert torch.equal(found.indices, exact.indices)
    torch.testing.assert_close(found.distances, exact.distances)


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_double_precision_far_from_the_origin(offset):
    # faiss sees float32, the ranking sees the points.
    points = torch.randn(100, 3, dtype=torch.float64) + offset
    exact = neighbors.nearest(points, points, 1)
    assert torch.equal(neighbors.FaissIndex("Flat").build(points).search(points, 1).indices, exact)


@pytest.mark.parametrize(
    ("factory", "count"), [("IVF64,Flat", 50), ("IVF64,Flat", 500), ("IVF64,Flat", 2999), ("HNSW8", 50), ("HNSW8", 500)]
)
def test_a_narrow_search_widens_until_it_has_enough(factory, count, points):
    index = neighbors.FaissIndex(factory, nprobe=1, ef_search=4).build(points)
    found = index.search(points[:20], count)
    assert found.indices.shape == (20, count)
    assert found.indices.min() >= 0
    assert found.indices.max() < len(points)
    assert found.distances.isfinite().all()
    assert all(len(set(row)) == count for row in found.indices.tolist())


def test_widening_for_some_queries_does_not_change_the_others(points):
    index = neighbors.FaissIndex("IVF64,Flat", nprobe=1).build(points)
    # A count between the sizes of the lists: some queries find enough in one list, some do not.
    sizes = torch.tensor([index._index.invlists.list_size(i) for i in range(64)])
    count = int(sizes.float().median()) - 8
    together = index.search(points[:100], count).indices
    alone = torch.cat([index.search(row[None], count).indices for row in points[:100]])
    assert torch.equal(together, alone)


def test_a_graph_that_cannot_reach_its_points_raises():
    # Five hundred equal points: the graph of HNSW falls into pieces that no search front crosses.
    index = neighbors.FaissIndex("HNSW4").build(torch.zeros(500, 4))
    with pytest.raises(SearchError, match=r"'HNSW4' finds fewer than 400 neighbors for 3 queries .*or ExactIndex") as caught:
        index.search(torch.zeros(3, 4), 400)
    assert isinstance(caught.value, KernelRidgeError)


@pytest.mark.parametrize("found", [0, 4, 5])
def test_missing_neighbors_are_never_returned_as_minus_one(found, points, monkeypatch):
    # faiss fills up with -1 what it did not find; here it never finds more than `found`.
    index = neighbors.FaissIndex("Flat").build(points)
    search = index._index.search

    def poor(rows, count):
        distances, numbers = search(rows, count)
        numbers[:, found:] = -1
        return distances, numbers

    monkeypatch.setattr(index._index, "search", poor)
    if found < 5:
        with pytest.raises(SearchError, match="fewer than 5 neighbors for 2 queries"):
            index.search(points[:2], 5)
    else:
        result = index.search(points[:2], 5)
        assert result.indices.min() >= 0
        assert result.indices.max() < len(points)
        assert result.distances.isfinite().all()


# --- exclude ---


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("count", [1, 7, 59])
def test_excluded_row_is_never_found(factory, count):
    points = torch.randn(60, 4)
    rows = torch.arange(60)
    index = neighbors.FaissIndex(factory).build(points)
    found = index.search(points, count, exclude=rows)
    assert not (found.indices == rows[:, None]).any()
    if factory in ("Flat", "IVF8,Flat"):
        assert torch.equal(found.indices, neighbors.nearest(points, points, count, exclude_self=True))


# --- append and remove ---


@pytest.mark.parametrize("factory", FACTORIES)
def test_rows_stay_aligned_through_appends_and_removals(factory):
    rng = np.random.default_rng(0)
    points = torch.randn(200, 4)
    index = neighbors.FaissIndex(factory).build(points)
    for step in range(6):
        if step % 2:
            points = torch.cat((points, torch.randn(25, 4)))
            index.append(points[-25:])
        else:
            rows = torch.from_numpy(rng.choice(len(points), 30, replace=False))
            keep = torch.ones(len(points), dtype=torch.bool)
            keep[rows] = False
            points = points[keep]
            index.remove(rows)
        assert torch.equal(index.points, points)
        assert index._index.ntotal == len(points)
        # Each point finds itself, at distance zero and under its present number.
        found = index.search(points, 3)
        assert torch.equal(found.indices[:, 0], torch.arange(len(points)))
        assert (found.distances[:, 0] == 0).all()
        torch.testing.assert_close(found.distances, (points[found.indices] - points[:, None]).norm(dim=-1))


@pytest.mark.parametrize("factory", FACTORIES)
def test_removed_points_are_not_found(factory):
    points = torch.randn(100, 4)
    index = neighbors.FaissIndex(factory).build(points)
    index.remove(torch.arange(0, 100, 2))
    found = index.search(points[::2], 50)
    assert (found.distances > 0).all()
    assert torch.equal(found.indices.sort(dim=1).values, torch.arange(50).repeat(50, 1))


@pytest.mark.parametrize("factory", FACTORIES)
def test_all_but_one_can_be_removed_and_the_index_used_on(factory):
    points = torch.randn(50, 4)
    index = neighbors.FaissIndex(factory).build(points)
    index.remove(torch.arange(49))
    assert torch.equal(index.search(points[:3], 1).indices, torch.zeros(3, 1, dtype=torch.int64))
    index.append(points[:5])
    assert (index.search(points[:5], 1).distances == 0).all()


def test_an_append_that_faiss_refuses_changes_nothing():
    points = torch.randn(200, 4)
    index = neighbors.FaissIndex("NSG16").build(points)
    more, before = torch.randn(20, 4), index.search(points, 3)
    with pytest.raises(InputError, match="cannot add points to 'NSG16'"):
        index.append(more)
    assert torch.equal(index.points, points)
    for found, expected in zip(index.search(points, 3), before, strict=True):
        assert torch.equal(found, expected)


# --- in a layer, copied, absent ---


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW16"])
def test_a_layer_on_faiss_predicts_as_on_exact_search(factory):
    centers, values, query = torch.randn(300, 5), torch.randn(300, 2), torch.randn(20, 5)
    kernel = kernels.Matern32(2.0)
    exact = nn.LocalKernelRidge(centers, values, 12, kernel=kernel)
    layer = nn.LocalKernelRidge(centers, values, 12, kernel=kernel, index=neighbors.FaissIndex(factory))
    assert torch.equal(layer(query), exact(query))
    for each in (exact, layer):
        each.append(query[:5], values[:5])
        each.remove(torch.arange(0, 100, 7))
    assert torch.equal(layer(query), exact(query))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))], ids=["copy", "pickle"])
def test_a_copy_has_the_settings_and_no_points(copied, points):
    index = neighbors.FaissIndex("IVF8,Flat", nprobe=3, ef_search=77).build(points)
    other = copied(index)
    assert other.points is None
    assert (other.factory, other.nprobe, other.ef_search) == ("IVF8,Flat", 3, 77)
    assert torch.equal(other.build(points).search(points[:9], 4).indices, index.search(points[:9], 4).indices)
    assert repr(other) == "FaissIndex('IVF8,Flat')"


def test_a_released_index_keeps_nothing_of_the_points(points):
    index = neighbors.FaissIndex("Flat").build(points)
    index.release()
    assert index._index is None
    assert not len(index._numbers)
    assert len(index.build(points).search(points[:3], 5).indices) == 3


def test_without_faiss_the_error_names_the_extra(monkeypatch):
    def absent(name, *arguments):
        if name == "faiss":
            raise ModuleNotFoundError("No module named 'faiss'", name="faiss")
        return importlib.__import__(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r'pip install "torchkrr\[faiss\]".*ExactIndex gives the exact') as caught:
        neighbors.FaissIndex("Flat")
    assert isinstance(caught.value, ImportError)


def test_a_pickle_opened_without_faiss_names_the_extra(monkeypatch):
    text = pickle.dumps(neighbors.FaissIndex("Flat"))

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=r"torchkrr\[faiss\]"):
        pickle.loads(text)
