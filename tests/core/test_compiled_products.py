"""Inner products of all centers, formed once for all cells: as exact as those each cell forms for itself, or not used."""

from __future__ import annotations

import pytest
import torch
from tests import reference
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
NUM_CENTERS, FEATURES, NEIGHBORS, OUTPUTS = 150, 160, 60, 3
RIDGE = 1e-3


@pytest.fixture
def alone(monkeypatch):
    """A function that says whether each cell forms its own inner products from now on."""
    original, chosen = native.call, [False]

    def call(name, dtype, task, tensors=native.NO_TENSORS):
        if chosen[0]:
            task.points = 0
        original(name, dtype, task, tensors)

    monkeypatch.setattr(native, "call", call)
    return lambda yes: chosen.__setitem__(0, yes)


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(radius: float, *, apart: float = 30.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Query and centers in two clusters, one after the other."""
    places = apart * torch.nn.functional.normalize(normal(2, FEATURES, seed=seed), dim=1)
    centers = places.repeat_interleave(NUM_CENTERS // 2, 0) + radius * normal(NUM_CENTERS, FEATURES, seed=seed + 1)
    return places.repeat_interleave(30, 0) + radius * normal(60, FEATURES, seed=seed + 2), centers


def solved(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, scale: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    tensors = (tensor.to(dtype) for tensor in (query, centers, values))
    return F.local_kernel_ridge(*tensors, indices, kernel=kernels.Exponential(scale), ridge=RIDGE, backend="fused")


def expected(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, scale: float) -> Tensor:
    query, centers, values = (tensor.float().double() for tensor in (query, centers, values))
    points = (query / scale).numpy(), (centers / scale).numpy()
    found = reference.local_kernel_ridge(
        *points, values.numpy(), indices.numpy(), profile=reference.exponential, ridge=RIDGE
    )
    return torch.from_numpy(found)


def nearest(query: Tensor, centers: Tensor, count: int = NEIGHBORS) -> Tensor:
    return torch.cdist(query, centers).topk(count, largest=False).indices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_cloud_borrows_and_is_as_exact(alone, dtype):
    query, centers, values = (
        normal(n, d, seed=n + d) for n, d in ((60, FEATURES), (NUM_CENTERS, FEATURES), (NUM_CENTERS, 3))
    )
    centers[1] = centers[0]  # by difference, or the matrix would not say that they are equal
    centers[3] = centers[2] + 1e-5
    query += 50.0  # nor must an offset that all share count
    centers += 50.0
    indices = nearest(query, centers)
    exact = solved(query.float(), centers.float(), values.float(), indices, 20.0, torch.float64)
    torch.testing.assert_close(exact, expected(query, centers, values, indices, 20.0), rtol=0, atol=1e-8)
    results = []
    for yes in (False, True):
        alone(yes)
        results.append(solved(query, centers, values, indices, 20.0, dtype).double())
    if dtype == torch.float32:
        errors = [float((result - exact).square().mean().sqrt()) for result in results]
        assert errors[0] <= 2 * errors[1] + 1e-6
    assert not torch.equal(*results)
    torch.testing.assert_close(*results, rtol=0, atol=5e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("radius", [1e-1, 1e-2])
@pytest.mark.parametrize("far", [False, True])
def test_small_neighborhoods_far_from_the_mean_form_their_own(alone, radius, far):
    query, centers = clusters(radius)
    indices = nearest(query, centers)
    if far:  # its own distance says nothing about the neighborhood then
        query = query + 100 * torch.nn.functional.normalize(normal(1, FEATURES, seed=9), dim=1)
    values = normal(NUM_CENTERS, OUTPUTS, seed=4)
    scale = radius * FEATURES**0.5 * (1000 if far else 1)
    results = []
    for yes in (False, True):
        alone(yes)
        results.append(solved(query, centers, values, indices, scale))
    assert torch.equal(*results)
    error = (results[0].double() - expected(query, centers, values, indices, scale)).abs().max()
    assert error < 5e-3 * values.abs().max()


@pytest.mark.parametrize("radius", [1.0, 1e-1, 1e-3])
def test_close_pairs_of_wide_neighborhoods_go_by_difference(alone, radius):
    # Half of each neighborhood is in either cluster: the mean of all serves it, and distances inside of a cluster are small.
    query, centers = clusters(radius)
    generator = torch.Generator().manual_seed(3)
    indices = torch.stack([torch.randperm(NUM_CENTERS, generator=generator)[:NEIGHBORS] for _ in query])
    values = normal(NUM_CENTERS, OUTPUTS, seed=4)
    scale = radius * FEATURES**0.5
    alone(True)
    own = solved(query, centers, values, indices, scale)
    alone(False)
    found = solved(query, centers, values, indices, scale)
    assert not torch.equal(found, own)
    truth = expected(query, centers, values, indices, scale)
    errors = [float((result.double() - truth).abs().max()) for result in (found, own)]
    assert errors[0] <= 2 * errors[1] + 1e-5


@pytest.mark.parametrize("choices", [{"trend": "constant"}, {"ridge": "each"}, {"scales": True}, {"shared": True}])
def test_same_as_torch_in_float64(choices):
    query, centers, values = (
        normal(n, d, seed=n + d) for n, d in ((60, FEATURES), (NUM_CENTERS, FEATURES), (NUM_CENTERS, 3))
    )
    indices = nearest(query, centers)
    if "shared" in choices:
        indices = indices[:30].repeat(2, 1)
    ridge = torch.linspace(1e-3, 1e-1, NUM_CENTERS, dtype=torch.float64) if "ridge" in choices else RIDGE
    kernel = kernels.Matern32(torch.linspace(10.0, 30.0, FEATURES) if "scales" in choices else 20.0)
    results = [
        F.local_kernel_ridge(
            query, centers, values, indices, kernel=kernel, ridge=ridge, trend=choices.get("trend"), backend=backend
        )
        for backend in ("fused", "torch")
    ]
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)
    paths = [
        F.local_path(query, centers, values, indices, kernel=kernel, ridge=RIDGE, backend=b) for b in ("fused", "torch")
    ]
    torch.testing.assert_close(paths[0], paths[1], rtol=0, atol=1e-10)


def test_threads_and_a_center_that_nobody_uses_change_nothing():
    query, centers, values = (
        normal(n, d, seed=n + d) for n, d in ((60, FEATURES), (NUM_CENTERS, FEATURES), (NUM_CENTERS, 3))
    )
    indices = nearest(query, centers[:-1])
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(solved(query, centers, values, indices, 20.0))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    centers[-1] = torch.nan
    torch.testing.assert_close(solved(query, centers, values, indices, 20.0), results[0], rtol=0, atol=1e-4)
