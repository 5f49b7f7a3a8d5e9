"""Closed forms of leave-one-out, their slopes, and what is learned by them."""

import io
import math

import pytest
import torch

from torchkrr import functional
from torchkrr._progress import Progress
from torchkrr.estimators.members import DenseSolved, Member
from torchkrr.estimators.rows import Centers
from torchkrr.estimators.scales import Problem, Scales, learn_scales, loss_slope, try_around
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
    found = loss_slope(given, at[:3], at[3], counted)
    slope = torch.cat((found.logs, found.log_ridge[None]))
    for k in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[k] = 1e-6
        up, down = (loss_slope(given, (at + s)[:3], (at + s)[3], counted).loss for s in (step, -step))
        assert abs(float(slope[k]) - (up - down) / 2e-6) < 1e-7


def test_predictions_left_out_are_those_of_the_dense_function():
    given = problem(Matern32())._replace(weights=torch.ones(30, dtype=torch.float64))
    path = try_around(given, Scales(torch.zeros(3, dtype=torch.float64), 1.0), (1.0,), (0.1,))
    expected = functional.leave_one_out(given.embedded, given.values, kernel=Matern32(), ridge=0.1, trend="constant")
    torch.testing.assert_close(path.left_out, expected)
    assert path.loss == pytest.approx(float((expected - given.values).square().sum(1).mean()))


def test_weights_divide_the_ridge_of_a_row():
    given = problem(Gaussian())
    path = try_around(given, Scales(torch.zeros(3, dtype=torch.float64), 1.0), (1.0,), (0.1,))
    expected = functional.leave_one_out(
        given.embedded, given.values, kernel=Gaussian(), ridge=0.1 / given.weights, trend="constant"
    )
    torch.testing.assert_close(path.left_out, expected)


def test_solved_members_agree_with_the_dense_functions():
    given = problem(Matern52())
    rows = torch.arange(30)
    centers = Centers(given.embedded, given.values, given.weights, rows, 0 * given.values, 0 * given.weights)
    solved = DenseSolved(Member(Matern52(2.0), 0.05, None, 1.0), centers)
    query = torch.randn(7, 6, dtype=torch.float64)
    choices = {"kernel": Matern52(2.0), "ridge": 0.05 / given.weights, "trend": "constant"}
    found = solved.find(query)
    torch.testing.assert_close(found.mean, functional.kernel_ridge(query, given.embedded, given.values, **choices))
    torch.testing.assert_close(found.mean, solved.predict(query))
    power = functional.power_function(query, given.embedded, **choices)
    torch.testing.assert_close(found.variance, power.square() + 0.05)
    torch.testing.assert_close(solved.weights(query)[1], functional.cardinal_weights(query, given.embedded, **choices))
    left_out = functional.leave_one_out(given.embedded, given.values, **choices)
    torch.testing.assert_close(solved.left_out(rows).mean, left_out)


@pytest.mark.parametrize("near", [False, True])
def test_features_that_matter_get_short_lengthscales(near):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(700, 3, generator=generator, dtype=torch.float64)
    values = torch.sin(8 * points[:, 1:2])
    given = Problem(points, torch.arange(3), values, torch.ones(700, dtype=torch.float64), Matern32())
    start = Scales(torch.zeros(3, dtype=torch.float64), 1e-2)
    with Progress("learning", 60, shown=False, stream=io.StringIO()) as bar:
        found = learn_scales(given, start, steps=60, generator=generator, bar=bar, near=near)
    assert found.logs[1] < found.logs[0] - 1
    assert found.logs[1] < found.logs[2] - 1
    assert bar.done == 60
