"""Features by layer name: right values, no hooks left behind, errors that help."""

import copy
import pickle

import pytest
import torch
from torch import nn

from torchkrr.errors import InputError, InputTypeError
from torchkrr.experiments._torchvision import torchvision_module
from torchkrr.experiments.extras import needed
from torchkrr.models import Tapped, features_at, tap


class Shared(nn.Module):
    """Calls one layer twice, has one that it never calls, and one that gives a tuple."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.unused = nn.Linear(2, 2)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.counted = 0

    def forward(self, x):
        maps = self.relu(self.conv(x))
        maps = self.relu(maps - 1)
        self.counted += 1
        tokens = maps.flatten(2).transpose(1, 2)
        return self.attention(tokens, tokens, tokens)


def num_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def model():
    return Shared()


@pytest.fixture
def x():
    return torch.randn(2, 3, 6, 6)


def test_taps_give_what_the_layers_gave_before_it_was_overwritten(model, x):
    expected = model.conv(x).detach()
    with tap(model, "conv", "relu") as features:
        model(x)
    assert torch.equal(features["conv"], expected)  # the ReLU after it works in place
    assert torch.equal(features["relu"], (expected.relu() - 1).relu())  # the last call
    assert num_hooks(model) == 0


def test_a_tap_follows_each_pass_and_keeps_the_graph(model, x):
    with tap(model, "conv") as features:
        model(x)
        first = features["conv"]
        model(x + 1)
    assert not torch.equal(features["conv"], first)
    first.sum().backward()
    assert model.conv.weight.grad is not None


def test_of_a_tuple_the_first_tensor_counts(model, x):
    assert torch.equal(features_at(model, "attention", x), model(x)[0])


def test_several_layers_come_as_a_dictionary_pooled(model, x):
    found = features_at(model, ["conv", "attention"], x, pooling="mean")
    assert {name: tuple(features.shape) for name, features in found.items()} == {"conv": (2, 4), "attention": (2, 4)}
    torch.testing.assert_close(found["conv"], model.conv(x).mean((2, 3)))


def test_maps_with_channels_last_are_pooled_over_places():
    x = torch.randn(2, 5, 6, 3)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    found = features_at(network, "0", x, pooling="mean", channels_last=True)
    torch.testing.assert_close(found, network[0](x).mean((1, 2)))
    torch.testing.assert_close(found, Tapped(network, "0", channels_last=True)(x))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_are_gone_after_an_error(model, x, error):
    def fails():
        with tap(model, "conv"):
            model(x)
            raise error

    with pytest.raises(error):
        fails()
    with pytest.raises(RuntimeError):
        features_at(model, "conv", torch.randn(2, 5, 6, 6))
    with pytest.raises(RuntimeError):
        Tapped(model, "conv")(torch.randn(2, 5, 6, 6))
    assert num_hooks(model) == 0


@pytest.mark.parametrize(
    ("layer", "error", "words"),
    [
        ("con", InputError, "Did you mean 'conv'"),
        ("nothing_like_it", InputError, "Its layers: conv, relu, unused, attention"),
        ("unused", InputError, "'unused' was not called"),
        ("relu", InputError, "'relu' is called several times"),
    ],
)
def test_a_wrong_layer_is_an_error_that_helps(model, x, layer, error, words):
    with pytest.raises(error, match=words):
        features_at(model, layer, x)
    assert num_hooks(model) == 0


def test_a_layer_that_gives_no_tensor_is_an_error():
    class Dictionary(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(InputTypeError, match="gives dict"):
        features_at(nn.Sequential(Dictionary()), "0", torch.zeros(1))


def test_a_tapped_network_stops_at_its_layer(model, x):
    tapped = Tapped(model, "conv")
    torch.testing.assert_close(tapped(x), model.conv(x).mean((2, 3)))
    assert model.counted == 0
    assert num_hooks(model) == 0
    with pytest.raises(InputError, match="was not called"):
        Tapped(model, "unused")(x)


def test_a_tapped_network_trains_copies_and_pickles(model, x):
    tapped = Tapped(model, "conv", "max")
    tapped(x).sum().backward()
    assert model.conv.weight.grad is not None
    for twin in (copy.deepcopy(tapped), pickle.loads(pickle.dumps(tapped))):
        assert torch.equal(twin(x), tapped(x))
    other = Tapped(Shared(), "conv", "max")
    other.load_state_dict(tapped.state_dict())
    assert torch.equal(other(x), tapped(x))


def test_one_tapped_network_inside_another(x):
    inner = Tapped(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), "0", None)
    outer = Tapped(nn.Sequential(inner, nn.ReLU(), nn.Flatten()), "1", None)
    assert torch.equal(outer(x), inner.network[0](x).relu())


def test_networks_of_timm_and_torchvision():
    torchvision = torchvision_module("torchvision.models")
    timm = needed("timm", "This test")
    x = torch.randn(1, 3, 32, 32)
    resnet = torchvision.resnet18().eval()
    maps = resnet.layer1(resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(x)))))
    torch.testing.assert_close(features_at(resnet, "layer1", x), maps)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0).eval()
    tokens = features_at(vit, "norm", x)
    torch.testing.assert_close(tokens, vit.forward_features(x))
    torch.testing.assert_close(features_at(vit, "norm", x, pooling="class_token"), vit(x))
