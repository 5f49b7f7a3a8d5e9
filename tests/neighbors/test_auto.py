"""An index that chooses says what it chose, and finds what it promises."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest
import torch
from torch import Tensor

from torchkrr import kernels, neighbors, nn
from torchkrr.errors import InputError
from torchkrr.neighbors import auto

COUNT = 10


def clusters(count: int = 6000) -> Tensor:
    places = 20 * torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    return places[torch.arange(count) % 60] + torch.randn(count, 8)


@pytest.fixture
def impatient(monkeypatch):
    """Nothing is quick enough for exact search."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(auto, "QUICK_ENOUGH", 0.0)
    monkeypatch.setattr(auto, "lists_seconds", lambda count: 0.0)


def test_few_points_are_searched_exactly():
    points = torch.randn(500, 4)
    index = neighbors.AutoIndex().build(points)
    assert index.choice.search == "exact"
    assert "N = 500, D = 4: 10,000 queries" in index.choice.reason
    assert repr(index) == f"AutoIndex({index.choice})"
    assert torch.equal(index.search(points, 3).indices, neighbors.nearest(points, points, 3))


@pytest.mark.parametrize(
    ("count", "features", "queries", "expected"),
    [
        (50_000, 32, 10_000, True),
        (50_000, 32, 1_000_000, False),
        (1_000_000, 32, 100_000, False),
        (1_000_000, 32, 100, True),
    ],
)
def test_more_points_and_more_queries_make_exact_search_slow(count, features, queries, expected):
    quick_enough = auto.QUICK_ENOUGH + auto.lists_seconds(count)
    assert (auto.exact_seconds(count, features, queries) <= quick_enough) == expected


@pytest.mark.usefixtures("impatient")
def test_inverted_lists_for_points_with_structure():
    points, query = clusters(), clusters()[:300] + 0.1
    index = neighbors.AutoIndex(recall=0.9).build(points)
    assert index.choice.search.startswith("IVF64, nprobe ")
    assert "N = 6,000, D = 8: recall " in index.choice.reason
    assert neighbors.recall(index, query, COUNT) > 0.9


@pytest.mark.usefixtures("impatient")
def test_exact_search_for_points_without_structure():
    points = torch.randn(6000, 64)
    index = neighbors.AutoIndex().build(points)
    assert index.choice.search == "exact"
    assert "but one list in 8 has a recall of 0." in index.choice.reason
    assert neighbors.recall(index, points, COUNT) == 1


@pytest.mark.usefixtures("impatient")
def test_a_graph_for_very_many_queries_among_points_without_structure():
    points = torch.randn(6000, 24)
    index = neighbors.AutoIndex(num_queries=10**12, recall=0.9)
    auto_seconds = auto.graph_seconds
    try:
        auto.graph_seconds = lambda *sizes: 0.0
        index.build(points)
    finally:
        auto.graph_seconds = auto_seconds
    assert index.choice.search.startswith("HNSW32, ef_search ")
    assert "one list in 8" in index.choice.reason
    assert neighbors.recall(index, torch.randn(100, 24), 50) > 0.85


@pytest.mark.usefixtures("impatient")
def test_without_faiss_it_is_exact_and_says_so(monkeypatch):
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    index = neighbors.AutoIndex().build(clusters())
    assert index.choice.search == "exact"
    assert 'faiss is not installed: pip install "torchkrr[faiss]"' in index.choice.reason


@pytest.mark.usefixtures("impatient")
def test_rows_stay_aligned_and_the_choice_is_kept_for_a_while():
    points = clusters()
    index = neighbors.AutoIndex().build(points)
    before = index.choice
    index.append(points[:50] + 0.01)
    index.remove(torch.arange(10))
    points = torch.cat((points, points[:50] + 0.01))[10:]
    assert torch.equal(index.points, points)
    assert index.choice is before
    assert torch.equal(index.search(points[::7], 1).indices.squeeze(1), torch.arange(0, len(points), 7))


def test_the_choice_is_made_anew_when_the_points_have_multiplied(monkeypatch):
    pytest.importorskip("faiss")
    points = clusters()
    monkeypatch.setattr(auto, "QUICK_ENOUGH", auto.exact_seconds(2000, 8, 10_000))
    monkeypatch.setattr(auto, "lists_seconds", lambda count: 0.0)
    index = neighbors.AutoIndex().build(points[:1000])
    assert index.choice.search == "exact"
    index.append(points[1000:3000])
    assert index.choice.search == "exact"
    index.append(points[3000:])
    assert "IVF" in index.choice.search
    assert "N = 6,000" in index.choice.reason
    index.remove(torch.arange(5000))
    assert index.choice.search == "exact"
    assert torch.equal(index.search(points[5000:], 2).indices, neighbors.nearest(points[5000:], points[5000:], 2))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))], ids=["copy", "pickle"])
def test_a_copy_has_the_settings_and_no_points(copied):
    index = neighbors.AutoIndex(num_queries=7, recall=0.5).build(torch.randn(50, 2))
    other = copied(index)
    assert (other.num_queries, other.recall, other.points, other.choice) == (7, 0.5, None, None)
    assert repr(other) == "AutoIndex()"
    points = torch.randn(20, 3)
    assert torch.equal(other.build(points).search(points, 4).indices, neighbors.nearest(points, points, 4))


@pytest.mark.parametrize("make", [nn.LocalKernelRidge, nn.BlendedKernelRidge])
def test_layers_take_auto(make):
    centers, values, query = torch.randn(200, 3), torch.randn(200, 2), torch.randn(9, 3)
    layer = make(centers, values, 10, kernel=kernels.Matern32(2.0), index="auto")
    assert torch.equal(layer(query), make(centers, values, 10, kernel=kernels.Matern32(2.0))(query))
    assert layer.index.choice.search == "exact"
    assert torch.equal(copy.deepcopy(layer)(query), layer(query))


def test_a_layer_streams_what_does_not_fit_into_memory(monkeypatch):
    centers, values, query = torch.randn(200, 3), torch.randn(200, 2), torch.randn(9, 3)
    expected = nn.LocalKernelRidge(centers, values, 10, kernel=kernels.Matern32(2.0))
    monkeypatch.setattr(auto, "memory_size", lambda: 2 * centers.numel())
    layer = nn.LocalKernelRidge(centers, values, 10, kernel=kernels.Matern32(2.0), index="auto")
    torch.testing.assert_close(layer(query), expected(query))
    assert layer.index.choice.search == "streamed"
    assert layer.index.points.data_ptr() == centers.data_ptr()
    for each in (layer, expected):
        each.append(query, values[:9])
        each.remove(torch.arange(20))
    torch.testing.assert_close(layer(query), expected(query))


@pytest.mark.parametrize(("choices", "pattern"), [({"num_queries": 0}, "at least 1"), ({"recall": 1.5}, "at most 1")])
def test_impossible_wishes_are_refused(choices, pattern):
    with pytest.raises(InputError, match=pattern):
        neighbors.AutoIndex(**choices)


# --- recall ---


def test_recall_is_the_share_of_true_neighbors_found(monkeypatch):
    points, query = torch.randn(300, 4), torch.randn(40, 4)
    index = neighbors.ExactIndex().build(points)
    assert neighbors.recall(index, query, COUNT) == 1
    search = index.find

    def poor(query, num_neighbors, exclude):
        # The ten nearest without the first three.
        found = search(query, num_neighbors + 3, exclude)
        return neighbors.Neighbors(*(column[:, 3:] for column in found))

    monkeypatch.setattr(index, "find", poor)
    assert neighbors.recall(index, query, COUNT) == pytest.approx(0.7)


def test_recall_asks_no_more_than_the_sample(monkeypatch):
    index = neighbors.ExactIndex().build(torch.randn(300, 4))
    search, asked = index.find, []
    monkeypatch.setattr(index, "find", lambda query, *rest: asked.append(len(query)) or search(query, *rest))
    neighbors.recall(index, torch.randn(5000, 4), COUNT, sample=70)
    assert asked == [70]


def test_recall_is_that_of_the_index():
    pytest.importorskip("faiss")
    points, query = torch.randn(3000, 16), torch.randn(200, 16)
    index = neighbors.FaissIndex("IVF32,Flat", nprobe=4).build(points)
    found, exact = index.search(query, COUNT).indices, neighbors.nearest(query, points, COUNT)
    expected = (found.unsqueeze(2) == exact.unsqueeze(1)).any(2).double().mean()
    assert neighbors.recall(index, query, COUNT) == pytest.approx(float(expected))
    assert neighbors.recall(index, query, COUNT) < 1
