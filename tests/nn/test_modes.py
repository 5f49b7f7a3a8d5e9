"""Layers in other dtypes, under autocast and in inference mode."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import KINDS, LEARNED, NUM_FEATURES, Layer, data, make, predicts_as_rebuilt, queries, rebuilt, same
from torch.autograd import forward_ad

from torchkrr import kernels, transforms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", [LEARNED[0], LEARNED[3]], ids=str)
def test_in_float64_a_layer_is_one_built_there(kind, learned):
    layer = make(kind, **learned)
    layer(queries())
    layer.to(torch.float64)
    centers, values = data()
    expected = make(kind, centers.double(), values.double())(queries().double())
    assert layer(queries().double()).dtype == torch.float64
    torch.testing.assert_close(layer(queries().double()), expected, rtol=1e-12, atol=1e-12)
    assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_a_layer_solves_in_float32(kind, dtype):
    layer = make(kind, kernel=kernels.Matern32(1.0), ridge=1e-2).to(dtype)
    rounded = make(kind, layer.centers.float(), layer.values.float(), kernel=kernels.Matern32(1.0), ridge=1e-2)
    query = queries().to(dtype)
    prediction = layer(query)
    assert prediction.dtype == dtype
    # Nothing but the result is rounded: it is the float32 result of the same numbers.
    assert torch.equal(prediction, rounded(query.float()).to(dtype))
    assert layer.power_function(query).dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_features_in_half_meet_centers_in_float32(kind):
    layer = make(kind, learn_centers=True, learn_values=True)
    backbone = torch.nn.Linear(5, NUM_FEATURES)
    images = torch.randn(9, 5)
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(images)
        prediction = layer(features)
    assert features.dtype == torch.bfloat16
    assert prediction.dtype == torch.float32
    assert torch.equal(prediction, layer(features.float()))
    prediction.square().sum().backward()
    for tensor in (backbone.weight, layer.centers, layer.values):
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("verb", ["neighbors", "append"])
def test_autocast_leaves_nothing_imprecise_behind(verb):
    transform = transforms.Linear(torch.randn(NUM_FEATURES, NUM_FEATURES))
    used, unused = (make("local", kernel=kernels.Matern32(1.5, input_transform=transform)) for _ in range(2))
    for layer, enabled in ((used, True), (unused, False)):
        if verb == "append":
            layer(queries())
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            layer.neighbors(queries()) if verb == "neighbors" else layer.append(*data(4, 5))
    assert torch.equal(used(queries()), unused(queries()))
    # Matrix products of few rows and of all round differently.
    torch.testing.assert_close(used(queries()), rebuilt(used)(queries()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED, ids=str)
def test_training_after_inference_mode(kind, learned):
    layer = make(kind, **learned)
    with torch.inference_mode():
        before = layer(queries())
    query = queries().requires_grad_()
    prediction = layer(query)
    assert same(kind, prediction.detach(), before)
    prediction.sum().backward()
    assert query.grad.isfinite().all()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def built_there(kind: str) -> Layer:
    with torch.inference_mode():
        return make(kind, *(tensor.clone() for tensor in data()))


def fitted_there(kind: str) -> Layer:
    # In float64 the statistics are used as they are, not as a copy in another dtype.
    with torch.inference_mode():
        return make(kind, *(tensor.double() for tensor in data()), kernel=None)


def grown_there(kind: str) -> Layer:
    layer = make(kind)
    with torch.inference_mode():
        layer.append(*data(1, 5))
    return layer


def shrunk_there(kind: str) -> Layer:
    layer = make(kind)
    with torch.inference_mode():
        layer.remove(torch.tensor([0, 7]))
    return layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [built_there, fitted_there, grown_there, shrunk_there])
def test_gradients_of_the_query_after_a_change_in_inference_mode(kind, change, request):
    layer = change(kind)
    query = queries().to(layer.centers.dtype).requires_grad_()
    layer(query).sum().backward()
    assert query.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on entering forward mode
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["kernel.log_lengthscale", "centers", "values"])
def test_forward_mode_has_the_derivatives_of_backward(kind, name):
    layer, query = make(kind, *(tensor.double() for tensor in data())), queries().double()
    layer(query)  # what is kept knows nothing of tangents
    at = dict(layer.named_buffers())[name].clone()
    direction = torch.cos(torch.arange(at.numel(), dtype=torch.float64)).view_as(at)

    def predict(tensor):
        return torch.func.functional_call(layer, {name: tensor}, (query,))

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(predict(forward_ad.make_dual(at, direction))).tangent
    _, expected = torch.autograd.functional.jvp(predict, at, direction)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_features_extracted_in_inference_mode_are_embedded_once():
    layer = built_there("local")
    layer(queries())
    points = layer.index.points
    layer(queries())
    assert layer.index.points is points
