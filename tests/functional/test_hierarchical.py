"""Hierarchical regression: against a plain loop, its derivatives, and what its cells promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import reference
from tests.problems import PROBLEMS, Problem, finite_expansion, random_points
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors


def indices(query: Tensor, centers: Tensor, coarse: Tensor, num_neighbors: int) -> dict[str, Tensor]:
    query, centers = query.detach(), centers.detach()
    columns = min(2, len(coarse))
    in_cells = neighbors.nearest(centers, centers[coarse], columns)
    by_distance = neighbors.nearest(centers[coarse], centers, len(centers))
    rows = []
    for cell, row in enumerate(by_distance):
        own = in_cells[row, 0] == cell
        rows.append(torch.cat((row[own], row[~own]))[:num_neighbors])
    return {
        "coarse_indices": coarse,
        "cell_members": torch.stack(rows),
        "query_cells": neighbors.nearest(query, centers[coarse], columns),
        "center_cells": in_cells,
    }


def wanted_weights(problem: Problem, coarse: Tensor, num_neighbors: int, trend: str | None) -> np.ndarray:
    query, centers = problem.query.numpy(), problem.centers.numpy()
    return reference.hierarchical_weights(
        query, centers, coarse.numpy(), num_neighbors, profile=reference.matern32, ridge=1e-3, trend=trend
    )


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("num_coarse", [1, 2, 7, 99])
@pytest.mark.parametrize("num_neighbors", [3, 12])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in ("conflicting duplicates", "one center")])
def test_is_the_formula(name, num_neighbors, num_coarse, trend):
    problem = PROBLEMS[name]()
    coarse = F.farthest_points(problem.centers, min(num_coarse, len(problem.centers)))
    named = indices(problem.query, problem.centers, coarse, num_neighbors)
    choices = {"kernel": kernels.Matern32(), "ridge": 1e-3, "trend": trend}
    mean = F.hierarchical_kernel_ridge(problem.query, problem.centers, problem.values, **named, **choices)
    weights = wanted_weights(problem, coarse, num_neighbors, trend)
    torch.testing.assert_close(mean, torch.from_numpy(weights) @ problem.values, rtol=1e-7, atol=1e-7)
    power = F.hierarchical_power_function(problem.query, problem.centers, **named, **choices)
    cells = zip(problem.query.numpy(), weights, strict=True)
    expected = [
        reference.cell_power(z, problem.centers.numpy(), w, profile=reference.matern32, ridge=1e-3) for z, w in cells
    ]
    torch.testing.assert_close(power, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("num_coarse", [1, 3])
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", [kernels.Exponential, kernels.Matern52])
def test_derivatives(kernel, trend, num_coarse, check):
    problem = random_points(0, num_queries=3, num_centers=9, num_features=2)
    kernel = kernel(1.3, learn_lengthscale=True).double()
    query, centers, values = (t.requires_grad_() for t in (problem.query, problem.centers, problem.values))
    ridge = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    named = indices(query, centers, F.farthest_points(centers, num_coarse), 9)

    def predict(query, centers, values, ridge, *parameters):
        return F.hierarchical_kernel_ridge(query, centers, values, **named, kernel=kernel, ridge=ridge, trend=trend)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


def test_derivatives_see_bumps_below_one():
    # Or the check above would say nothing of the border.
    problem = random_points(0, num_queries=3, num_centers=9, num_features=2)
    coarse = F.farthest_points(problem.centers, 3).numpy()
    ratios = np.array([reference.border_ratio(x, problem.centers.numpy()[coarse]) for x in problem.centers.numpy()])
    at_query = np.array([reference.border_ratio(z, problem.centers.numpy()[coarse]) for z in problem.query.numpy()])
    assert (ratios < np.quantile(ratios, 0.1)).any()
    assert (at_query < np.quantile(ratios, 0.1)).any()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_of_the_power_function(check):
    problem = random_points(0, num_queries=3, num_centers=9, num_features=2)
    query, centers = problem.query.requires_grad_(), problem.centers.requires_grad_()
    ridge = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    named = indices(query, centers, F.farthest_points(centers, 3), 4)

    def power(query, centers, ridge):
        return F.hierarchical_power_function(query, centers, **named, kernel=kernels.Matern32(1.3), ridge=ridge)

    assert check(power, (query, centers, ridge))


def test_bound_holds_for_functions_of_known_norm():
    problem = finite_expansion(5, num_queries=40)
    named = indices(problem.query, problem.centers, F.farthest_points(problem.centers, 5), 10)
    choices = {"kernel": kernels.Exponential(), "ridge": 1e-10}
    mean = F.hierarchical_kernel_ridge(problem.query, problem.centers, problem.values, **named, **choices)
    power = F.hierarchical_power_function(problem.query, problem.centers, **named, **choices)
    error = (mean - problem.answer).abs()
    assert (error <= power[:, None] * problem.norm + 1e-9).all()
    assert (error > 0.05 * power[:, None] * problem.norm).any()  # or anything would pass


def test_on_a_grid_ties_do_not_make_the_border_vanish():
    # More than a tenth of the centers are as far from one coarse point as from another.
    axis = torch.arange(5, dtype=torch.float64)
    centers = torch.cartesian_prod(axis, axis)
    coarse = torch.tensor([0, 4, 20, 24])
    border = torch.tensor([[2.0, 0.5], [2.0, 0.5 + 1e-9]], dtype=torch.float64)
    query = torch.cat((border - torch.tensor([1e-7, 0.0]), border + torch.tensor([1e-7, 0.0])))
    values = torch.randn(25, 1, dtype=torch.float64)
    named = indices(query, centers, coarse, 9)
    result = F.hierarchical_kernel_ridge(query, centers, values, **named, kernel=kernels.Exponential(2.0))
    assert (result - result[0]).abs().max() < 1e-5


def test_a_ridge_for_each_center():
    problem = random_points(6)
    named = indices(problem.query, problem.centers, F.farthest_points(problem.centers, 5), 8)
    arguments = (problem.query, problem.centers, problem.values)
    alike = torch.full((40,), 1e-2, dtype=torch.float64)
    for ridge in (alike, alike * torch.linspace(0.1, 9, 40, dtype=torch.float64)):
        found = F.hierarchical_kernel_ridge(*arguments, **named, kernel=kernels.Exponential(), ridge=ridge)
        same = F.hierarchical_kernel_ridge(*arguments, **named, kernel=kernels.Exponential(), ridge=1e-2)
        assert torch.allclose(found, same, rtol=1e-9) == (ridge is alike)


def test_under_autocast_queries_in_half_meet_centers_in_float32():
    centers, values, query = torch.rand(30, 2), torch.rand(30, 1), torch.rand(4, 2).bfloat16()
    named = indices(query.float(), centers, F.farthest_points(centers, 4), 8)
    with torch.autocast("cpu", torch.bfloat16):
        mean = F.hierarchical_kernel_ridge(query, centers, values, **named, kernel=kernels.Matern32())
        power = F.hierarchical_power_function(query, centers, **named, kernel=kernels.Matern32())
    assert torch.equal(mean, F.hierarchical_kernel_ridge(query.float(), centers, values, **named, kernel=kernels.Matern32()))
    assert torch.equal(power, F.hierarchical_power_function(query.float(), centers, **named, kernel=kernels.Matern32()))
