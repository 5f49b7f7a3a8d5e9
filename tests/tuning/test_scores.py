"""Losses of leave-one-out against loops and torch's own."""

import pytest
import torch
from torch.nn import functional as torch_functional

from torchkrr.errors import InputError
from torchkrr.tuning.scores import check_loss, score


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(11, 4, 3, generator=generator, dtype=torch.float64)
    variances = torch.rand(11, 4, generator=generator, dtype=torch.float64) + 0.1
    labels = torch.randint(0, 3, (11,), generator=generator)
    return means, variances, torch_functional.one_hot(labels, 3).double(), labels


def test_mse_and_huber_against_torch(case):
    means, variances, targets, _ = case
    wide = targets[:, None].expand_as(means)
    torch.testing.assert_close(score("mse", means, variances, targets), (means - wide).square().mean(-1))
    expected = torch_functional.huber_loss(means, wide, reduction="none", delta=0.3).mean(-1)
    torch.testing.assert_close(score("huber", means, variances, targets, delta=0.3), expected)


def test_log_score_is_the_gaussian_likelihood_at_its_best_scale(case):
    means, variances, targets, _ = case
    found = score("log_score", means, variances, targets)
    for column in range(4):
        total = torch.zeros(11, dtype=torch.float64)
        for output in range(3):
            residual = means[:, column, output] - targets[:, output]
            scale = (residual.square() / variances[:, column]).mean().sqrt()

            def likelihood(scale, column=column, residual=residual):
                normal = torch.distributions.Normal(0.0, scale * variances[:, column].sqrt())
                return -normal.log_prob(residual)

            assert likelihood(scale).mean() < min(likelihood(0.97 * scale).mean(), likelihood(1.03 * scale).mean())
            total += likelihood(scale) / 3
        torch.testing.assert_close(found[:, column], total)


def test_cross_entropy_against_torch_at_every_temperature(case):
    means, variances, targets, labels = case
    temperature = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)
    found = score("cross_entropy", means, variances, targets, temperature=temperature)
    for column, t in enumerate(temperature):
        expected = torch_functional.cross_entropy(means[:, column] / t, labels, reduction="none")
        torch.testing.assert_close(found[:, column], expected)


def test_what_cross_entropy_needs():
    check_loss("cross_entropy", torch.eye(3))
    with pytest.raises(InputError, match="one column of values per class, got 1"):
        check_loss("cross_entropy", torch.ones(5, 1))
    with pytest.raises(InputError, match="class probabilities"):
        check_loss("cross_entropy", torch.randn(5, 2))
    with pytest.raises(InputError, match=r"loss must be one of 'mse'.*got 'mae'"):
        check_loss("mae", torch.randn(5, 2))
