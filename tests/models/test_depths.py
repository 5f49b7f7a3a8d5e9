"""Vectors of several layers from one pass: those of the stages, right after an overwrite, errors that help."""

import pytest
import torch
from torch import nn

from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.models import Depths, cut_stages, pool


class Counted(nn.Module):
    """Counts its calls; its first ReLU works in place, and one layer is called twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(4, 6, 3, padding=1)
        self.twice, self.unused = nn.Tanh(), nn.Linear(2, 2)
        self.head, self.heads = nn.Flatten(), 0
        self.head.register_forward_hook(self._count)

    def _count(self, *_):
        self.heads += 1

    def forward(self, x):
        return self.head(self.twice(self.twice(self.second(self.relu(self.conv(x))))))


@pytest.fixture
def network():
    return Counted().eval()


@pytest.fixture
def x():
    return torch.randn(2, 3, 5, 5)


@pytest.mark.parametrize("pooling", ["mean", "max", "flatten"])
def test_vectors_are_the_pooled_outputs_of_the_stages(network, x, pooling):
    layers = ["conv", "relu", "second"]
    found = Depths(network, layers, pooling).vectors(x)
    expected = [pool(output, pooling) for output in cut_stages(network, layers).outputs(x)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    maps = network.conv(x)
    assert (maps < 0).any()  # the ReLU after it works in place
    torch.testing.assert_close(found[0], pool(maps, pooling))


def test_the_pass_ends_at_the_last_layer_and_hooks_are_gone(network, x):
    depths = Depths(network, ["conv", "second"])
    assert depths(x).shape == (2, 10)
    assert depths.shapes(x) == [(4, 5, 5), (6, 5, 5)]
    assert network.heads == 0
    network(x)
    assert network.heads == 1
    assert not network.conv._forward_hooks


def test_tokens_before_those_of_places_are_left_out_and_maps_have_none(x):
    network = nn.Sequential(nn.Flatten(2), nn.Linear(25, 7), nn.Unflatten(2, (7, 1)))
    found = Depths(network, ["1", "2"], num_prefix_tokens=1).vectors(x)
    tokens = network[1](x.flatten(2))
    torch.testing.assert_close(found[0], tokens[:, 1:].mean(1))
    torch.testing.assert_close(found[1], tokens.mean(2))
    with pytest.raises(ShapeError, match="class token"):
        Depths(network, ["1", "2"], "class_token").vectors(x)


def test_gradients_reach_the_network(network, x):
    Depths(network, ["conv", "second"])(x).sum().backward()
    assert network.conv.weight.grad is not None


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (["con"], "Did you mean 'conv'"),
        (["second", "conv"], "'second' is not called where it was named, before 'conv'"),
        (["relu", "conv", "second"], "'relu' is not called where it was named"),
        (["unused", "second"], "'unused' is not called where it was named"),
        (["conv", "unused"], "'unused' was not called"),
        (["twice", "head"], "'twice' is called several times"),
        (["conv", "conv"], "all different"),
        ([], "at least one name"),
    ],
)
def test_layers_that_cannot_be_read_are_errors_that_help(network, x, layers, words):
    with pytest.raises(InputError, match=words):
        Depths(network, layers)(x)
    assert not network.conv._forward_hooks


def test_wrong_types_and_choices(network):
    with pytest.raises(InputTypeError, match="sequence of names"):
        Depths(network, "conv")
    with pytest.raises(InputError, match="pooling"):
        Depths(network, ["conv"], None)
