"""Closed forms of leave-one-out, their slopes, and what is learned by them."""

import math

import pytest
import torch

from torchkrr import functional
from torchkrr.estimators.lengthscales import Problem, learn_lengthscales, loss_slope, near_patches, random_patch, try_around
from torchkrr.kernels import Exponential, Gaussian, Matern32, Matern52

GROUPS = torch.tensor([0, 0, 1, 2, 2, 2])


def problem(kernel, count=30):
    generator = torch.Generator().manual_seed(0)
    points, values = (torch.randn(count, k, generator=generator, dtype=torch.float64) for k in (6, 2))
    return Problem(points, GROUPS, values, 0.5 + torch.rand(count, generator=generator, dtype=torch.float64), kernel)


@pytest.mark.parametrize("kernel", [Exponential(), Matern32(), Matern52(), Gaussian()], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("counted", [None, 12])
def test_slope_is_that_of_finite_differences(kernel, counted):
    given = problem(kernel)
    at = torch.tensor([0.3, 0.5, 0.9, math.log(0.1)], dtype=torch.float64)
    _, slope = loss_slope(given, at[:3], at[3], counted)
    for k in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[k] = 1e-6
        up, down = (loss_slope(given, (at + s)[:3], (at + s)[3], counted)[0] for s in (step, -step))
        assert abs(float(slope[k]) - (up - down) / 2e-6) < 1e-7


def test_predictions_left_out_are_those_of_the_dense_function():
    given = problem(Matern32())._replace(weights=torch.ones(30, dtype=torch.float64))
    fit = try_around(given, torch.zeros(3, dtype=torch.float64), (1.0,), (0.1,))
    expected = functional.leave_one_out(given.embedded, given.values, kernel=Matern32(), ridge=0.1, trend="constant")
    torch.testing.assert_close(fit.left_out, expected)
    assert fit.loss == pytest.approx(float((expected - given.values).square().sum(1).mean()))


def test_weights_divide_the_ridge_of_a_row():
    given = problem(Gaussian())
    fit = try_around(given, torch.zeros(3, dtype=torch.float64), (1.0,), (0.1,))
    expected = functional.leave_one_out(
        given.embedded, given.values, kernel=Gaussian(), ridge=0.1 / given.weights, trend="constant"
    )
    torch.testing.assert_close(fit.left_out, expected)


@pytest.mark.parametrize("counted", [None, 150])
def test_features_that_matter_get_short_lengthscales(counted):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(700, 3, generator=generator, dtype=torch.float64)
    values = torch.sin(8 * points[:, 1:2])
    given = Problem(points, torch.arange(3), values, torch.ones(700, dtype=torch.float64), Matern32())
    start = torch.zeros(3, dtype=torch.float64)
    patches = [random_patch(given, 400, generator)] if counted is None else near_patches(given, start, generator)
    logs, _ = learn_lengthscales(patches, start, 1e-2, evaluations=25, counted=counted)
    assert logs[1] < logs[0] - 1
    assert logs[1] < logs[2] - 1
