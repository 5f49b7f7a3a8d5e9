"""Pooling to vectors: each way against its definition, and the random projection against what it promises."""

import pytest
import torch

from torchkrr.errors import InputError, ShapeError
from torchkrr.models import pool

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
