"""The hierarchical layer: a coarse part that is kept while rows come and go, and what it leaves over."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from tests.nn.layers import NUM_NEIGHBORS, Layer, data, make, predicts_as_rebuilt, queries, rebuilt
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, neighbors, tuning
from torchkrr.errors import InputTypeError


def hierarchical(**choices: object) -> Layer:
    centers, values = (tensor.double() for tensor in data())
    return make("hierarchical", centers, values, **choices)


def from_its_parts(layer: Layer, query: Tensor) -> Tensor:
    """The coarse part the layer has, and a new local layer on what it leaves of the rows there are."""
    rest = layer.values - layer.coarse_part(layer.centers)
    local = make("local", layer.centers, rest, kernel=layer.kernel, ridge=layer.ridge, fade=True)
    return layer.coarse_part(query) + local(query)


@pytest.mark.parametrize("coarse", ["least_squares", "interpolate"])
@pytest.mark.parametrize("known", ["predicted", "loaded"])
def test_append_and_remove_keep_the_coarse_part_with_exact_residuals(coarse, known):
    layer, query = hierarchical(coarse=coarse), queries().double()
    layer(query)
    if known == "loaded":  # then residuals are not there yet
        layer.load_state_dict(copy.deepcopy(layer.state_dict()))
    before = layer.coarse_part(query)
    table = layer.coarse_table
    layer.append(*(tensor.double() for tensor in data(4, 15)))
    for _ in range(2):
        assert layer.coarse_table is table or known == "loaded"
        assert torch.equal(layer.coarse_part(query), before)
        torch.testing.assert_close(layer(query), from_its_parts(layer, query), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(layer(query.clone().requires_grad_()), layer(query), rtol=1e-12, atol=1e-12)
        assert not predicts_as_rebuilt(layer)
        layer.remove(F.farthest_points(layer.centers, 10)[:5])  # coarse points too
    layer.refit()
    assert predicts_as_rebuilt(layer)


def test_what_was_appended_is_interpolated_without_a_refit():
    layer = hierarchical(ridge=1e-12)
    centers, values = (tensor.double() for tensor in data(4, 15))
    layer(queries().double())
    layer.append(centers, values)
    torch.testing.assert_close(layer(centers), values, rtol=1e-8, atol=1e-8)


def through_state_dict(layer: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = hierarchical(kernel=kernels.Matern32(0.2))
    other(queries().double())
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "state_dict": through_state_dict,
    "to": lambda layer: copy.deepcopy(layer).to("cpu"),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("grown", [False, True])
def test_copies_and_checkpoints_carry_the_coarse_part(way, grown):
    layer, query = hierarchical(), queries().double()
    layer(query)
    if grown:
        layer.append(*(tensor.double() for tensor in data(4, 15)))
    other = COPIES[way](layer)
    assert torch.equal(other(query), layer(query))
    assert predicts_as_rebuilt(other) != grown
    other.refit()
    assert predicts_as_rebuilt(other)


@pytest.mark.parametrize("way", ["pickle", "state_dict"])
def test_a_coarse_part_that_no_longer_fits_is_not_carried(way):
    layer, query = hierarchical(), queries().double()
    layer(query)
    with torch.no_grad():
        layer.values.mul_(-3)
    assert torch.equal(COPIES[way](layer)(query), rebuilt(layer)(query))


def test_checkpoints_without_a_coarse_part_load():
    layer, query = hierarchical(), queries().double()
    layer(query)
    layer.load_state_dict(make("local", *data(2)).state_dict())
    assert predicts_as_rebuilt(layer)


def test_in_another_dtype_the_coarse_part_is_not_rounded():
    layer = make("hierarchical")
    layer(queries())
    layer.append(*data(4, 15))
    expected = copy.deepcopy(layer).double()(queries().double())
    layer.half().float()
    assert layer.coarse_table.dtype == torch.float64
    torch.testing.assert_close(layer(queries()).double(), expected, rtol=0.02, atol=0.02)  # centers and values are


@pytest.mark.parametrize("trend", [None, "constant"])
def test_with_few_centers_it_is_dense_and_every_method_says_so(trend):
    layer, query = hierarchical(num_coarse=60, ridge=0.1, trend=trend), queries(2, 3).double()
    dense = make("dense", layer.centers, layer.values, ridge=0.1, trend=trend)
    torch.testing.assert_close(layer(query), dense(query))
    torch.testing.assert_close(layer.coarse_part(query), dense(query))
    torch.testing.assert_close(layer.power_function(query), dense.power_function(query))
    indices, weights = layer.explain(query)
    torch.testing.assert_close((weights.unsqueeze(-1) * layer.values[indices]).sum(-2), dense(query))
    layer.append(*(tensor.double() for tensor in data(4, 1)))
    assert layer.explain(query).indices.shape == (2, 3, NUM_NEIGHBORS + 1)
    assert predicts_as_rebuilt(layer, query)


def test_copies_of_a_point_are_one_coarse_point():
    centers, values = (tensor.double() for tensor in data(0, 20))
    layer = make("hierarchical", centers.repeat(3, 1), values.repeat(3, 1), num_coarse=50, ridge=1e-2)
    layer(queries().double())
    assert len(layer.coarse_centers) == 20
    assert len(torch.unique(layer.coarse_centers, dim=0)) == 20


def test_while_values_are_learned_gradients_are_those_of_the_fit():
    centers, values = (tensor.double() for tensor in data())
    layer = make("hierarchical", centers, values, learn_values=True)
    query = queries().double()
    jacobian = torch.autograd.functional.jacobian(
        lambda values: torch.func.functional_call(layer, {"values": values}, (query,)).sum(0), values
    )
    # The layer is linear in the values, and its outputs do not mix.
    total = torch.stack([(jacobian[i, :, i] * values[:, i]).sum() for i in range(2)])
    torch.testing.assert_close(total, rebuilt(layer)(query).detach().sum(0))


def test_neighbors_of_any_index_serve():
    layer = hierarchical(index=neighbors.StreamedIndex())
    torch.testing.assert_close(layer(queries().double()), hierarchical()(queries().double()))


def test_intervals_are_refused():
    with pytest.raises(InputTypeError, match="got HierarchicalKernelRidge"):
        tuning.calibrate(make("hierarchical"))
