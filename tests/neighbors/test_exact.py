"""Exact search is a full sort by (distance, index), whatever the points, the precision and the chunks."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from torchkrr import errors, kernels, neighbors, transforms
from torchkrr import native as native
from torchkrr.neighbors import base, exact

FLOAT = [torch.float32, torch.float64]


@pytest.fixture(autouse=True, params=itertools.product(["by difference", "by product"], ["fused", "torch"]), ids=" ".join)
def _every_way(request, monkeypatch):
    """Small problems are compared in full; the products of large ones must find the same, compiled or not."""
    how, backend = request.param
    if how == "by product":
        monkeypatch.setattr(exact, "SMALL_PROBLEM", 0)
        monkeypatch.setattr(exact, "FEW_QUERIES", 0)
    if backend == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the compiled search is not there")


def full_sort(query: Tensor, points: Tensor, count: int, exclude: Tensor | None = None) -> Tensor:
    """In float64 and by difference: the points of these tests are spaced so that rounding there cannot change the order."""
    squared = (query.double()[:, None] - points.double()).square().sum(-1)
    if exclude is not None:
        squared[torch.arange(len(query)), exclude] = torch.inf
    return squared.sort(dim=1, stable=True).indices[:, :count]


def grid(side: int, dimensions: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(float(side))] * dimensions)


def two_clusters() -> Tensor:
    # The mean is far from every point, so that shifting by it does not help.
    near, far = 1e-2 * torch.randn(2, 60, 3)
    return torch.cat((near + 100, far - 100))


# On integer coordinates distances are exact in both precisions, so that ties are ties.
PLACES = {
    "grid": grid(8, 2),
    "grid in three dimensions": grid(5, 3),
    "grid in random order": grid(8, 2)[torch.randperm(64, generator=torch.Generator().manual_seed(0))],
    "every point ten times": grid(4, 2).repeat(10, 1),
    "one point forty times": torch.full((40, 3), 2.0),
    "line": torch.arange(50.0)[:, None],
    "grid at 1000": grid(8, 2) + 1000,
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dtype", [*FLOAT, torch.float16])
@pytest.mark.parametrize("count", [1, 4, 5, 9, 30, "all"])
def test_ties_go_to_the_lowest_index(name, dtype, count):
    points = PLACES[name].to(dtype)
    count = len(points) if count == "all" else count
    query = torch.cat((points[::3], points[::5] + 0.5))
    assert torch.equal(neighbors.nearest(query, points, count), full_sort(query, points, count))


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("features", [1, 2, 17, 130])
def test_random_points(dtype, features):
    points, query = torch.randn(400, features, dtype=dtype), torch.randn(50, features, dtype=dtype)
    assert torch.equal(neighbors.nearest(query, points, 20), full_sort(query, points, 20))


@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_float32_far_from_the_origin(offset):
    # The inner-product form without a shift has a recall of 0.78 at 1000.
    points = torch.randn(500, 8) + offset
    query = torch.randn(60, 8) + offset
    assert torch.equal(neighbors.nearest(query, points, 15), full_sort(query, points, 15))


def test_float32_clusters_far_from_their_common_mean():
    points = two_clusters()
    assert torch.equal(neighbors.nearest(points, points, 10), full_sort(points, points, 10))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_searched_in_float32(dtype):
    points, query = torch.randn(300, 6).to(dtype), torch.randn(40, 6).to(dtype)
    found = neighbors.ExactIndex().build(points).search(query, 12)
    assert found.distances.dtype == torch.float32
    assert torch.equal(found.indices, full_sort(query, points, 12))


def test_distances_are_those_of_the_indices():
    points, query = torch.randn(100, 5), torch.randn(9, 5)
    found = neighbors.ExactIndex().build(points).search(query, 7)
    expected = (points[found.indices] - query[:, None]).norm(dim=-1)
    torch.testing.assert_close(found.distances, expected)
    assert (found.distances.diff(dim=1) >= 0).all()
    assert found.indices.dtype == torch.int64


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("count", [1, 6, "all"])
def test_excluded_row_is_never_found_and_nothing_else_is_missing(name, count):
    points = PLACES[name]
    count = len(points) - 1 if count == "all" else count
    query = points[::4] + 0.5
    # The nearest one, so that leaving it out changes the result.
    exclude = full_sort(query, points, 1).squeeze(1)
    found = neighbors.nearest(query, points, count, exclude=exclude)
    assert torch.equal(found, full_sort(query, points, count, exclude))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("count", [1, 6, "all"])
def test_exclude_self_drops_each_row_by_its_number(name, count):
    # Not by distance zero: a twin is a neighbor.
    points = PLACES[name]
    count = len(points) - 1 if count == "all" else count
    rows = torch.arange(len(points))
    found = neighbors.nearest(points, points, count, exclude_self=True)
    assert torch.equal(found, full_sort(points, points, count, rows))
    assert not (found == rows[:, None]).any()


def test_integers_of_either_size_name_the_excluded_row():
    points = torch.randn(20, 2)
    rows = torch.arange(20)
    wide = neighbors.nearest(points, points, 3, exclude=rows)
    assert torch.equal(neighbors.nearest(points, points, 3, exclude=rows.int()), wide)


@pytest.mark.parametrize("kernel", [None, kernels.Gaussian([0.1, 5.0]), kernels.Exponential(3.0)], ids=repr)
def test_the_metric_is_that_of_the_kernel(kernel):
    points, query = torch.randn(80, 2), torch.randn(10, 2)
    embed = (lambda x: x) if kernel is None else kernel.embed
    expected = full_sort(embed(query), embed(points), 6)
    assert torch.equal(neighbors.nearest(query, points, 6, kernel=kernel), expected)


def test_the_metric_includes_the_transform():
    points, query = torch.randn(80, 3) * torch.tensor([1.0, 100.0, 0.01]), torch.randn(10, 3)
    kernel = kernels.default_kernel(points)
    expected = full_sort(kernel.embed(query), kernel.embed(points), 6)
    assert torch.equal(neighbors.nearest(query, points, 6, kernel=kernel), expected)
    assert not torch.equal(expected, full_sort(query, points, 6))


def test_search_carries_no_gradient():
    points = torch.randn(20, 2, requires_grad=True)
    kernel = kernels.Gaussian(learn_lengthscale=True)
    assert not neighbors.nearest(points, points, 3, kernel=kernel).requires_grad
    index = neighbors.ExactIndex().build(points)
    assert not index.search(points, 3).distances.requires_grad


# --- chunks ---

# Bytes at once and rows in a block: one query against one block, several blocks of unequal size, several chunks.
CHUNKS = [(1, 1 << 16), (64, 16), (1000, 50), (4096, 64), (20_000, 7)]


def in_chunks(monkeypatch, bytes_at_once: int, block: int) -> None:
    monkeypatch.setattr(exact, "SEARCH_BYTES", bytes_at_once)
    monkeypatch.setattr(base, "SEARCH_BYTES", bytes_at_once)
    monkeypatch.setattr(exact, "LARGEST_BLOCK", block)
    monkeypatch.setattr(exact, "SMALL_PROBLEM", 0)
    monkeypatch.setattr(exact, "STRIP", 5)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("name", ["grid", "every point ten times", "random", "random at 1000"])
@pytest.mark.parametrize("excluding", [False, True])
def test_neighbors_do_not_depend_on_chunks(monkeypatch, chunks, name, excluding):
    random = {"random": torch.randn(70, 6), "random at 1000": torch.randn(70, 6) + 1000}
    points = {**PLACES, **random}[name][:70]
    query = torch.cat((points[:20], points[:11] + 0.5))
    exclude = torch.arange(len(query)) % len(points) if excluding else None
    whole = neighbors.ExactIndex().build(points).search(query, 9, exclude=exclude)
    in_chunks(monkeypatch, *chunks)
    parts = neighbors.ExactIndex().build(points).search(query, 9, exclude=exclude)
    assert torch.equal(parts.indices, whole.indices)
    torch.testing.assert_close(parts.distances, whole.distances, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [4, 5, 8])
def test_last_block_may_be_of_any_size(monkeypatch, rows):
    # 16 scores at once and blocks of 7: memory for 2 x 7 scores is made, and 4 queries with the last 4 points need 16.
    in_chunks(monkeypatch, 64, 7)
    points, query = torch.randn(14 + rows, 2), torch.randn(20, 2)
    assert torch.equal(neighbors.nearest(query, points, 3), full_sort(query, points, 3))


def test_sentence_features_whose_last_block_is_a_power_of_two():
    # The same at the true block size: 384 features make blocks of 21845 points, here followed by one of 16384.
    points, query = torch.randn(21_845 + 16_384, 384), torch.randn(512, 384)
    assert neighbors.nearest(query, points, 1).shape == (512, 1)


def test_one_query_at_a_time_finds_the_same():
    points, query = torch.randn(200, 12) + 50, torch.randn(30, 12) + 50
    together = neighbors.nearest(query, points, 8)
    assert torch.equal(torch.cat([neighbors.nearest(q[None], points, 8) for q in query]), together)


def test_threads_find_the_same(monkeypatch):
    points, query = torch.randn(300, 12), torch.randn(200, 12)
    alone = neighbors.nearest(query, points, 8)
    in_chunks(monkeypatch, 20_000, 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(neighbors.nearest(query, points, 8), alone)
    finally:
        torch.set_num_threads(threads)


# --- append and remove ---


@pytest.mark.parametrize("dtype", FLOAT)
def test_append_is_a_rebuilt_index(dtype):
    old, new, query = torch.randn(40, 4, dtype=dtype), 5 + torch.randn(9, 4, dtype=dtype), torch.randn(20, 4, dtype=dtype)
    index = neighbors.ExactIndex().build(old)
    index.append(new[:4])
    index.append(new[4:])
    everything = torch.cat((old, new))
    assert torch.equal(index.points, everything)
    assert torch.equal(index.search(query, 6).indices, full_sort(query, everything, 6))
    assert torch.equal(index.search(new, 1).indices, torch.arange(40, 49)[:, None])


def test_remove_moves_the_rows_after_it_up():
    points, query = torch.randn(40, 4), torch.randn(20, 4)
    index = neighbors.ExactIndex().build(points)
    index.remove(torch.tensor([3, 0, 39, 3]))
    left = points[[row for row in range(40) if row not in (0, 3, 39)]]
    assert torch.equal(index.points, left)
    assert torch.equal(index.search(query, 6).indices, full_sort(query, left, 6))


def test_remove_undoes_append():
    points, query = torch.randn(40, 4), torch.randn(20, 4)
    index = neighbors.ExactIndex().build(points)
    before = index.search(query, 6)
    index.append(query[:7])
    assert torch.equal(index.search(query[:7], 1).indices.squeeze(1), torch.arange(40, 47))
    index.remove(torch.arange(40, 47))
    after = index.search(query, 6)
    assert torch.equal(after.indices, before.indices)
    assert torch.equal(after.distances, before.distances)


def test_changing_the_callers_tensor_does_not_spoil_an_index():
    points, query = torch.randn(40, 4), torch.randn(20, 4)
    points[:20] += 10
    index, old = neighbors.ExactIndex().build(points), points.clone()
    points[:20] -= 10
    points[20:] += 10
    found = index.search(query, 5).indices
    assert torch.equal(found, full_sort(query, old, 5)) or torch.equal(found, full_sort(query, points, 5))


def test_building_again_forgets_the_points_before():
    points = torch.randn(40, 4)
    index = neighbors.ExactIndex().build(points)
    assert index.build(points[:9] + 3) is index
    assert torch.equal(index.search(points, 5).indices, full_sort(points, points[:9] + 3, 5))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))], ids=["copy", "pickle"])
def test_a_copy_of_an_index_has_no_points(copied):
    # Whoever owns the points builds it again; a checkpoint does not carry them twice.
    index = neighbors.ExactIndex().build(torch.randn(40, 4))
    other = copied(index)
    assert other.points is None
    points = torch.randn(10, 2)
    assert torch.equal(other.build(points).search(points, 3).indices, full_sort(points, points, 3))


# --- extremes ---


def test_a_single_point():
    assert torch.equal(neighbors.nearest(torch.randn(5, 3), torch.zeros(1, 3), 1), torch.zeros(5, 1, dtype=torch.int64))


def test_a_query_far_from_all_points():
    # Differences of float32 numbers as large as the distance: the order is that of the rounded distances, ties by index.
    points, query = torch.randn(200, 3), 1e6 * torch.randn(20, 3)
    found = neighbors.ExactIndex().build(points).search(query, 5)
    if native.library() is not None:
        rounded = exact.squared_to(query, points.repeat(20, 1, 1))  # sums in another order
        torch.testing.assert_close(rounded.double(), (points - query[:, None]).double().square().sum(-1), rtol=1e-6, atol=0)
    else:
        rounded = (points - query[:, None]).square().sum(-1)
    assert torch.equal(found.indices, rounded.sort(dim=1, stable=True).indices[:, :5])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_does_not_matter(scale):
    points, query = torch.randn(100, 3), torch.randn(20, 3)
    found = neighbors.nearest(scale * query, scale * points, 5)
    assert torch.equal(found, full_sort(scale * query, scale * points, 5))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_scales_whose_squares_are_no_numbers_are_refused(scale):
    points, query = torch.randn(100, 3), torch.randn(20, 3)
    with pytest.raises(errors.InputError, match=r"squares float32 cannot hold.*float64"):
        neighbors.nearest(scale * query, scale * points, 5)
    double = neighbors.nearest(scale * query.double(), scale * points.double(), 5)
    assert torch.equal(double, full_sort(query.double(), points.double(), 5))


def test_search_under_autocast_keeps_its_precision():
    kernel = kernels.Gaussian(input_transform=transforms.Linear(torch.randn(16, 64)))
    points, query = torch.randn(200, 64), torch.randn(50, 64)
    expected = neighbors.nearest(query, points, 10, kernel=kernel)
    with torch.autocast("cpu", torch.bfloat16):
        found = neighbors.nearest(query, points, 10, kernel=kernel)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_points_in_half_precision_are_embedded_in_float32(dtype):
    kernel = kernels.Gaussian(input_transform=transforms.Linear(torch.randn(16, 64)))
    points, query = torch.randn(200, 64).to(dtype), torch.randn(50, 64).to(dtype)
    expected = neighbors.nearest(query.float(), points.float(), 10, kernel=kernel)
    assert torch.equal(neighbors.nearest(query, points, 10, kernel=kernel), expected)


def test_a_released_index_keeps_nothing_of_the_points():
    index = neighbors.ExactIndex().build(torch.randn(300, 6) + 1000)
    index.release()
    assert not any(isinstance(value, Tensor) for value in vars(index).values())
    assert len(index.build(torch.randn(20, 6)).search(torch.randn(3, 6), 5).indices) == 3


def test_search_inside_torch_func():
    # Its tensors have no memory that numpy could see.
    points, query = torch.randn(300, 6), torch.randn(20, 6)
    found = []

    def length(query: Tensor) -> Tensor:
        found.append(neighbors.nearest(query, points, 7))
        return query.square().sum()

    torch.func.grad(length)(query)
    assert torch.equal(found[0], full_sort(query, points, 7))


def test_points_overwritten_behind_the_back_of_the_index():
    memory = np.random.default_rng(0).random((2000, 70), dtype=np.float32)
    index = neighbors.ExactIndex().build(torch.from_numpy(memory))
    memory[:] = np.nan
    if native.library() is None:
        pytest.skip("torch sorts what is no number to the end")
    with pytest.raises(errors.InputError, match="points"):
        index.search(torch.rand(9, 70), 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_next_to_the_origin_is_searched_alone_as_among_others(dtype):
    points = torch.randn(10, 1, dtype=dtype)
    query = torch.tensor([[1e-20 if dtype == torch.float32 else 1e-160], [1.0]], dtype=dtype)
    assert torch.equal(neighbors.nearest(query[:1], points, 3), neighbors.nearest(query, points, 3)[:1])
