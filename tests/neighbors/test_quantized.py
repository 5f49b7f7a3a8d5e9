"""Bounds from 8 bits hold, rounding included, and a search by them finds what a full sort finds."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from tests import reference
from torch import Tensor

from torchkrr import native, neighbors
from torchkrr.neighbors import exact, quantized
from torchkrr.neighbors.quantized import QuantizedPoints

if native.library() is None:
    pytest.skip("the compiled search is not there", allow_module_level=True)


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever the size of the problem and the processor."""
    monkeypatch.setattr(exact, "is_worth_it", lambda points, num_neighbors: points.dtype == torch.float32)
    monkeypatch.setattr(exact, "EFFORT", 0)
    monkeypatch.setattr(exact, "SMALL_PROBLEM", 0)


def clusters(count: int, features: int) -> Tensor:
    return 10 * torch.randn(5, features).repeat(-(-count // 5), 1)[:count] + 0.01 * torch.randn(count, features)


# Of `(count, features)`, queries and points alike.
DATA = {
    "random": torch.randn,
    "heavy-tailed": lambda *shape: torch.randn(*shape) ** 5,
    "rectified": lambda *shape: torch.randn(*shape).clamp_min(0),
    "different scales": lambda *shape: torch.randn(*shape) * torch.logspace(-6, 2, shape[1]),
    "clustered": clusters,
    "duplicated": lambda count, features: torch.randn(-(-count // 7), features).repeat(7, 1)[:count],
    "constant": lambda *shape: torch.full(shape, 3.0),
    "zero": torch.zeros,
    "at 1000": lambda *shape: torch.randn(*shape) + 1000,
    "tiny": lambda *shape: 1e-20 * torch.randn(*shape),
    "large": lambda *shape: 1e18 / shape[1] ** 0.5 * torch.randn(*shape),
    "integer grid": lambda *shape: torch.randint(-2, 3, shape).float(),
    "of many sizes": lambda count, features: torch.randn(count, features) * torch.logspace(-15, 15, count)[:, None],
}
SEARCHABLE = [name for name in DATA if name != "tiny"]  # squares of which are no numbers


def made(name: str, num_queries: int, count: int, features: int) -> tuple[Tensor, Tensor]:
    """Queries, a few of which are points, and points."""
    both = DATA[name](num_queries + count, features)
    both[: num_queries // 4] = both[num_queries : num_queries + num_queries // 4]
    return both[:num_queries].clone(), both[num_queries:].clone()


def libraries() -> list[str]:
    names = native.INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",))
    return [name for name in (*names, "baseline")[:3] if sorted(native.FOLDER.glob(f"fused_{name}.*"))]


@pytest.fixture(params=libraries())
def _library(request, monkeypatch):
    found = next(
        filter(None, (native.opened(request.param, path) for path in native.FOLDER.glob(f"fused_{request.param}.*")))
    )
    monkeypatch.setattr(native, "library", lambda: found)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("features", [1, 7, 64, 130])
@pytest.mark.parametrize("name", DATA)
def test_squared_distances_lie_within_their_bounds(name, features):
    query, points = made(name, 21, 150, features)
    lower, upper = (bound.double() for bound in QuantizedPoints(points).bounds(points, query))
    true = (query.double()[:, None] - points.double()).square().sum(-1)
    assert bool((lower <= true).all() and (true <= upper).all())
    measured = exact.squared_to(query, points.repeat(len(query), 1, 1)).double()  # what neighbors are ranked by
    assert bool((lower <= measured).all() and (measured <= upper).all())


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("name", [name for name in SEARCHABLE if name not in ("of many sizes", "integer grid")])
def test_bounds_are_those_of_the_formula(name):
    # But for integers, where a number halfway between two may be rounded to either.
    query, points = made(name, 9, 100, 45)
    found = QuantizedPoints(points).bounds(points, query)
    double = [tensor.double().numpy() for tensor in (query, points, points.mean(0))]
    expected = reference.distance_bounds(*double)
    size = sum((tensor.astype(float) - double[2]).__pow__(2).sum(1).max() for tensor in double[:2])
    for bound, formula in zip(found, expected, strict=True):
        atol = 1e-4 * size + 0.001 * (expected[1] - expected[0]).max() + 1e-30
        np.testing.assert_allclose(bound.double().numpy(), formula, rtol=0, atol=atol)


def full_sort(query: Tensor, points: Tensor, count: int, exclude: Tensor | None = None) -> Tensor:
    """By (distance as it is measured, row)."""
    squared = exact.squared_to(query, points.repeat(len(query), 1, 1))
    if exclude is not None:
        squared[torch.arange(len(query)), exclude] = torch.inf
    return squared.sort(dim=1, stable=True).indices[:, :count]


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("count", [1, 10, 60])
@pytest.mark.parametrize("name", SEARCHABLE)
def test_neighbors_are_those_of_a_full_sort(name, count):
    query, points = made(name, 50, 600, 12)
    index = neighbors.ExactIndex().build(points)
    found = index.search(query, count)
    assert torch.equal(found.indices, full_sort(query, points, count))
    exclude = found.indices[:, 0].clone()
    without = index.search(query, count, exclude=exclude)
    assert torch.equal(without.indices, full_sort(query, points, count, exclude))
    squared = (query[:, None].double() - points[found.indices].double()).square().sum(-1)
    torch.testing.assert_close(found.distances.double(), squared.sqrt(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["random", "clustered", "integer grid"])
def test_neighbors_do_not_depend_on_how_queries_are_divided(name, monkeypatch):
    query, points = made(name, 300, 900, 40)
    exclude = torch.arange(300)
    expected = full_sort(query, points, 9, exclude)
    threads = torch.get_num_threads()
    try:
        for workers, size in itertools.product([1, 3], [1, 5, 40, 300]):
            torch.set_num_threads(workers)
            monkeypatch.setattr(exact, "PROBE", 2 * size)
            index = neighbors.ExactIndex().build(points)
            parts = [index.search(q, 9, exclude=e) for q, e in zip(query.split(size), exclude.split(size), strict=True)]
            assert torch.equal(torch.cat([part.indices for part in parts]), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("order", ["sorted", "reversed"])
def test_points_sorted_by_distance(order):
    points = torch.linspace(1, 10, 2000)[:, None] * torch.randn(1, 20).repeat(2000, 1)
    points = points if order == "sorted" else points.flip(0)
    query = torch.zeros(3, 20)
    found = QuantizedPoints(points).search(points, query, 10, None).indices
    assert torch.equal(found, full_sort(query, points, 10))


def test_the_copy_follows_appended_and_removed_rows():
    query, points = made("random", 30, 500, 33)
    index = neighbors.ExactIndex().build(points[:100])
    assert torch.equal(index.search(query, 5).indices, full_sort(query, points[:100], 5))
    kept = index._quantized
    for more in points[100:].split([1, 47, 96, 256]):
        index.append(more)
        assert torch.equal(index.search(query, 5).indices, full_sort(query, index.points, 5))
    for rows in ([0, 499, 3], list(range(40, 300)), [2]):
        index.remove(rows)
        assert torch.equal(index.search(query, 5).indices, full_sort(query, index.points, 5))
    assert index._quantized is kept is not None
    assert width(kept, query, index.points) < 1.2 * width(QuantizedPoints(index.points), query, index.points)


def width(copy: QuantizedPoints, query: Tensor, points: Tensor) -> float:
    lower, upper = copy.bounds(points, query)
    return float((upper - lower).mean())


def test_bounds_stay_tight_when_points_come_from_elsewhere():
    query, points = made("random", 30, 500, 33)
    points[100:] += 100
    index = neighbors.ExactIndex().build(points[:100])
    index.search(query, 5)
    index.append(points[100:])
    assert torch.equal(index.search(points[::7], 5).indices, full_sort(points[::7], points, 5))
    assert width(index._quantized, points[::7], points) == width(QuantizedPoints(points), points[::7], points)


def test_points_too_much_alike_are_searched_by_product():
    points = torch.randn(3, 20).repeat(2000, 1)
    query = torch.cat((points[:3], torch.randn(40, 20)))
    assert bool((QuantizedPoints(points).search(points, query, 4, None).indices == -1).all())
    index = neighbors.ExactIndex().build(points)
    assert torch.equal(index.search(query, 4).indices, full_sort(query, points, 4))
    assert index._quantized is None  # it would be of no use


def test_a_query_too_close_to_many_points_does_not_hold_up_the_others():
    points = torch.randn(6000, 20)
    points[:3000] = points[0] + 50
    query = torch.cat((points[:1], points[3000:3040]))
    found = QuantizedPoints(points).search(points, query, 4, None).indices
    assert bool((found[0] == -1).all() and (found[1:] >= 0).all())
    index = neighbors.ExactIndex().build(points)
    assert torch.equal(index.search(query, 4).indices, full_sort(query, points, 4))
    assert index._quantized is not None


def test_the_copy_is_made_when_there_are_queries_enough(monkeypatch):
    monkeypatch.setattr(exact, "EFFORT", 8)
    monkeypatch.setattr(exact, "TOGETHER", 8)
    query, points = made("random", 64, 500, 10)
    index = neighbors.ExactIndex().build(points)
    for _ in range(7):
        index.search(query[:1], 5)
    assert index._quantized is None
    index.search(query[:1], 5)
    assert index._quantized is not None
    index.build(points + 1)
    assert index._quantized is None
    index.search(query, 5)
    assert index._quantized is not None


def test_the_copy_is_neither_pickled_nor_kept():
    query, points = made("random", 20, 500, 10)
    index = neighbors.ExactIndex().build(points)
    index.search(query, 5)
    for other in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert not any(isinstance(value, (Tensor, QuantizedPoints)) for value in vars(other).values())
        assert torch.equal(other.build(points).search(query, 5).indices, full_sort(query, points, 5))
    index.release()
    assert not any(isinstance(value, (Tensor, QuantizedPoints)) for value in vars(index).values())


@pytest.mark.parametrize(
    ("shape", "count", "dtype", "worth"),
    [
        ((50_000, 512), 100, torch.float32, True),
        ((50_000, 512), 100, torch.float64, False),
        ((50_000, 32), 100, torch.float32, False),
        ((1000, 128), 10, torch.float32, False),
        ((50_000, 512), 5000, torch.float32, False),
    ],
)
def test_where_it_is_worth_it(shape, count, dtype, worth, monkeypatch):
    points = torch.empty(shape, dtype=dtype)
    for quick in (True, False):
        found = native.library()._replace(quick_products=quick)
        monkeypatch.setattr(native, "library", lambda found=found: found)
        assert quantized.is_worth_it(points, count) == (worth and quick)
    assert not quantized.is_worth_it(points.mT.contiguous().mT, count)
