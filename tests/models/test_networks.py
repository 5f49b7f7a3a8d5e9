"""Formulas of the paper, what is fixed and what is learned, features that are never stale, Q-networks."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

import torchkrr
from torchkrr import functional as F
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.kernels import Matern32
from torchkrr.models import KernelQNetwork, KernelReadout, QNetwork, typical_scales

NUM_INPUTS, NUM_OUTPUTS = 24, 3
KERNEL = {"kernel": Matern32(2.0), "ridge": 1e-4}
LAYERS = {
    "dense": (torchkrr.nn.KernelRidge, {}),
    "local": (torchkrr.nn.LocalKernelRidge, {"num_neighbors": 6}),
    "blended": (torchkrr.nn.BlendedKernelRidge, {"num_neighbors": 6, "num_blended": 2}),
    "hierarchical": (torchkrr.nn.HierarchicalKernelRidge, {"num_neighbors": 6, "num_coarse": 5}),
}


def network(dropout=0.0):
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(36, 5)]
    return nn.Sequential(*layers)


def pictures(count=NUM_INPUTS, seed=0):
    return torch.randn(count, 1, 5, 5, generator=torch.Generator().manual_seed(seed))


def targets(count=NUM_INPUTS):
    return torch.nn.functional.one_hot(torch.arange(count) % NUM_OUTPUTS, NUM_OUTPUTS).float()


def built(kind="local", propagated=True, **choices):
    layer, own = LAYERS[kind]
    make = KernelReadout.propagated if propagated else KernelReadout.parameterized
    backbone = choices.pop("backbone", None) or network()
    return make(backbone, pictures(), targets(), layer=layer, **{**own, **KERNEL, **choices})


def one_step(readout):
    """A step on a loss of other inputs; whether each part has moved."""
    parts = {
        "backbone": [*readout.backbone.parameters()],
        "centers": [readout.head.centers],
        "values": [readout.head.values],
    }
    before = {name: [tensor.detach().clone() for tensor in tensors] for name, tensors in parts.items()}
    parameters = [parameter for parameter in readout.parameters() if parameter.requires_grad]
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        readout(pictures(7, seed=1)).square().sum().backward()
        optimizer.step()
    return {
        name: any(not torch.equal(a, b) for a, b in zip(tensors, before[name], strict=True))
        for name, tensors in parts.items()
    }


def test_propagated_points_with_observed_values_are_the_formula_of_the_paper():
    readout = built("dense").eval()
    z, x = readout.backbone(pictures(7, seed=1)), readout.backbone(pictures())
    k = KERNEL["kernel"]
    expected = k(z, x) @ torch.linalg.solve(k(x, x) + 1e-4 * torch.eye(NUM_INPUTS), targets())
    torch.testing.assert_close(readout(pictures(7, seed=1)), expected, rtol=1e-4, atol=1e-4)


def test_free_centers_are_the_formula_of_the_paper():
    readout = built("dense", propagated=False)
    with torch.no_grad():
        readout.head.centers.add_(torch.randn_like(readout.head.centers))
        readout.head.values.add_(torch.randn_like(readout.head.values))
    readout.eval()
    z = readout.backbone(pictures(7, seed=1))
    expected = F.kernel_ridge(z, readout.head.centers, readout.head.values, **KERNEL)
    torch.testing.assert_close(readout(pictures(7, seed=1)), expected)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(("learn_backbone", "learn_values"), [*itertools.product((False, True), repeat=2)])
def test_propagated_points_learn_what_they_are_told_to(kind, learn_backbone, learn_values):
    readout = built(kind, learn_backbone=learn_backbone, learn_values=learn_values).train()
    moved = one_step(readout)
    assert (moved["backbone"], moved["values"]) == (learn_backbone, learn_values)


@pytest.mark.parametrize(("learn_backbone", "learn_centers", "learn_values"), [*itertools.product((False, True), repeat=3)])
def test_free_centers_learn_what_they_are_told_to(learn_backbone, learn_centers, learn_values):
    choices = {"learn_backbone": learn_backbone, "learn_centers": learn_centers, "learn_values": learn_values}
    moved = one_step(built(propagated=False, **choices).train())
    assert moved == {"backbone": learn_backbone, "centers": learn_centers, "values": learn_values}


def test_gradients_reach_the_backbone_through_the_support_too():
    readout = built("dense", backbone=nn.Sequential(nn.Flatten(), nn.Linear(25, 5))).double().train()
    x, query = pictures().double(), pictures(4, seed=1).double()
    weight = readout.backbone[1].weight
    (through,) = torch.autograd.grad(readout(query).square().sum(), weight)

    def loss(w):
        def features(inputs):
            return inputs.flatten(1) @ w.T + readout.backbone[1].bias

        return F.kernel_ridge(features(query), features(x), targets().double(), **KERNEL).square().sum()

    expected = torch.func.grad(loss)(weight.detach())
    torch.testing.assert_close(through, expected)
    query_only = torch.func.grad(
        lambda w: (
            F.kernel_ridge(
                query.flatten(1) @ w.T + readout.backbone[1].bias, readout.backbone(x).detach(), targets().double(), **KERNEL
            )
            .square()
            .sum()
        )
    )(weight.detach())
    assert not torch.allclose(through, query_only, rtol=0.1)


def test_kept_features_follow_every_change_of_the_backbone():
    readout, query = built().eval(), pictures(7, seed=1)

    def fresh():
        other = built(backbone=copy.deepcopy(readout.backbone)).eval()
        other.inputs = readout.inputs
        return other(query)

    before = readout(query)
    changes = [
        lambda: readout.backbone[5].weight.data.mul_(1.5),  # unseen by version counters
        lambda: readout.backbone[1].running_mean.add_(0.3),
        lambda: readout.inputs.neg_(),
        lambda: readout.backbone.__setitem__(2, nn.Sigmoid()),
        lambda: setattr(readout.backbone[1], "eps", 0.5),
        lambda: readout.head.centers.zero_(),
    ]
    for change in changes:
        with torch.no_grad():
            change()
        after = readout(query)
        torch.testing.assert_close(after, fresh())
        if change is not changes[-1]:
            assert not torch.allclose(after, before)
        before = after


def test_features_are_kept_in_eval_mode_and_for_a_fixed_backbone():
    calls = []
    readout = built(learn_backbone=True)
    readout.backbone.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    query = pictures(7, seed=1)
    readout.eval()
    for _ in range(3):
        readout(query)
    assert calls == [NUM_INPUTS, 7, 7, 7] or calls == [7, NUM_INPUTS, 7, 7]
    calls.clear()
    readout.train()
    readout(query)
    readout(query)
    assert sorted(calls) == [7, 7, NUM_INPUTS, NUM_INPUTS]
    fixed = built(learn_backbone=False).train()
    fixed(query)
    fixed.backbone.register_forward_hook(lambda *_: calls.append(0))
    calls.clear()
    fixed(query)
    assert len(calls) == 1


def test_a_fixed_backbone_stays_in_eval_mode():
    readout = built(backbone=network(dropout=0.5), learn_backbone=False).train()
    assert not any(module.training for module in readout.backbone.modules())
    assert readout.head.training
    query = pictures(7, seed=1)
    assert torch.equal(readout(query), readout(query))
    assert all(module.training for module in built(learn_backbone=True).train().modules())


def test_building_leaves_the_mode_of_the_backbone():
    backbone = network().train()
    backbone[1].eval()
    built(backbone=backbone)
    assert [backbone.training, backbone[0].training, backbone[1].training] == [True, True, False]


@pytest.mark.parametrize("propagated", [True, False])
def test_states_copies_and_pickles(propagated):
    readout, query = built(propagated=propagated).eval(), pictures(7, seed=1)
    expected = readout(query)
    for twin in (copy.deepcopy(readout), pickle.loads(pickle.dumps(readout))):
        assert torch.equal(twin(query), expected)
    torch.manual_seed(1)
    other = built(propagated=propagated).eval()
    assert not torch.allclose(other(query), expected)
    other.load_state_dict(readout.state_dict())
    torch.testing.assert_close(other(query), expected)


def test_a_state_with_more_inputs_loads():
    readout = built().eval()
    readout.append(pictures(3, seed=2), targets(3))
    other = built().eval()
    other.load_state_dict(readout.state_dict())
    assert other.inputs.shape == (NUM_INPUTS + 3, 1, 5, 5)
    torch.testing.assert_close(other(pictures(7, seed=1)), readout(pictures(7, seed=1)))


def test_append_and_remove_are_exact():
    query, more = pictures(7, seed=1), pictures(5, seed=2)
    readout = built().eval()
    before = readout(query)
    readout.append(more, targets(5))
    layer, own = LAYERS["local"]
    everything = (torch.cat((pictures(), more)), torch.cat((targets(), targets(5))))
    anew = KernelReadout.propagated(readout.backbone, *everything, layer=layer, **own, **KERNEL).eval()
    torch.testing.assert_close(readout(query), anew(query))
    readout.remove(torch.arange(NUM_INPUTS, NUM_INPUTS + 5))
    torch.testing.assert_close(readout(query), before)
    assert len(readout.inputs) == NUM_INPUTS
    free = built(propagated=False, learn_centers=False, learn_values=False).eval()
    free.append(more, targets(5))
    torch.testing.assert_close(free.head.centers[-5:], free.backbone(more))


def test_a_support_set_of_the_step():
    readout = built("dense").train()
    features = readout.forward_features(pictures(12, seed=3))
    out = readout.forward_head(features[:4], features[4:], targets(8))
    torch.testing.assert_close(out, F.kernel_ridge(features[:4], features[4:], targets(8), **KERNEL))
    out.sum().backward()
    assert readout.backbone[0].weight.grad is not None
    assert len(readout.head.centers) == NUM_INPUTS  # its own are back
    with pytest.raises(InputError, match="without their centers"):
        readout.forward_head(features, values=targets(8))


def test_explanations_and_the_indicator():
    readout, query = built().eval(), pictures(7, seed=1)
    explanation = readout.explain(query)
    again = (explanation.weights[..., None] * targets()[explanation.indices]).sum(1)
    torch.testing.assert_close(again, readout(query), rtol=1e-4, atol=1e-4)
    assert readout.power_function(query).shape == (7,)
    assert bool(readout.power_function(pictures()).max() < readout.power_function(query).min())
    with pytest.raises(InputError, match="KernelRidge has no explain"):
        built("dense").eval().explain(query)


def test_inference_mode_does_not_spoil_later_training():
    with torch.inference_mode():
        readout = built().eval()
        readout(pictures(7, seed=1))
        inputs = pictures()
    readout = KernelReadout.propagated(network(), inputs, targets(), num_neighbors=6, **KERNEL)
    readout.eval()
    with torch.inference_mode():
        readout(pictures(7, seed=1))
    readout.train()(pictures(7, seed=1)).sum().backward()
    assert all(parameter.grad.any() for parameter in readout.backbone.parameters())


def test_half_precision_from_autocast_meets_full_centers():
    readout, query = built().train(), pictures(7, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = readout(query)
    assert out.dtype == torch.float32
    out.sum().backward()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: KernelReadout(network(), nn.Linear(5, 3)), InputTypeError, "must be a layer of torchkrr.nn"),
        (lambda: KernelReadout(abs, built().head), InputTypeError, "backbone must be an nn.Module"),
        (
            lambda: KernelReadout(network(), built().head, inputs=pictures(5)),
            ShapeError,
            "one row for each row of the values",
        ),
        (
            lambda: KernelReadout(network(), built(propagated=False).head, inputs=pictures()),
            InputError,
            "learn_centers=False",
        ),
        (lambda: built(backbone=nn.Conv2d(1, 4, 3)), ShapeError, "Tapped"),
        (lambda: built().append(torch.randn(2, 1, 6, 6), targets(2)), ShapeError, r"\(1, 5, 5\) each"),
        (lambda: built(learn_values=True).append(pictures(2), targets(2)), InputError, "learned"),
    ],
)
def test_bad_input_is_an_error(make, error, words):
    with pytest.raises(error, match=words):
        make()


KERNEL_PARAMETERS = {f"{part}_kernel.{name}" for part in ("first", "last") for name in ("centers", "values")}


@pytest.fixture
def states():
    return torch.randn(200, 5) * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0]) + 3


def trained(network, states, steps=3):
    """A few steps towards anything, so that no parameter is where it started."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (network(states).square().sum() + network(states)[:, 0].sum()).backward()
        optimizer.step()
    return network


def test_layers_go_where_the_states_are(states, monkeypatch):
    moved, to = [], QNetwork.to
    monkeypatch.setattr(QNetwork, "to", lambda self, *target: moved.append(target) or to(self, *target))
    network = KernelQNetwork(states.double(), 3, hidden=16, num_centers=20)
    assert [target.device for (target,) in moved] == [states.device]
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float64}


def test_distances_of_many_states_are_those_of_a_sample(states, monkeypatch):
    # All pairs of so many would be five thousand million.
    many = states.repeat(500, 1)
    pairs, pdist = [], torch.pdist
    monkeypatch.setattr(torch, "pdist", lambda points: pairs.append(len(points)) or pdist(points))
    torch.testing.assert_close(typical_scales(many), typical_scales(states), rtol=0.02, atol=0)
    assert max(pairs) <= 4096


@pytest.mark.parametrize("last_on", ["state", "hidden"])
@pytest.mark.parametrize("parts", ["both", "first", "last"])
def test_starts_as_the_plain_network_with_the_same_layers(states, parts, last_on):
    torch.manual_seed(3)
    plain = QNetwork(5, 3, hidden=16)
    torch.manual_seed(3)
    network = KernelQNetwork(states, 3, hidden=16, num_centers=20, parts=parts, last_on=last_on)
    assert torch.equal(network(states), plain(states))
    layers = {name: tensor for name, tensor in network.state_dict().items() if "kernel" not in name}
    assert all(torch.equal(tensor, layers[name]) for name, tensor in plain.state_dict().items())


def test_is_the_formula_of_the_paper(states):
    network = trained(KernelQNetwork(states, 3, hidden=16, num_centers=20), states)
    hidden = torch.relu(network.first(states)) + network.first_kernel(states)
    expected = network.last(torch.relu(network.second(hidden))) + network.last_kernel(states)
    assert torch.equal(network(states), expected)
    assert float((network(states) - QNetwork.forward(network, states)).detach().abs().max()) > 0.01


def test_shapes_of_parameters_are_those_of_the_paper(states):
    network = KernelQNetwork(states, 3, hidden=16, num_centers=20)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters() if "kernel" in name}
    assert shapes == {
        "first_kernel.centers": (20, 5),
        "first_kernel.values": (20, 16),
        "last_kernel.centers": (20, 5),
        "last_kernel.values": (20, 3),
    }
    assert all(isinstance(part, torchkrr.nn.KernelRidge) for part in network.kernel_parts())


def test_gradients_reach_centers_values_and_all_layers(states):
    network = trained(KernelQNetwork(states, 3, hidden=16, num_centers=20), states)
    network(states).square().sum().backward()
    without = [name for name, p in network.named_parameters() if p.grad is None or float(p.grad.abs().max()) == 0]
    assert without == []
    assert set(dict(network.named_parameters())) >= KERNEL_PARAMETERS


@pytest.mark.parametrize("what", ["centers", "values", "lengthscale"])
def test_what_is_not_learned_is_no_parameter(states, what):
    learned = {"learn_centers": True, "learn_values": True, "learn_lengthscale": True, f"learn_{what}": False}
    names = dict(KernelQNetwork(states, 3, num_centers=20, **learned).named_parameters())
    assert not any(what in name for name in names)
    assert sum("kernel" in name for name in names) == 4


def test_state_dict_round_trip_and_copies(states):
    network = trained(KernelQNetwork(states, 3, hidden=16, num_centers=20), states)
    other = KernelQNetwork(states.flip(0), 3, hidden=16, num_centers=20)
    assert not torch.equal(other(states), network(states))
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(states), network(states))
    copied = copy.deepcopy(network)
    trained(copied, states)
    assert not torch.equal(copied(states), other(states))
    assert torch.equal(network(states), other(states))


def test_centers_are_different_states_and_farthest_ones_cover_more(states):
    sample, farthest = (
        KernelQNetwork(states, 3, num_centers=20, placing=placing).first_kernel.centers.detach()
        for placing in ("sample", "farthest")
    )
    scales = typical_scales(states)
    radii = []
    for centers in (sample, farthest):
        assert len(torch.unique(centers, dim=0)) == 20
        assert all(bool((states == center).all(1).any()) for center in centers)
        radii.append(float(torch.cdist(states / scales, centers / scales).min(1).values.max()))
    assert radii[1] < radii[0]


def test_scales_make_units_irrelevant(states):
    units = torch.tensor([3.0, 0.01, 100.0, 1.0, 7.0])
    torch.testing.assert_close(typical_scales(states * units), typical_scales(states) * units)
    scaled = states / typical_scales(states)
    torch.testing.assert_close(torch.pdist(scaled).mean(), torch.tensor(1.0))
    with_constant = torch.cat((states, torch.ones(len(states), 1)), dim=1)
    assert bool(torch.isfinite(typical_scales(with_constant)).all())


def test_any_leading_dimensions_and_float64(states):
    network = KernelQNetwork(states.double(), 3, num_centers=20)
    assert network(states.double().view(10, 4, 5, 5)).shape == (10, 4, 5, 3)
    assert network(states[0].double()).shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_centers": 201}, InputError, "num_centers must lie between 1 and"),
        ({"parts": "middle"}, InputError, "parts must be one of"),
        ({"last_on": "action"}, InputError, "last_on must be one of"),
        ({"placing": "random"}, InputError, "placing must be one of"),
        ({"states": torch.randn(5)}, ShapeError, "states must have shape"),
        ({"states": torch.full((100, 5), torch.nan)}, InputError, "states must be finite"),
        ({"num_actions": 0}, InputError, "num_actions must be at least 1"),
    ],
)
def test_bad_arguments_of_a_q_network(states, arguments, error, message):
    with pytest.raises(error, match=message):
        KernelQNetwork(**{"states": states, "num_actions": 3, **arguments})
