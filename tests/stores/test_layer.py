"""The layer on a store is the layer in memory: predictions, weights, error indicator and gradients."""

import copy

import numpy as np
import pytest
import torch
from tests.kernel_cases import KERNELS

from torchkrr import kernels, nn, transforms
from torchkrr.errors import BackendError, InputError, InputTypeError, ShapeError
from torchkrr.stores import StoredKernelRidge

torch.manual_seed(5)
POINTS, VALUES, QUERY = torch.randn(150, 3), torch.randn(150, 2), torch.randn(2, 3, 3)
IDS = np.arange(150)[::-1] * 3 + 7


def both(store, kernel, num_neighbors=20, **options):
    """The two layers, the stored rows and the centers being the same."""
    if store.kernel is not None and not len(store):
        store.add(POINTS, VALUES, IDS)
    options = {"ridge": 1e-3, **options}
    return (
        nn.LocalKernelRidge(POINTS, VALUES, num_neighbors, kernel=kernel, **options),
        StoredKernelRidge(store, num_neighbors, **options),
    )


def answers(layer, query):
    """Everything that a layer says of a query, with the gradients of a mixture."""
    query = query.clone().requires_grad_()
    mean, power, weights = layer(query), layer.power_function(query), layer.explain(query.detach())[1]
    (gradient,) = torch.autograd.grad(mean.square().sum() + power.sum(), query)
    return mean, power, weights, gradient


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_layer_in_memory_for_every_kernel(open_store, name):
    kernel = KERNELS[name](1.7)
    store = open_store(kernel=kernel)
    for options in ({}, {"trend": "constant", "fade": True}):
        inside, stored = both(store, kernel, **options)
        torch.testing.assert_close(answers(stored, QUERY), answers(inside, QUERY), rtol=1e-5, atol=1e-5)
        ids, indices = stored.explain(QUERY).ids, inside.explain(QUERY).indices
        assert (ids == IDS[indices]).all()


@pytest.mark.parametrize("trend", ["linear", 2])
def test_it_is_the_layer_in_memory_with_a_polynomial(open_store, trend):
    kernel = kernels.ThinPlateSpline()
    inside, stored = both(open_store(kernel=kernel), kernel, trend=trend)
    torch.testing.assert_close(answers(stored, QUERY), answers(inside, QUERY), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="Use trend='linear'"):
        StoredKernelRidge(stored.store, 20)(QUERY)


@pytest.mark.parametrize(
    "options", [{"trend": "constant"}, {"fade": True}, {"normalize": "cell"}, {"num_neighbors": 150, "ridge": 1.0}]
)
def test_it_is_the_layer_in_memory_for_every_option(open_store, options):
    lengthscales, transform = torch.tensor([0.5, 1.0, 2.0]), transforms.StandardMean().fit(POINTS)
    kernel = kernels.Matern52(lengthscales, input_transform=transform)
    inside, stored = both(open_store(kernel=kernel), kernel, **options)
    torch.testing.assert_close(answers(stored, QUERY), answers(inside, QUERY), rtol=1e-5, atol=1e-5)


def test_more_neighbors_than_rows_are_all_rows_and_then_nothing_fades(pgvector):
    kernel = kernels.Gaussian(1.0)
    inside, stored = both(pgvector(kernel=kernel), kernel, 1000, fade=True, ridge=1.0)
    torch.testing.assert_close(stored(QUERY), inside(QUERY), rtol=1e-5, atol=1e-5)
    assert stored.explain(QUERY).ids.shape == (2, 3, 150)


def test_equal_distances_are_ranked_by_id(open_store):
    store = open_store(kernel=kernels.Exponential(1.0))
    points = torch.tensor([[1.0], [-1.0], [1.0], [-1.0], [3.0]])
    store.add(points, torch.arange(5.0), [9, 4, 7, 5, 1])
    found = store.search(torch.zeros(1, 1), 4)
    assert found.ids.tolist() == [[4, 5, 7, 9]]
    assert found.values.flatten().tolist() == [1, 3, 2, 0]


def test_queries_of_any_precision_get_their_own_back(pgvector):
    kernel = kernels.Matern32(1.0)
    inside, stored = both(pgvector(kernel=kernel), kernel)
    assert stored(QUERY.half()).dtype == torch.float16
    wide = nn.LocalKernelRidge(POINTS.double(), VALUES.double(), 20, kernel=kernel, ridge=1e-3)
    torch.testing.assert_close(stored(QUERY.double()), wide(QUERY.double()), rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(stored(QUERY), inside(QUERY))


def test_many_queries_are_asked_in_batches_of_bounded_size(open_store, monkeypatch):
    kernel = kernels.Exponential(1.0)
    inside, stored = both(open_store(kernel=kernel), kernel)
    query, asked = torch.randn(100, 3), []
    monkeypatch.setattr("torchkrr.stores.base.SEARCH_BYTES", 28 * 4 * 9 * 30)
    fetch = stored.store._fetch
    monkeypatch.setattr(stored.store, "_fetch", lambda rows, *rest, **options: asked.append(len(rows)) or fetch(rows, *rest))
    torch.testing.assert_close(stored(query), inside(query), rtol=1e-5, atol=1e-5)
    assert asked == [30, 30, 30, 10]


def test_no_queries_have_an_empty_answer(open_store):
    _, stored = both(open_store(kernel=kernels.Exponential(1.0)), kernels.Exponential(1.0))
    assert stored(torch.empty(0, 3)).shape == (0, 2)
    assert stored.power_function(torch.empty(2, 0, 3)).shape == (2, 0)
    assert stored.explain(torch.empty(0, 3)).ids.shape == (0, 20)


def test_wrong_queries_are_named(open_store):
    _, stored = both(open_store(kernel=kernels.Exponential(1.0)), kernels.Exponential(1.0))
    with pytest.raises(ShapeError, match="have 3 features, got 2"):
        stored(torch.zeros(1, 2))
    with pytest.raises(InputError, match="query must be finite"):
        stored(torch.full((1, 3), torch.nan))
    with pytest.raises(BackendError, match="cannot be asked inside"):
        torch.func.vmap(stored)(torch.zeros(2, 1, 3))


def test_a_layer_cannot_be_copied_with_its_connection(open_store):
    _, stored = both(open_store(kernel=kernels.Exponential(1.0)), kernels.Exponential(1.0))
    with pytest.raises(InputTypeError, match="Open it anew"):
        copy.deepcopy(stored)
    assert stored.state_dict() == {}
    assert "num_neighbors=20" in repr(stored)
