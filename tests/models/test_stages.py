"""Stages and head are the network they were cut from, in both modes, with gradients; a cut that cannot be is an error."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

from torchkrr._extras import import_extra, import_torchvision
from torchkrr.errors import InputError, InputTypeError
from torchkrr.models import cut_stages, pool


def unset(make, **choices):
    """A network of torchvision whose weights take memory, but no time yet."""
    with torch.device("meta"):
        return make(weights=None, **choices)


def scrambled(network):
    """Random weights under which every layer matters: usual heads start at zero, usual biases drown the rest."""
    network.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                parameter.uniform_(-1, 1).mul_((6 / parameter[0].numel()) ** 0.5)
            else:
                parameter.fill_(name.endswith("weight"))
    return network.eval()


def outputs_of_the_same(network, x):
    """The outputs of five stages, which with the head are the network."""
    staged = cut_stages(network)
    assert len(staged) == 5
    with torch.inference_mode():
        expected, outputs = network(x), staged.outputs(x)
        assert (expected[0] - expected[1]).abs().max() > 0.01  # it does look at its input
        assert (staged.head(outputs[-1]) - expected).abs().max() <= 1e-5
    assert {id(parameter) for parameter in staged.parameters()} == {id(parameter) for parameter in network.parameters()}
    return staged, outputs


def test_vgg19_is_its_five_stages_and_its_head():
    network = unset(import_torchvision("torchvision.models").vgg19, init_weights=False)
    for place, (before, after) in {0: (512 * 49, 32), 3: (32, 32), 6: (32, 10)}.items():  # 4096 take seconds
        network.classifier[place] = nn.Linear(before, after, device="meta")
    staged, outputs = outputs_of_the_same(scrambled(network), torch.randn(2, 3, 32, 32))
    assert staged.layers == ("features.4", "features.9", "features.18", "features.27", "features.36")
    shapes = [tuple(maps.shape[1:]) for maps in outputs]
    assert shapes == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2), (512, 1, 1)]


def test_vit_b_16_is_its_five_stages_and_its_head():
    network = unset(import_torchvision("torchvision.models").vit_b_16, image_size=32, num_classes=10)
    staged, outputs = outputs_of_the_same(scrambled(network), torch.randn(2, 3, 32, 32))
    layers = [sum(isinstance(part, nn.MultiheadAttention) for part in stage.modules()) for stage in staged.stages]
    assert layers == [3, 3, 2, 2, 2]
    assert [tuple(tokens.shape) for tokens in outputs] == [(2, 5, 768)] * 5
    torch.testing.assert_close(outputs[-1].std(-1), torch.ones(2, 5), atol=0.01, rtol=0)  # the last norm is in the last


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("tf_efficientnet_lite0", [32, 16, 8, 4, 2]), ("resnet18", [16, 16, 8, 4, 2]), ("vit_tiny_patch16_224", None)],
)
def test_networks_of_timm(name, sizes):
    choices = {"img_size": 64} if sizes is None else {}
    network = import_extra("timm", "This test", extra="vision").create_model(name, num_classes=7, **choices).eval()
    _, outputs = outputs_of_the_same(network, torch.randn(2, 3, 64, 64) * torch.tensor([1.0, 9.0]).view(2, 1, 1, 1))
    assert sizes is None or [maps.shape[-1] for maps in outputs] == sizes


def small():
    blocks = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 2))


@pytest.fixture
def x():
    return torch.randn(5, 3, 4, 4)


def test_training_through_the_stages_is_training_the_network(x):
    network = small()
    twin = copy.deepcopy(network)
    staged = cut_stages(twin, ["0", "1.1", "3"])
    for model in (network, staged):
        torch.manual_seed(3)
        model(x).square().sum().backward()
    for (name, expected), found in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=name)
    assert torch.equal(network[1][1].running_mean, twin[1][1].running_mean)  # batch norm counted along
    for model in (network, staged):
        model.eval()
    torch.testing.assert_close(staged(x), network(x))
    assert not twin[3].training  # the mode reached the network's own layers


def test_outputs_are_those_before_the_next_stage_overwrote_them(x):
    network = small().eval()
    staged = cut_stages(network, ["0.1", "1", "3"])
    expected = network[0][1](network[0][0](x))
    assert (expected < 0).any()  # the ReLU after it works in place
    assert torch.equal(staged.outputs(x)[0], expected)
    assert torch.equal(staged(x), network(x))


def test_top_stages_are_discarded(x):
    network = small().eval()
    staged = cut_stages(network, ["0", "1", "3"])
    for discarded in range(3):
        assert torch.equal(staged.without(discarded)(x), staged.outputs(x)[2 - discarded])
    assert pool(staged.without(2)(x)).shape == (5, 3)
    with pytest.raises(InputError, match=r"num_discarded must lie between 0 and the number of stages less one \(2\), got 3"):
        staged.without(3)


def test_a_sequence_that_is_cut_inside_ends_with_its_last_layer(x):
    network = nn.Sequential(small(), nn.Tanh()).eval()
    staged = cut_stages(network, ["0.0.1", "0"])
    assert torch.equal(staged.outputs(x)[1], network[0](x))
    assert torch.equal(staged(x), network(x))


def test_a_network_that_ends_with_the_last_stage_has_an_empty_head(x):
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    staged = cut_stages(network, ["0", "1"])
    assert torch.equal(staged(x), network(x))
    assert not list(staged.head.parameters())


def test_cutting_leaves_the_modes_of_layers_as_they_were():
    network = small()
    network[1].eval()
    before = [module.training for module in network.modules()]
    cut_stages(network, ["0", "1"])
    assert [module.training for module in network.modules()] == before


def test_stages_are_copied_and_stored(x):
    staged = cut_stages(small().eval(), ["0", "1.1"])
    for twin in (copy.deepcopy(staged), pickle.loads(pickle.dumps(staged))):
        assert torch.equal(twin(x), staged(x))
    other = cut_stages(small().eval(), ["0", "1.1"])
    other.load_state_dict(staged.state_dict())
    assert torch.equal(other(x), staged(x))


class Odd(nn.Module):
    """All that a cut cannot do."""

    def __init__(self, way=""):
        super().__init__()
        self.first, self.second, self.third, self.unused = (nn.Linear(4, 4) for _ in range(4))
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.way = way

    def forward(self, x):
        y = self.first(x * self.scale)
        if self.way == "skip":
            return self.third(self.second(y) + y)
        if self.way == "twice":
            y = self.second(y)
        if self.way == "values" and y.sum() > 0:
            return self.third(y)
        if self.way == "mode":
            y = dropout(y, training=self.training)
        return self.third(self.second(y)) * self.scale


def test_a_parameter_may_be_used_on_both_sides():
    network, x = Odd(), torch.randn(3, 4)
    staged = cut_stages(network, ["first", "second"])
    assert torch.equal(staged(x), network(x))
    staged(x).sum().backward()
    assert network.scale.grad is not None


@pytest.mark.parametrize(
    ("way", "layers", "words"),
    [
        ("", None, "Where to cut Odd is not known here. Give layers="),
        ("", ["fist"], "no layer 'fist'. Did you mean 'first'"),
        ("", ["second", "first"], "'first' is not called after 'second'"),
        ("", ["first", "first"], "'first' is not called after 'first'"),
        ("", ["unused"], "'unused' is not called"),
        ("", [""], "name layers inside it"),
        ("", [], "Give layers="),
        ("skip", ["second"], "cannot be cut behind 'second'.*skip connection"),
        ("twice", ["second"], "'second' is called several times"),
        ("values", ["first"], "cannot be followed without an input"),
        ("mode", ["first"], "something else in training mode"),
    ],
)
def test_a_cut_that_cannot_be_is_an_error_that_helps(way, layers, words):
    with pytest.raises(InputError, match=words):
        cut_stages(Odd(way), layers)


def test_wrong_types():
    with pytest.raises(InputTypeError, match="must be an"):
        cut_stages("vgg19")
    with pytest.raises(InputTypeError, match="sequence of names"):
        cut_stages(Odd(), "first")
