"""Layers of local regressors: append, remove, and learning."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import (
    CONTINUOUS,
    INDEXES,
    KINDS,
    LEARNED,
    NUM_CENTERS,
    NUM_FEATURES,
    NUM_NEIGHBORS,
    NUM_OUTPUTS,
    data,
    make,
    predicts_as_rebuilt,
    queries,
    rebuilt,
    refitted,
    same,
)
from torch import Tensor

from torchkrr import kernels, neighbors, transforms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("default_kernel", [False, True])
def test_append_is_a_rebuilt_layer_and_remove_undoes_it(kind, index, used_before, default_kernel):
    choices = {} if kind == "dense" else {"index": INDEXES[index]()}
    layer = make(kind, **choices, **({"kernel": None} if default_kernel else {}))
    before = rebuilt(layer)(queries())
    if used_before:
        layer(queries())
    centers, values = queries() + 0.05, data(1, 9)[1]
    layer.append(centers, values)
    assert torch.equal(layer.centers, torch.cat((data()[0], centers)))
    assert torch.equal(layer.values, torch.cat((data()[1], values)))
    assert predicts_as_rebuilt(refitted(layer))
    assert not torch.equal(layer(queries()), before)
    layer.remove(torch.arange(NUM_CENTERS, NUM_CENTERS + 9))
    assert torch.equal(refitted(layer)(queries()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_remove_forgets_the_rows_named_in_any_order(kind):
    layer = make(kind)
    layer(queries())
    layer.remove(torch.tensor([59, 0, 31, 0]))
    keep = [row for row in range(NUM_CENTERS) if row not in (0, 31, 59)]
    assert torch.equal(layer.centers, data()[0][keep])
    assert torch.equal(layer.values, data()[1][keep])
    assert predicts_as_rebuilt(refitted(layer))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_appended_keeps_no_graph(kind):
    layer = make(kind)
    centers, values = (tensor.requires_grad_() for tensor in data(1, 5))
    layer.append(2 * centers, 2 * values)
    assert not layer.centers.requires_grad
    assert not layer.values.requires_grad
    assert not layer(queries()).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_append_and_remove_leave_the_tensors_given_alone(kind):
    centers, values = data()
    layer = make(kind, centers, values)
    layer.append(*data(1, 5))
    layer.remove(torch.tensor([0]))
    assert torch.equal(centers, data()[0])
    assert torch.equal(values, data()[1])


def test_a_grown_layer_interpolates_what_it_was_given():
    layer = make("local", ridge=0.0)
    centers, values = data(1, 5)
    layer(queries())
    layer.append(centers, values)
    torch.testing.assert_close(layer(centers), values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED[1:], ids=str)
def test_learned_tensors_train(kind, learned):
    query = queries(40)
    target = query.sin().sum(-1, keepdim=True).repeat(1, NUM_OUTPUTS)
    layer = make(kind, ridge=1e-2, **learned)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (layer(query) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Coarse points are chosen anew in every step, so that their loss falls less smoothly.
    assert losses[-1] < (0.7 if kind == "hierarchical" else 0.5) * losses[0]
    with torch.no_grad():
        assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", ["dense", "local"])
def test_gradients_of_learned_tensors_are_those_of_the_function(kind):
    layer = make(kind, learn_centers=True, learn_values=True).double()
    query = queries().double()
    indices = neighbors.nearest(query, layer.centers.detach(), NUM_NEIGHBORS, kernel=layer.kernel)

    def plain(centers: Tensor, values: Tensor) -> Tensor:
        gram, cross = layer.kernel(centers, centers), layer.kernel(query, centers)
        if kind == "dense":
            return cross @ torch.linalg.solve(gram + 1e-4 * torch.eye(NUM_CENTERS, dtype=torch.float64), values)
        local, eye = centers[indices], torch.eye(NUM_NEIGHBORS, dtype=torch.float64)
        solved = torch.linalg.solve(layer.kernel(local, local) + 1e-4 * eye, values[indices])
        return (layer.kernel(query[:, None], local) @ solved).squeeze(1)

    weights = torch.randn(9, NUM_OUTPUTS, dtype=torch.float64)
    found = torch.autograd.grad((weights * layer(query)).sum(), (layer.centers, layer.values))
    expected = torch.autograd.grad((weights * plain(layer.centers, layer.values)).sum(), (layer.centers, layer.values))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("default_kernel", [False, True])
def test_gradients_reach_a_backbone_through_centers_values_and_query(kind, default_kernel):
    # Support and queries both come out of the network that is trained, as in episodic training.
    torch.manual_seed(0)
    backbone = torch.nn.Linear(5, NUM_FEATURES).double()
    labels = torch.nn.Linear(5, NUM_OUTPUTS).double()
    support, images = torch.randn(NUM_CENTERS, 5, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64)
    # Fitted on a wider range: the outermost centers would sit where the transform clips, and its derivative jumps.
    kernel = kernels.default_kernel(2 * backbone(support)) if default_kernel else kernels.Matern32(1.5)

    def loss() -> Tensor:
        return make(kind, backbone(support), labels(support), kernel=kernel)(backbone(images)).square().sum()

    loss().backward()
    for tensor in (backbone.weight, backbone.bias, labels.weight):
        assert tensor.grad.isfinite().all()
    # One entry by central differences.
    for tensor in (backbone.weight, labels.weight):
        with torch.no_grad():
            around = []
            for step in (1e-6, -1e-6):
                tensor[0, 0] += step
                around.append(loss().item())
                tensor[0, 0] -= step
        expected = (around[0] - around[1]) / 2e-6
        assert tensor.grad[0, 0].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_can_be_differentiated_in_every_step_of_a_loop(kind):
    # A graph kept from one step to the next would raise in the second backward.
    layer = make(kind, kernel=kernels.Matern32(1.5, learn_lengthscale=True), learn_values=True)
    for _ in range(3):
        layer.zero_grad()
        layer(queries()).sum().backward()
        assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", ["centers", "lengthscale"])
def test_a_layer_with_a_graph_can_be_copied(kind, graph):
    scale = torch.tensor(1.5, requires_grad=True)
    centers = 2 * data()[0].requires_grad_() if graph == "centers" else None
    layer = make(kind, centers, kernel=kernels.Matern32(scale if graph == "lengthscale" else 1.5))
    assert same(kind, copy.deepcopy(layer)(queries()), layer(queries()))


@pytest.mark.parametrize(
    ("kind", "choices"), [("local", {}), ("local", {"fade": True}), *((kind, {}) for kind in CONTINUOUS)]
)
def test_more_neighbors_than_centers_are_all_of_them(kind, choices):
    layer = make(kind, **choices)
    layer.num_neighbors = 10**6
    expected = make(kind, **choices)
    expected.num_neighbors = NUM_CENTERS
    assert torch.equal(layer(queries()), expected(queries()))
    layer.append(*data(3, 5))  # and more are used
    assert layer.explain(queries()).indices.max() >= NUM_CENTERS
    assert layer.num_neighbors == 10**6
    assert predicts_as_rebuilt_with(layer)
    layer.remove(torch.arange(3, len(layer.centers)))  # and fewer
    assert layer.explain(queries()).indices.max() < 3
    assert predicts_as_rebuilt_with(layer)


def predicts_as_rebuilt_with(layer):
    """As a new layer of the same rows that asks for as many neighbors as there are."""
    expected = rebuilt(layer)
    expected.num_neighbors = layer.num_centers
    return torch.allclose(refitted(layer)(queries()), expected(queries()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows",
    [7, np.int64(7), [7], (7, 7), range(7, 8), np.array([7]), torch.arange(NUM_CENTERS) == 7, [i == 7 for i in range(60)]],
    ids=["int", "numpy int", "list", "tuple", "range", "array", "mask", "list of truths"],
)
def test_rows_to_remove_are_named_in_any_way(kind, rows):
    layer, expected = make(kind), make(kind)
    layer.remove(rows)
    expected.remove(torch.tensor([7]))
    assert layer.num_centers == NUM_CENTERS - 1
    assert torch.equal(layer.centers, expected.centers)
    assert torch.equal(layer(queries()), expected(queries()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["exponential", "gaussian", "matern32", "rational_quadratic"])
def test_a_name_is_that_kernel_on_standard_mean(kind, name):
    centers = data()[0]
    classes = {"rational_quadratic": kernels.RationalQuadratic, "matern32": kernels.Matern32, "gaussian": kernels.Gaussian}
    kernel = classes.get(name, kernels.Exponential)(input_transform=transforms.StandardMean().fit(centers))
    layer = make(kind, kernel=name)
    assert type(layer.kernel) is type(kernel)
    assert torch.equal(layer(queries()), make(kind, kernel=kernel)(queries()))
