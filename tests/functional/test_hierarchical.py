"""Hierarchical regression: against a plain loop and other libraries, its derivatives, and what it promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from tests import reference
from tests.problems import PROBLEMS, random_points
from tests.properties import trust_hooks
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.core.options import SolveOptions
from torchkrr.errors import InputError
from torchkrr.functional.hierarchical import COARSE_RIDGES, fit_coarse

COARSE = tuple(COARSE_RIDGES)


def coarse_part(query: Tensor, centers: Tensor, values: Tensor, rows: Tensor, coarse: str, ridge: float, trend=None):
    part = fit_coarse(centers, values, rows, SolveOptions(kernels.Matern32(), trend=trend), coarse, ridge)
    return part.predict(query, kernels.Matern32())


def nearest(query: Tensor, centers: Tensor, count: int) -> Tensor:
    return neighbors.nearest(query.detach(), centers.detach(), count)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("num_coarse", [1, 2, 7])
@pytest.mark.parametrize("num_neighbors", [3, 12])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in ("conflicting duplicates", "one center")])
def test_is_the_formula(name, num_neighbors, num_coarse, coarse, trend):
    problem = PROBLEMS[name]()
    query, centers, values = problem.query, problem.centers, problem.values
    rows = F.farthest_points(centers, num_coarse)
    choices = {"ridge": 1e-3, "trend": trend}
    found = F.hierarchical_kernel_ridge(
        query,
        centers,
        values,
        rows,
        problem.neighbors(num_neighbors + 1),
        kernel=kernels.Matern32(),
        coarse=coarse,
        coarse_ridge=0.01,
        **choices,
    )
    own = {"fit": coarse, "coarse_ridge": 0.01}
    arrays = (tensor.numpy() for tensor in (query, centers, values, rows))
    expected = reference.hierarchical_kernel_ridge(*arrays, num_neighbors, profile=reference.matern32, **own, **choices)
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-8, atol=1e-8)


def test_interpolating_coarse_points_are_scikit_learn_on_them():
    problem = random_points(2)
    rows = F.farthest_points(problem.centers, 9)
    own, query = problem.centers[rows].numpy(), problem.query.numpy()

    def gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return reference.matern32(reference.distances(a, b))

    oracle = KernelRidge(kernel="precomputed", alpha=0.03).fit(gram(own, own), problem.values[rows].numpy())
    found = coarse_part(problem.query, problem.centers, problem.values, rows, "interpolate", 0.03)
    torch.testing.assert_close(found, torch.from_numpy(oracle.predict(gram(query, own))))


@pytest.mark.parametrize("num_coarse", [3, 30])
def test_least_squares_is_the_best_of_all_functions_of_the_coarse_points(num_coarse):
    problem = random_points(3)
    rows = F.farthest_points(problem.centers, num_coarse)
    x, y, ridge = problem.centers.numpy(), problem.values.numpy(), 0.2
    gram = reference.matern32(reference.distances(x[rows], x[rows]))
    cross = reference.matern32(reference.distances(x, x[rows]))
    # All at once, as one least squares problem whose last rows are the penalty.
    root = np.linalg.cholesky(gram).T
    matrix = np.block([[cross, np.ones((len(x), 1))], [np.sqrt(ridge) * root, np.zeros((len(rows), 1))]])
    solved = np.linalg.lstsq(matrix, np.concatenate((y, np.zeros((len(rows), 2)))), rcond=None)[0]
    at_query = reference.matern32(reference.distances(problem.query.numpy(), x[rows]))
    found = coarse_part(problem.query, problem.centers, problem.values, rows, "least_squares", ridge)
    torch.testing.assert_close(found, torch.from_numpy(at_query @ solved[:-1] + solved[-1]))


def test_a_gram_matrix_that_is_singular_to_rounding_is_no_obstacle():
    x = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None]
    rows, kernel = F.farthest_points(x, 60), kernels.Gaussian(0.5)
    part = fit_coarse(x, (5 * x).sin(), rows, SolveOptions(kernel), "least_squares", 1e-9)
    assert (part.predict(x, kernel) - (5 * x).sin()).abs().max() < 1e-5


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("coarse", COARSE)
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", [kernels.Exponential, kernels.Matern52])
def test_derivatives(kernel, trend, coarse, check):
    problem = random_points(0, num_queries=3, num_centers=12, num_features=2)
    kernel = kernel(1.3, learn_lengthscale=True).double()
    query, centers, values = (t.requires_grad_() for t in (problem.query, problem.centers, problem.values))
    ridge = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    indices = F.farthest_points(centers, 4), nearest(query, centers, 7)
    choices = {"kernel": kernel, "trend": trend, "coarse": coarse, "coarse_ridge": 0.1}

    def predict(query, centers, values, ridge, *parameters):
        return F.hierarchical_kernel_ridge(query, centers, values, *indices, ridge=ridge, **choices)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


@pytest.mark.parametrize("coarse", COARSE)
def test_it_interpolates(coarse):
    problem = random_points(4)
    x, y = problem.centers, problem.values
    indices = F.farthest_points(x, 6), nearest(x, x, 11)
    found = F.hierarchical_kernel_ridge(x, x, y, *indices, kernel=kernels.Exponential(), ridge=1e-12, coarse=coarse)
    torch.testing.assert_close(found, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("trend", [None, "constant"])
def test_with_every_center_a_coarse_point_it_is_dense(trend):
    problem = random_points(5)
    choices = {"kernel": kernels.Matern32(), "ridge": 0.1, "trend": trend}
    everyone, near = torch.arange(40), nearest(problem.query, problem.centers, 9)
    found = F.hierarchical_kernel_ridge(problem.query, problem.centers, problem.values, everyone, near, **choices)
    assert torch.equal(found, F.kernel_ridge(problem.query, problem.centers, problem.values, **choices))


def test_with_every_center_a_neighbor_nothing_fades():
    problem = random_points(5)
    query, x, y = problem.query, problem.centers, problem.values
    rows, near = F.farthest_points(x, 6), nearest(query, x, 40)
    found = F.hierarchical_kernel_ridge(query, x, y, rows, near, kernel=kernels.Matern32(), ridge=0.1, fade=False)
    at_query, at_centers = (coarse_part(points, x, y, rows, "least_squares", 0.1) for points in (query, x))
    expected = at_query + F.kernel_ridge(query, x, y - at_centers, kernel=kernels.Matern32(), ridge=0.1)
    torch.testing.assert_close(found, expected)


def test_a_ridge_for_each_center():
    problem = random_points(6)
    given = problem.query, problem.centers, problem.values
    indices = F.farthest_points(problem.centers, 5), problem.neighbors(9)
    alike = torch.full((40,), 1e-2, dtype=torch.float64)
    for ridge in (alike, alike * torch.linspace(0.1, 9, 40, dtype=torch.float64)):
        found = F.hierarchical_kernel_ridge(*given, *indices, kernel=kernels.Exponential(), ridge=ridge)
        same = F.hierarchical_kernel_ridge(*given, *indices, kernel=kernels.Exponential(), ridge=1e-2)
        assert torch.allclose(found, same, rtol=1e-9) == (ridge is alike)


def test_residuals_are_exact_in_float32_and_judged_by_the_size_of_the_values():
    # What a good coarse part leaves is small and rough; it is not solved twice for that.
    torch.manual_seed(0)
    x, query, kernel = torch.rand(500, 2), torch.rand(50, 2), kernels.Matern52(0.5)
    y = (6 * x[:, :1]).sin() + 1e-4 * torch.randn(500, 1)
    indices = F.farthest_points(x, 100), nearest(query, x, 41)
    with trust_hooks.counting() as counted:
        found = F.hierarchical_kernel_ridge(query, x, y, *indices, kernel=kernel, ridge=1e-5, coarse_ridge=1e-6)
    exact = F.hierarchical_kernel_ridge(
        query.double(), x.double(), y.double(), *indices, kernel=kernel, ridge=1e-5, coarse_ridge=1e-6
    )
    assert (found - exact).abs().max() < 1e-5
    rest = y.double() - coarse_part(x, x, y, indices[0], "least_squares", 1e-6)
    with trust_hooks.counting() as alone:
        F.local_kernel_ridge(query, x, rest.float(), indices[1], kernel=kernel, ridge=1e-5, fade=True)
    assert counted.again < alone.again


def test_under_autocast_queries_in_half_meet_centers_in_float32():
    x, y, query = torch.rand(30, 2), torch.rand(30, 1), torch.rand(4, 2).bfloat16()
    indices = F.farthest_points(x, 4), nearest(query.float(), x, 9)
    with torch.autocast("cpu", torch.bfloat16):
        mean = F.hierarchical_kernel_ridge(query, x, y, *indices, kernel=kernels.Matern32())
    assert torch.equal(mean, F.hierarchical_kernel_ridge(query.float(), x, y, *indices, kernel=kernels.Matern32()))


@pytest.mark.parametrize("transform", ["vmap", "jacrev", "grad"])
def test_inside_torch_func(transform):
    problem = random_points(7, num_queries=3)
    query, x, y = problem.query, problem.centers, problem.values
    indices = F.farthest_points(x, 6), problem.neighbors(9)

    def predict(values: Tensor) -> Tensor:
        return F.hierarchical_kernel_ridge(query, x, values, *indices, kernel=kernels.Matern32(), ridge=1e-3)

    if transform == "vmap":
        found = torch.func.vmap(predict)(torch.stack((y, 2 * y)))
        torch.testing.assert_close(found, torch.stack((predict(y), 2 * predict(y))))
    elif transform == "jacrev":
        found = torch.func.jacrev(predict)(y)
        torch.testing.assert_close((found * y).sum((2, 3)), predict(y))  # linear in the values
    else:
        ours = torch.func.grad(lambda z: predict(z).square().sum())(y)
        y.requires_grad_()
        torch.testing.assert_close(ours, torch.autograd.grad(predict(y).square().sum(), y)[0])


@pytest.mark.parametrize(("choices", "pattern"), [
    ({"coarse": "cells"}, "coarse must be one of 'least_squares', 'interpolate', got 'cells'"),
    ({"coarse_ridge": -1.0}, "ridge must be finite and not negative, got -1"),
    ({"coarse_ridge": torch.tensor(0.1)}, "coarse_ridge is a number"),
])  # fmt: skip
def test_choices_that_are_refused(choices, pattern):
    problem = random_points(8)
    indices = F.farthest_points(problem.centers, 4), problem.neighbors(9)
    with pytest.raises(InputError, match=pattern):
        F.hierarchical_kernel_ridge(
            problem.query, problem.centers, problem.values, *indices, kernel=kernels.Matern32(), **choices
        )
