"""Networks cut at a depth."""

import pytest
import torch
from paper.learning.config import Config
from paper.learning.networks import cut_network, vgg_small, vit_small

from torchkrr.errors import InputError


@pytest.mark.parametrize(("network", "parameters"), [("vgg-small", 388_896), ("vit-small", 180_864)])
def test_a_cut_network_is_the_beginning_of_the_whole_one(network, parameters):
    whole = cut_network(Config(network=network))
    assert whole.parameters == parameters
    x = torch.randn(2, 3, 32, 32)
    for discard in range(1, 5):
        cut = cut_network(Config(network=network, discard=discard))
        between = whole.backbone[0][: 5 - discard](x)
        vectors = between.mean((2, 3)) if between.ndim == 4 else between.mean(1)
        torch.testing.assert_close(cut.backbone(x), vectors, rtol=1e-4, atol=1e-5)
        assert cut.num_features == vectors.shape[1]
        assert cut.parameters < parameters
    other = cut_network(Config(network=network, seed=1))
    assert not torch.equal(other.backbone(x), whole.backbone(x))


def test_small_networks_have_five_stages():
    assert len(vgg_small()) == len(vit_small()) == 5


def test_any_network_with_stages_can_be_cut():
    cut = cut_network(Config(network="resnet18", size=32, discard=2, seed=1))
    assert cut.num_features == 128
    assert cut.backbone(torch.randn(2, 3, 32, 32)).shape == (2, 128)
    again, other = (cut_network(Config(network="resnet18", size=32, discard=2, seed=seed)) for seed in (1, 2))
    first, same, different = (next(one.backbone.parameters()) for one in (cut, again, other))
    assert torch.equal(first, same)
    assert not torch.equal(first, different)


def test_wrong_networks_are_refused():
    with pytest.raises(InputError, match="takes pictures of 32 px, got size=64"):
        cut_network(Config(size=64))
    with pytest.raises(InputError, match="vit-small has no class token to pool by"):
        cut_network(Config(network="vit-small", pooling="class_token"))
    with pytest.raises(InputError, match="vgg11 cannot take pictures of 16 px"):
        cut_network(Config(network="vgg11", size=16))
    with pytest.raises(InputError, match="There are no weights for vit-small"):
        cut_network(Config(network="vit-small", weights="pretrained"))
    with pytest.raises(InputError, match="There is no backbone 'vgg-tiny'"):
        cut_network(Config(network="vgg-tiny"))
