"""Networks for action values: the kernel one starts as the plain one, and every part of it can learn."""

import copy

import pytest
import torch

from torchkrr import nn
from torchkrr.errors import InputError, ShapeError
from torchkrr.models import KernelQNetwork, QNetwork
from torchkrr.models.q_network import typical_scales

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
    assert all(isinstance(part, nn.KernelRidge) for part in network.kernel_parts())


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
def test_bad_arguments(states, arguments, error, message):
    with pytest.raises(error, match=message):
        KernelQNetwork(**{"states": states, "num_actions": 3, **arguments})
