"""Buffers, parameters, checkpoints, shapes and copies of layers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import (
    KINDS,
    LEARNED,
    NUM_CENTERS,
    NUM_FEATURES,
    NUM_NEIGHBORS,
    NUM_OUTPUTS,
    Layer,
    data,
    make,
    predicts_as_rebuilt,
    queries,
    run_python,
    same,
    tolerance,
)

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn, transforms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED, ids=str)
def test_learned_tensors_are_parameters_and_fixed_ones_buffers_under_the_same_names(kind, learned):
    layer = make(kind, **learned)
    expected = {name for name in ("centers", "values") if learned[f"learn_{name}"]}
    assert {name for name, _ in layer.named_parameters()} == expected
    buffers = {name for name, _ in layer.named_buffers()}
    names = {"centers", "values", "kernel.log_lengthscale"}
    names |= {"coarse_centers", "coarse_table"} if kind == "hierarchical" else set()
    assert buffers == names - expected
    assert set(layer.state_dict()) == names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", LEARNED, ids=str)
@pytest.mark.parametrize("target", LEARNED, ids=str)
def test_a_checkpoint_loads_whatever_is_learned_on_either_side(kind, source, target):
    saved = make(kind, *data(1), **source)
    layer = make(kind, kernel=kernels.Matern32(0.5), **target)
    layer(queries())
    layer.load_state_dict(saved.state_dict())
    assert same(kind, layer(queries()), saved(queries()))
    assert {name for name, _ in layer.named_parameters()} == {n for n in ("centers", "values") if target[f"learn_{n}"]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [NUM_NEIGHBORS, 20, 200])
@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_with_another_number_of_centers_loads_into_buffers(kind, count, assign):
    saved, layer = make(kind, *data(1, count)), make(kind)
    layer(queries())
    layer.load_state_dict(saved.state_dict(), assign=assign)
    assert layer.num_centers == count
    assert torch.equal(layer(queries()), saved(queries()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", LEARNED[1:], ids=str)
def test_a_checkpoint_with_another_number_of_centers_does_not_load_into_parameters(kind, learned):
    # An optimizer may hold them: torch's own strict rule stands.
    with pytest.raises(RuntimeError, match=r"size mismatch for (centers|values)"):
        make(kind, **learned).load_state_dict(make(kind, *data(1, 20)).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_carries_the_fitted_kernel(kind):
    saved = make(kind, *data(1), kernel=None)
    layer = make(kind, *data(2, 30), kernel=kernels.Exponential(input_transform=transforms.StandardMean()))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(layer(queries()), saved(queries()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_kernel_is_fitted_once_on_the_centers_given(kind):
    centers, values = data()
    layer = make(kind, centers, values, kernel=None)
    state = copy.deepcopy(layer.kernel.state_dict())
    layer.append(*data(3, 20))
    layer.load_state_dict({**layer.state_dict(), "centers": 5 * layer.centers})
    layer(queries())
    expected = kernels.default_kernel(centers).state_dict()
    for name, tensor in layer.kernel.state_dict().items():
        assert torch.equal(tensor, state[name])
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("kind", KINDS)
def test_learned_tensors_are_copies_of_those_given(kind):
    centers, values = data()
    layer = make(kind, centers, values, learn_centers=True, learn_values=True)
    with torch.no_grad():
        layer.centers.zero_()
        layer.values.zero_()
    assert torch.equal(centers, data()[0])
    assert torch.equal(values, data()[1])


@pytest.mark.parametrize("kind", KINDS)
def test_loading_a_checkpoint_leaves_the_tensors_given_alone(kind):
    centers, values = data()
    layer, twin = make(kind, centers, values), make(kind, centers, values)
    before = twin(queries())
    layer.load_state_dict(make(kind, *data(1)).state_dict())
    assert torch.equal(twin(queries()), before)
    assert torch.equal(centers, data()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_ridge_is_a_parameter_of_the_layer(kind):
    ridge = torch.nn.Parameter(torch.tensor(1e-2))
    layer = make(kind, ridge=ridge)
    assert "ridge" in dict(layer.named_parameters())
    layer(queries()).sum().backward()
    assert ridge.grad.abs() > 0


def test_the_layers_show_themselves():
    assert repr(make("dense", trend="constant")).splitlines() == [
        "KernelRidge(",
        "  in_features=3, out_features=2, num_centers=60, ridge=0.0001, trend='constant'",
        "  (kernel): Matern32(lengthscale=1.5)",
        ")",
    ]
    layer = make("local", fade=True, learn_values=True, kernel=kernels.Matern32(1.5, learn_lengthscale=True))
    assert repr(layer).splitlines() == [
        "LocalKernelRidge(",
        "  in_features=3, out_features=2, num_centers=60, num_neighbors=8, fade=True, ridge=0.0001, learned=['values']",
        "  (kernel): Matern32(lengthscale=1.5, learned)",
        ")",
    ]
    shown = "in_features=3, out_features=2, num_centers=60, num_neighbors=8, "
    assert make("blended").extra_repr() == shown + "num_blended=3, ridge=0.0001"
    assert make("blended", num_anchors=9).extra_repr() == shown + "num_blended=3, num_anchors=9, ridge=0.0001"
    assert make("hierarchical").extra_repr() == shown + "num_coarse=10, coarse='least_squares', ridge=0.0001"
    layer = make("dense", ridge=torch.tensor(0.25))
    layer.append(*data(1, 5))
    assert layer.extra_repr() == "in_features=3, out_features=2, num_centers=65, ridge=0.25"


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_with_a_learned_ridge_shows_itself(kind):
    # torch gives this warning once in a process unless told otherwise.
    torch.set_warn_always(True)
    try:
        assert "ridge=0.25" in repr(make(kind, ridge=torch.nn.Parameter(torch.tensor(0.25))))
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("trend", [None, "constant"])
def test_leading_dimensions_are_those_of_the_query(kind, shape, trend):
    layer = make(kind, trend=trend)
    query = queries(*shape) if shape else queries()[0]
    rows = query.reshape(-1, NUM_FEATURES)
    prediction, power = layer(query), layer.power_function(query)
    assert prediction.shape == (*shape, NUM_OUTPUTS)
    assert power.shape == shape
    torch.testing.assert_close(prediction.reshape(-1, NUM_OUTPUTS), layer(rows))
    torch.testing.assert_close(power.reshape(-1), layer.power_function(rows))
    if kind == "dense":
        assert layer.cardinal_weights(query).shape == (*shape, NUM_CENTERS)
    else:
        indices, weights = layer.explain(query)
        assert indices.shape == weights.shape
        assert indices.shape[:-1] == shape
    if kind == "local":
        assert layer.neighbors(query).shape == (*shape, NUM_NEIGHBORS)
        assert weights.shape == (*shape, NUM_NEIGHBORS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_its_function(kind):
    centers, values = data()
    layer = make(kind, trend="constant")
    choices = {"kernel": layer.kernel, "ridge": 1e-4, "trend": "constant"}
    if kind == "dense":
        expected = F.kernel_ridge(queries(), centers, values, **choices)
        torch.testing.assert_close(layer.leave_one_out(), F.leave_one_out(centers, values, **choices))
        power = F.power_function(queries(), centers, **choices)
    elif kind == "blended":
        own = neighbors.nearest(centers, centers, NUM_NEIGHBORS, kernel=layer.kernel)
        indices = torch.arange(NUM_CENTERS), own, neighbors.nearest(queries(), centers, 4, kernel=layer.kernel)
        expected = F.blended_kernel_ridge(queries(), centers, values, *indices, **choices)
        power = F.blended_power_function(queries(), centers, *indices, **choices)
    elif kind == "hierarchical":
        coarse = F.farthest_points(centers, 10, distance=layer.kernel)
        near = neighbors.nearest(queries(), centers, NUM_NEIGHBORS + 1, kernel=layer.kernel)
        expected = F.hierarchical_kernel_ridge(queries(), centers, values, coarse, near, **choices)
        power = F.local_power_function(queries(), centers, near, **choices, fade=True)
    else:
        indices = neighbors.nearest(queries(), centers, NUM_NEIGHBORS, kernel=layer.kernel)
        expected = F.local_kernel_ridge(queries(), centers, values, indices, **choices)
        power = F.local_power_function(queries(), centers, indices, **choices)
        assert torch.equal(layer.neighbors(queries()), indices)
    torch.testing.assert_close(layer(queries()), expected, **tolerance(kind))
    torch.testing.assert_close(layer.power_function(queries()), power)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize(
    ("kind", "choices"), [("local", {}), ("local", {"fade": True}), ("blended", {}), ("hierarchical", {})], ids=str
)
@pytest.mark.parametrize("shape", [(9,), (2, 3)], ids=str)
def test_explanation_adds_up_to_the_prediction(kind, choices, trend, shape):
    layer = make(kind, trend=trend, **choices)
    query = queries(*shape)
    indices, weights = layer.explain(query)
    is_hierarchical = isinstance(layer, nn.HierarchicalKernelRidge)
    values = layer.values - layer.coarse_part(layer.centers) if is_hierarchical else layer.values
    total = (weights.unsqueeze(-1) * values[indices]).sum(-2) + (layer.coarse_part(query) if is_hierarchical else 0)
    torch.testing.assert_close(total, layer(query), **(tolerance(kind) or {"rtol": 1e-4, "atol": 1e-5}))
    if trend:
        torch.testing.assert_close(weights.sum(-1), torch.ones(shape))


@pytest.mark.parametrize("trend", [None, "constant"])
def test_with_every_center_a_neighbor_fading_does_nothing_and_local_is_dense(trend):
    centers, values = data(count=NUM_NEIGHBORS)
    plain, faded = (make("local", centers, values, fade=fade, trend=trend) for fade in (False, True))
    assert torch.equal(plain(queries()), faded(queries()))
    torch.testing.assert_close(
        plain(queries()), make("dense", centers, values, trend=trend)(queries()), rtol=1e-4, atol=1e-5
    )


def through_pickle(layer: Layer) -> Layer:
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer: Layer) -> Layer:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": through_pickle, "torch.save": through_torch_save}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("learned", [LEARNED[0], LEARNED[3]], ids=str)
@pytest.mark.parametrize("used_before", [False, True])
def test_a_copy_predicts_the_same_and_is_independent(kind, way, learned, used_before):
    layer = make(kind, kernel=None, **learned)
    if used_before:
        layer(queries())
    other = COPIES[way](layer)
    before = layer(queries())
    assert torch.equal(other(queries()), before)
    with torch.no_grad():
        other.centers.mul_(2)
        other.values.add_(1)
    assert predicts_as_rebuilt(other)
    assert not torch.equal(other(queries()), before)
    assert torch.equal(layer(queries()), before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dense"])
def test_a_copy_does_not_carry_the_centers_twice(kind):
    layer = make(kind, *data(count=2000))
    size = len(pickle.dumps(layer))
    layer(queries())
    assert len(pickle.dumps(layer)) < 1.01 * size


def test_a_pickle_opens_in_another_process(tmp_path):
    layers = [make(kind, kernel=None, learn_values=True) for kind in KINDS]
    expected = torch.stack([layer(queries()).detach() for layer in layers])
    torch.save({"layers": pickle.dumps(layers), "query": queries()}, tmp_path / "in")
    program = """
        import pickle, sys, torch
        saved = torch.load(sys.argv[1] + "/in", weights_only=True)
        found = [layer(saved["query"]).detach() for layer in pickle.loads(saved["layers"])]
        torch.save(torch.stack(found), sys.argv[1] + "/out")
    """
    run_python(program, str(tmp_path))
    torch.testing.assert_close(torch.load(tmp_path / "out", weights_only=True), expected, rtol=1e-5, atol=1e-6)
