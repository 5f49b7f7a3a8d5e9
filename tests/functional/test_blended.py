"""Blended regression: against a plain loop, its derivatives, and what the blend promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import reference
from tests.problems import PROBLEMS, finite_expansion, random_points
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors


def indices(query: Tensor, centers: Tensor, anchors: Tensor, num_neighbors: int, num_blended: int) -> dict[str, object]:
    own = neighbors.nearest(centers.detach()[anchors], centers.detach(), num_neighbors)
    more = num_blended < len(anchors)
    near = neighbors.nearest(query.detach(), centers.detach()[anchors], num_blended + 1 if more else len(anchors))
    return {"anchor_indices": anchors, "anchor_neighbors": own, "nearest_anchors": near, "last_sets_radius": more}


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("num_blended", [1, 3, 7, 99])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("problem", [name for name in PROBLEMS if name not in ("conflicting duplicates", "one center")])
def test_is_the_formula(problem, every, num_blended, trend):
    given = PROBLEMS[problem]()
    query, centers, values, num_neighbors = given.query, given.centers, given.values, given.num_neighbors
    anchors = torch.arange(0, len(centers), every)
    choices = {"ridge": 1e-3, "trend": trend}
    named = indices(query, centers, anchors, num_neighbors, num_blended)
    mean = F.blended_kernel_ridge(query, centers, values, **named, kernel=kernels.Matern32(), **choices)
    bound = F.blended_power_function(query, centers, **named, kernel=kernels.Matern32(), **choices)
    wanted = reference.blended_kernel_ridge(
        query.numpy(),
        centers.numpy(),
        values.numpy(),
        anchors.numpy(),
        num_neighbors,
        min(num_blended, len(anchors)),
        profile=reference.matern32,
        **choices,
    )
    torch.testing.assert_close(mean, torch.from_numpy(wanted[0]), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(bound, torch.from_numpy(wanted[1]), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("num_blended", [2, 9])
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", [kernels.Exponential, kernels.Matern52])
def test_derivatives(kernel, trend, num_blended, check):
    problem = random_points(3, num_queries=2, num_centers=7, num_features=2)
    kernel = kernel(1.3, learn_lengthscale=True).double()
    query, centers, values = (t.requires_grad_() for t in (problem.query, problem.centers, problem.values))
    ridge = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    named = indices(query, centers, torch.tensor([0, 2, 3, 5, 6]), 4, num_blended)

    def predict(query, centers, values, ridge, *parameters):
        return F.blended_kernel_ridge(query, centers, values, **named, kernel=kernel, ridge=ridge, trend=trend)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_of_the_bound(check):
    problem = random_points(3, num_queries=2, num_centers=7, num_features=2)
    query, centers = problem.query.requires_grad_(), problem.centers.requires_grad_()
    named = indices(query, centers, torch.arange(7), 4, 2)

    def bound(query, centers):
        return F.blended_power_function(query, centers, **named, kernel=kernels.Matern32(1.3), ridge=1e-2)

    assert check(bound, (query, centers))


@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_on_an_anchor(order):
    problem = random_points(4, num_queries=1, num_centers=12, num_features=2, num_outputs=1)
    centers, at = problem.centers, problem.centers[3]
    kernel = kernels.Gaussian(1.5)

    def predict(point: Tensor) -> Tensor:
        named = indices(point[None], centers, torch.arange(12), 2, 3)
        # A large ridge: the regressors differ at the anchor, so that the curvature of the weights shows.
        return F.blended_kernel_ridge(point[None], centers, problem.values, **named, kernel=kernel, ridge=0.3).squeeze()

    step = 1e-4
    for i in range(2):
        e = torch.zeros(2, dtype=torch.float64)
        e[i] = step
        if order == 1:
            found = torch.autograd.functional.jacobian(predict, at.clone())[i]
            expected = (predict(at + e) - predict(at - e)) / (2 * step)
        else:
            found = torch.autograd.functional.hessian(predict, at.clone())[i, i]
            expected = (predict(at + e) + predict(at - e) - 2 * predict(at)) / step**2
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


WEIGHTS = {
    "on an anchor": ([0.0, 1.0, 4.0], [1.0, 0.0]),
    "on two anchors": ([0.0, 0.0, 4.0], [0.5, 0.5]),
    "all equally far": ([4.0, 4.0, 4.0], [0.5, 0.5]),
    "all at zero": ([0.0, 0.0, 0.0], [0.5, 0.5]),
    "last at the radius": ([1.0, 4.0, 4.0], [1.0, 0.0]),
    "almost on an anchor": ([1e-30, 1.0, 4.0], [1.0, 0.0]),
    "far away": ([1e30, 4e30, 9e30], [16 / 17, 1 / 17]),
    "tiny": ([1e-30, 4e-30, 9e-30], [16 / 17, 1 / 17]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_in_the_limits(case, dtype):
    squared, wanted = WEIGHTS[case]
    squared = torch.tensor([squared], dtype=dtype, requires_grad=True)
    weights = F.blending_weights(squared)
    torch.testing.assert_close(weights, torch.tensor([wanted], dtype=dtype))
    (gradient,) = torch.autograd.grad(weights[0, 0], squared)
    assert gradient.isfinite().all()


def test_weights_are_curved_on_an_anchor():
    anchors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)

    def second(point: Tensor) -> Tensor:
        return F.blending_weights((anchors - point).square().sum(-1)[None])[0, 1]

    hessian = torch.autograd.functional.hessian(second, torch.zeros(2, dtype=torch.float64))
    # Near the first anchor the share of the second is |z|^2 ((R - 1) / R)^2, with R = 2.
    torch.testing.assert_close(hessian, 0.5 * torch.eye(2, dtype=torch.float64))


def test_weights_of_all_anchors_there_are():
    distances = np.array([0.5, 1.0, 2.0])
    weights = F.blending_weights(torch.from_numpy(distances**2)[None], last_sets_radius=False)[0]
    torch.testing.assert_close(weights, torch.from_numpy(reference.blending_weights(distances, 4.0)))
    assert F.blending_weights(torch.zeros(1, 1), last_sets_radius=False).tolist() == [[1.0]]


def test_bound_holds_for_functions_of_known_norm():
    problem = finite_expansion(5, num_queries=40)
    named = indices(problem.query, problem.centers, torch.arange(30), 10, 4)
    choices = {"kernel": kernels.Exponential(), "ridge": 1e-10}
    mean = F.blended_kernel_ridge(problem.query, problem.centers, problem.values, **named, **choices)
    bound = F.blended_power_function(problem.query, problem.centers, **named, **choices)
    error = (mean - problem.answer).abs()
    assert (error <= bound[:, None] * problem.norm + 1e-9).all()
    assert (error > 0.05 * bound[:, None] * problem.norm).any()  # or anything would pass


def test_memory_of_a_prediction_is_bounded_by_the_budget(monkeypatch):
    problem = random_points(0, num_queries=40, num_centers=60)
    named = indices(problem.query, problem.centers, torch.arange(60), 12, 4)
    choices = {"kernel": kernels.Exponential(), **named}
    whole = F.blended_kernel_ridge(problem.query, problem.centers, problem.values, **choices)
    monkeypatch.setattr("torchkrr._chunking.CPU_CHUNK_BYTES", 1000)
    chunked = F.blended_kernel_ridge(problem.query, problem.centers, problem.values, **choices)
    torch.testing.assert_close(whole, chunked)


def test_under_autocast_queries_in_half_meet_centers_in_float32():
    centers, values, query = torch.rand(30, 2), torch.rand(30, 1), torch.rand(4, 2).bfloat16()
    named = indices(query.float(), centers, torch.arange(30), 8, 3)
    with torch.autocast("cpu", torch.bfloat16):
        mean = F.blended_kernel_ridge(query, centers, values, **named, kernel=kernels.Matern32())
        bound = F.blended_power_function(query, centers, **named, kernel=kernels.Matern32())
    assert torch.equal(mean, F.blended_kernel_ridge(query.float(), centers, values, **named, kernel=kernels.Matern32()))
    assert torch.equal(bound, F.blended_power_function(query.float(), centers, **named, kernel=kernels.Matern32()))
