"""The temperature of scores, against a loop over the grid."""

import math

import torch
from torch.nn import functional as torch_functional

from torchkrr.core.temperature import TEMPERATURES, best_temperature


def test_the_temperature_is_the_best_of_the_grid():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(11, 4, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (11,), generator=generator)
    targets = torch_functional.one_hot(labels, 3).double()
    chosen = best_temperature(means, targets[:, None])
    for column in range(4):
        losses = [float(torch_functional.cross_entropy(means[:, column] / t, labels)) for t in TEMPERATURES]
        good = [t for t, loss in zip(TEMPERATURES.tolist(), losses, strict=True) if loss <= min(losses) + 1 / 11]
        assert math.isclose(float(chosen[column]), max(good), rel_tol=1e-12)


def test_rows_without_an_error_do_not_make_it_sure():
    """Ten rows, all right by a margin of 0.9: at the smallest temperatures the loss is zero, and says nothing."""
    labels = torch.arange(10) % 2
    targets = torch_functional.one_hot(labels).double()
    chosen = best_temperature((0.05 + 0.9 * targets)[:, None], targets[:, None])
    wrong = 1 - torch.softmax((0.05 + 0.9 * targets) / chosen, -1)[torch.arange(10), labels]
    assert 0.05 < float(wrong.mean()) < 0.1
