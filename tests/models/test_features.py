"""Features by layer name and pooling: right values, no hooks left behind, errors that help."""

import copy
import pickle

import pytest
import torch
from torch import nn

from torchkrr._extras import import_extra, import_torchvision
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.models import Depths, Tapped, cut_stages, features_at, pool, tap


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
    torchvision = import_torchvision("torchvision.models")
    timm = import_extra("timm", "This test", extra="vision")
    x = torch.randn(1, 3, 32, 32)
    resnet = torchvision.resnet18().eval()
    maps = resnet.layer1(resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(x)))))
    torch.testing.assert_close(features_at(resnet, "layer1", x), maps)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0).eval()
    tokens = features_at(vit, "norm", x)
    torch.testing.assert_close(tokens, vit.forward_features(x))
    torch.testing.assert_close(features_at(vit, "norm", x, pooling="class_token"), vit(x))


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
def pictures():
    return torch.randn(2, 3, 5, 5)


@pytest.mark.parametrize("pooling", ["mean", "max", "flatten"])
def test_vectors_are_the_pooled_outputs_of_the_stages(network, pictures, pooling):
    layers = ["conv", "relu", "second"]
    found = Depths(network, layers, pooling).vectors(pictures)
    expected = [pool(output, pooling) for output in cut_stages(network, layers).outputs(pictures)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    maps = network.conv(pictures)
    assert (maps < 0).any()  # the ReLU after it works in place
    torch.testing.assert_close(found[0], pool(maps, pooling))


def test_the_pass_ends_at_the_last_layer_and_hooks_are_gone(network, pictures):
    depths = Depths(network, ["conv", "second"])
    assert depths(pictures).shape == (2, 10)
    assert depths.shapes(pictures) == [(4, 5, 5), (6, 5, 5)]
    assert network.heads == 0
    network(pictures)
    assert network.heads == 1
    assert not network.conv._forward_hooks


def test_tokens_before_those_of_places_are_left_out_and_maps_have_none(pictures):
    network = nn.Sequential(nn.Flatten(2), nn.Linear(25, 7), nn.Unflatten(2, (7, 1)))
    found = Depths(network, ["1", "2"], num_prefix_tokens=1).vectors(pictures)
    tokens = network[1](pictures.flatten(2))
    torch.testing.assert_close(found[0], tokens[:, 1:].mean(1))
    torch.testing.assert_close(found[1], tokens.mean(2))
    with pytest.raises(ShapeError, match="class token"):
        Depths(network, ["1", "2"], "class_token").vectors(pictures)


def test_gradients_reach_the_network(network, pictures):
    layers, weight = ["conv", "second"], network.conv.weight
    (found,) = torch.autograd.grad(Depths(network, layers)(pictures).square().sum(), weight)
    vectors = [pool(output, "mean") for output in cut_stages(network, layers).outputs(pictures)]
    (expected,) = torch.autograd.grad(torch.cat(vectors, 1).square().sum(), weight)
    assert expected.abs().min() > 0
    torch.testing.assert_close(found, expected)


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
def test_layers_that_cannot_be_read_are_errors_that_help(network, pictures, layers, words):
    with pytest.raises(InputError, match=words):
        Depths(network, layers)(pictures)
    assert not network.conv._forward_hooks


def test_wrong_types_and_choices(network):
    with pytest.raises(InputTypeError, match="sequence of names"):
        Depths(network, "conv")
    with pytest.raises(InputError, match="pooling"):
        Depths(network, ["conv"], None)


MAPS, TOKENS = torch.randn(3, 5, 4, 6), torch.randn(3, 7, 5)


@pytest.mark.parametrize(
    ("features", "how", "choices", "expected"),
    [
        (MAPS, "mean", {}, MAPS.mean((2, 3))),
        (MAPS, "max", {}, MAPS.flatten(2).max(2).values),
        (MAPS, "mean", {"channels_last": True}, MAPS.mean((1, 2))),
        (MAPS, "flatten", {}, MAPS.reshape(3, -1)),
        (TOKENS, "mean", {}, TOKENS.mean(1)),
        (TOKENS, "mean", {"num_prefix_tokens": 2}, TOKENS[:, 2:].mean(1)),
        (TOKENS, "max", {"num_prefix_tokens": 1}, TOKENS[:, 1:].max(1).values),
        (TOKENS, "class_token", {"num_prefix_tokens": 2}, TOKENS[:, 0]),
        (TOKENS, None, {}, TOKENS),
        (TOKENS[:, 0], "max", {}, TOKENS[:, 0]),
    ],
)
def test_each_way_is_its_definition(features, how, choices, expected):
    torch.testing.assert_close(pool(features, how, **choices), expected, rtol=0, atol=1e-6)


def test_a_projection_keeps_distances():
    vectors = torch.randn(40, 20_000)
    projected = pool(vectors, "flatten", most=2000)
    ratio = torch.nn.functional.pdist(projected) / torch.nn.functional.pdist(vectors)
    assert projected.shape == (40, 2000)
    assert float((ratio - 1).abs().max()) < 0.1
    assert abs(float(ratio.mean()) - 1) < 0.01


def test_a_projection_is_linear_and_fixed_by_its_seed():
    a, b = torch.randn(2, 2, 3, 10, 10, dtype=torch.float64)
    first = pool(a, "flatten", most=50) + 2 * pool(b, "flatten", most=50)
    torch.testing.assert_close(pool(a + 2 * b, "flatten", most=50), first)
    assert torch.equal(pool(a, "flatten", most=50), pool(a, "flatten", most=50))
    assert not torch.equal(pool(a, "flatten", most=50), pool(a, "flatten", most=50, seed=1))


def test_a_projection_does_not_depend_on_the_batch():
    vectors = torch.randn(8, 900)
    assert torch.equal(pool(vectors, "flatten", most=64)[3:5], pool(vectors[3:5], "flatten", most=64))


def test_gradients_reach_projected_features():
    features = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool(x, "flatten", most=7), (features,))


def test_half_precision_stays_and_is_summed_in_full():
    vectors = torch.randn(2, 900)
    half = pool(vectors.half(), "flatten", most=64)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), pool(vectors.half().float(), "flatten", most=64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("features", "how", "choices", "error", "words"),
    [
        (MAPS, "median", {}, InputError, "how must be one of 'mean'"),
        (MAPS, "class_token", {}, ShapeError, "gives maps"),
        (TOKENS, "mean", {"num_prefix_tokens": 7}, InputError, "there are 7 tokens"),
        (torch.randn(2, 3, 4, 5, 6), "mean", {}, ShapeError, r"got a tensor of shape \(2, 3, 4, 5, 6\)"),
        (MAPS.long(), "mean", {}, InputError, "floating dtype"),
    ],
)
def test_what_cannot_be_pooled_is_an_error(features, how, choices, error, words):
    with pytest.raises(error, match=words):
        pool(features, how, **choices)
