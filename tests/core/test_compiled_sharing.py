"""Queries with the same neighbors share one factorization, within a call and from call to call."""

import copy
import pickle

import pytest
import torch

from torchkrr import functional as F
from torchkrr import kernels, native, nn
from torchkrr.core import compiled

pytestmark = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
KERNEL = kernels.Matern32(1.5)


@pytest.fixture(autouse=True)
def _always_worth_it(monkeypatch):
    """Cells of these tests are too small for sharing to pay."""
    monkeypatch.setattr(compiled, "WORTHWHILE", 1.0)


def repeated(groups=7, members=12, per_group=9, seed=0):
    """Queries in random order, of which `per_group` each have the same neighbors, listed in different orders."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    sets = [torch.randperm(80, generator=generator)[:members] for _ in range(groups)]
    rows = torch.randperm(groups * per_group, generator=generator) % groups
    indices = torch.stack([sets[row][torch.randperm(members, generator=generator)] for row in rows])
    return torch.randn(len(rows), 3, generator=generator, dtype=torch.float64), centers, values, indices


def test_groups_are_those_with_equal_sets():
    indices = repeated()[3]
    shared = compiled.shared_cells(indices, 3)
    assert len(shared.cells) == 7
    for cell, start, stop in zip(shared.cells, shared.starts[:-1], shared.starts[1:], strict=True):
        for query in shared.order[start:stop]:
            assert torch.equal(indices[query].sort().values, cell)
    assert torch.equal(shared.order.sort().values, torch.arange(len(indices)))
    assert len(shared.cells.unique(dim=0)) == len(shared.cells)


def test_different_sets_are_left_alone():
    generator = torch.Generator().manual_seed(1)
    indices = torch.stack([torch.randperm(500, generator=generator)[:10] for _ in range(200)])
    assert compiled.shared_cells(indices, 3) is None


def test_small_cells_are_left_alone(monkeypatch):
    monkeypatch.undo()
    assert compiled.shared_cells(repeated()[3], 3) is None
    assert compiled.shared_cells(repeated()[3], 3000) is not None


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("per_group", [2, 9, 70])  # 70: more than are solved at a time
def test_shared_cells_give_what_each_query_gets_alone(per_group, trend):
    query, centers, values, indices = repeated(per_group=per_group)
    choices = {"kernel": KERNEL, "ridge": 1e-3, "trend": trend}
    for function, arguments in (
        (F.local_kernel_ridge, (centers, values)),
        (F.local_power_function, (centers,)),
        (F.local_cardinal_weights, (centers,)),
    ):
        together = function(query, *arguments, indices, backend="fused", **choices)
        alone = function(query, *arguments, indices, backend="torch", **choices)
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


def test_a_query_far_from_the_others_of_its_cell():
    # The distances of a group are taken relative to its first query.
    query, centers, values, indices = repeated(groups=1)
    query[1:] *= torch.logspace(0, 3, len(query) - 1, dtype=torch.float64).unsqueeze(1)
    choices = {"kernel": KERNEL, "ridge": 1e-3}
    together = F.local_kernel_ridge(query, centers, values, indices, backend="fused", **choices)
    alone = F.local_kernel_ridge(query, centers, values, indices, backend="torch", **choices)
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-10)


def stream_layer(**choices):
    _, centers, values, _ = repeated()
    return nn.LocalKernelRidge(centers, values, 12, kernel=kernels.Matern32(1.5), ridge=1e-3, **choices)


def stream(count=40):
    generator = torch.Generator().manual_seed(2)
    places = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    return places[torch.arange(count) % 3] + 1e-9 * torch.randn(count, 3, generator=generator, dtype=torch.float64)


def test_a_stream_finds_its_factors_again():
    keeping, plain = stream_layer(keep_factors=3), stream_layer()
    for query in stream().unsqueeze(1):
        torch.testing.assert_close(keeping(query), plain(query), rtol=1e-9, atol=1e-9)
    assert keeping._factors.hits == 40 - 3


def test_the_cache_is_bounded():
    keeping = stream_layer(keep_factors=2)
    for query in stream().unsqueeze(1):  # three cells in turn: with room for two the one needed is always the one dropped
        keeping(query)
    assert keeping._factors.hits == 0


@pytest.mark.parametrize("change", ["centers", "lengthscale", "ridge", "append", "remove"])
def test_factors_are_never_stale(change):
    layer = stream_layer(keep_factors=10)
    query = stream(6)
    layer(query)
    with torch.no_grad():
        if change == "centers":
            layer.centers.mul_(1.1)
        elif change == "lengthscale":
            layer.kernel.log_lengthscale.add_(0.3)
        elif change == "ridge":
            layer.ridge = layer.ridge * 10
        elif change == "append":
            layer.append(query[:1] + 0.01, torch.ones(1, 2, dtype=torch.float64))
        else:
            layer.remove(layer.neighbors(query)[0, :2])
    fresh = nn.LocalKernelRidge(
        layer.centers.detach().clone(), layer.values.clone(), 12, kernel=copy.deepcopy(layer.kernel), ridge=layer.ridge
    )
    torch.testing.assert_close(layer(query), fresh(query), rtol=1e-9, atol=1e-9)


def test_values_are_not_part_of_a_factor():
    layer = stream_layer(keep_factors=10)
    before = layer(stream(3))
    layer.values.mul_(2)
    torch.testing.assert_close(layer(stream(3)), 2 * before)
    assert layer._factors.hits == 3


def test_copies_start_with_an_empty_cache():
    layer = stream_layer(keep_factors=10)
    expected = layer(stream(3))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.keep_factors == 10
        assert other._factors is None
        torch.testing.assert_close(other(stream(3)), expected)
        assert other._factors.hits == 0


def test_gradients_do_not_use_it():
    layer = stream_layer(keep_factors=10)
    layer(stream(3))
    query = stream(3).requires_grad_()
    plain = stream_layer()
    (ours,), (theirs,) = (torch.autograd.grad(model(query).sum(), query) for model in (layer, plain))
    torch.testing.assert_close(ours, theirs)
