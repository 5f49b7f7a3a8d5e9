"""Theorems about predictions, as properties of random problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import problems, reference
from tests.strategies import TRENDS, few, seeds, setups
from torch import Tensor
from torch.testing import assert_close

from torchkrr import functional as F
from torchkrr import kernels


def rotation(features: int, seed: int) -> Tensor:
    return torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).normal(size=(features, features)))[0])


# Reference.


@pytest.mark.parametrize("ridge", [1e-9, 1e-2])
@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("name", problems.PROBLEMS)
def test_named_problems_are_solved_as_the_loop_solves_them(name, trend, ridge):
    p, kernel = problems.PROBLEMS[name](), kernels.Exponential()
    z, x, y, indices = (t.numpy() for t in (p.query, p.centers, p.values, p.neighbor_indices))
    ours: dict[str, Any] = {"kernel": kernel, "trend": trend, "ridge": ridge}
    loop: dict[str, Any] = {"profile": reference.exponential, "trend": trend, "ridge": ridge}
    found = {
        "local_kernel_ridge": F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbor_indices, **ours),
        "local_cardinal_weights": F.local_cardinal_weights(p.query, p.centers, p.neighbor_indices, **ours),
        "local_power_function": F.local_power_function(p.query, p.centers, p.neighbor_indices, **ours),
        "kernel_ridge": F.kernel_ridge(p.query, p.centers, p.values, **ours),
        "cardinal_weights": F.cardinal_weights(p.query, p.centers, **ours),
        "power_function": F.power_function(p.query, p.centers, **ours),
    }
    arguments = {
        "local_kernel_ridge": (z, x, y, indices),
        "local_cardinal_weights": (z, x, indices),
        "local_power_function": (z, x, indices),
        "kernel_ridge": (z, x, y),
        "cardinal_weights": (z, x),
        "power_function": (z, x),
    }
    if len(x) > 1:
        found["leave_one_out"] = F.leave_one_out(p.centers, p.values, **ours)
        arguments["leave_one_out"] = (x, y)
    for function, result in found.items():
        expected = torch.from_numpy(getattr(reference, function)(*arguments[function], **loop))
        # At a ridge of 1e-9 duplicates leave half of the digits.
        assert_close(result, expected, rtol=1e-6, atol=1e-6, msg=lambda text, f=function: f"{f}: {text}")
    means, powers = F.local_path(p.query, p.centers, p.values, p.neighbor_indices, **ours)
    expected_means, expected_powers = reference.local_path(z, x, y, indices, **loop)
    assert_close(means, torch.from_numpy(expected_means), rtol=1e-6, atol=1e-6)
    assert_close(powers, torch.from_numpy(expected_powers), rtol=1e-6, atol=1e-6)


@given(s=setups(), trend=st.sampled_from(TRENDS))
@few
def test_each_center_can_have_a_ridge_of_its_own(s, trend):
    ridge = torch.logspace(-9, -1, len(s.centers), dtype=torch.float64)
    z, x, y = s.query.numpy(), s.centers.numpy(), s.values.numpy()
    ours: dict[str, Any] = {"kernel": s.kernel, "trend": trend, "ridge": ridge}
    loop: dict[str, Any] = {"profile": s.profile, "trend": trend, "ridge": ridge.numpy()}
    assert_close(
        F.local_kernel_ridge(s.query, s.centers, s.values, s.indices, **ours),
        torch.from_numpy(reference.local_kernel_ridge(z, x, y, s.indices.numpy(), **loop)),
    )
    assert_close(
        F.kernel_ridge(s.query, s.centers, s.values, **ours),
        torch.from_numpy(reference.kernel_ridge(z, x, y, **loop)),
    )
    assert_close(
        F.local_power_function(s.query, s.centers, s.indices, **ours),
        torch.from_numpy(reference.local_power_function(z, x, s.indices.numpy(), **loop)),
        rtol=1e-6,
        atol=1e-6,
    )


@given(s=setups(min_centers=3), trend=st.sampled_from(TRENDS), ridge=st.sampled_from([1e-9, 1e-2]))
@few
def test_fading_is_a_penalty_on_the_diagonal(s, trend, ridge):
    indices = s.neighbors(max(2, s.indices.shape[1]))
    z, x, y = s.query.numpy(), s.centers.numpy(), s.values.numpy()
    ours = {"kernel": s.kernel, "trend": trend, "ridge": ridge, "fade": True}
    loop = {"profile": s.profile, "trend": trend, "ridge": ridge, "fade": True}
    assert_close(
        F.local_kernel_ridge(s.query, s.centers, s.values, indices, **ours),
        torch.from_numpy(reference.local_kernel_ridge(z, x, y, indices.numpy(), **loop)),
        rtol=1e-7,
        atol=1e-7,
    )
    assert_close(
        F.local_power_function(s.query, s.centers, indices, **ours),
        torch.from_numpy(reference.local_power_function(z, x, indices.numpy(), **loop)),
        rtol=1e-6,
        atol=1e-6,
    )


# Local and dense.


@given(s=setups(), trend=st.sampled_from(TRENDS))
@few
def test_all_centers_as_neighbors_is_dense_ridge(s, trend):
    options = {"kernel": s.kernel, "trend": trend}
    assert_close(
        F.local_kernel_ridge(s.query, s.centers, s.values, s.everyone, **options),
        F.kernel_ridge(s.query, s.centers, s.values, **options),
    )
    assert_close(
        F.local_cardinal_weights(s.query, s.centers, s.everyone, **options),
        F.cardinal_weights(s.query, s.centers, **options).gather(1, s.everyone),
    )
    assert_close(
        F.local_power_function(s.query, s.centers, s.everyone, **options),
        F.power_function(s.query, s.centers, **options),
        rtol=1e-6,
        atol=1e-6,
    )


@given(s=setups())
@few
def test_one_neighbor_decays_away_from_it(s):
    # The weight is phi(d), not 1: this is not nearest neighbor.
    index = s.neighbors(1)
    predicted = F.local_kernel_ridge(s.query, s.centers, s.values, index, kernel=s.kernel, ridge=0.0)
    distance = (s.query - s.centers[index[:, 0]]).norm(dim=1) / s.kernel.lengthscale
    assert_close(predicted, s.kernel.profile(distance)[:, None] * s.values[index[:, 0]])


def test_one_center_is_its_own_neighborhood():
    p, kernel = problems.one_center(), kernels.Matern32(0.7)
    expected = kernel(p.query, p.centers) * p.values
    assert_close(F.kernel_ridge(p.query, p.centers, p.values, kernel=kernel, ridge=0.0), expected)
    assert_close(F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbor_indices, kernel=kernel, ridge=0.0), expected)


def test_a_far_cluster_does_not_matter():
    p, kernel = problems.far_clusters(gap=40.0), kernels.Exponential()
    local = F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbor_indices, kernel=kernel)
    # The other cluster enters with the kernel of the gap, e^-38, which is below the rounding of either.
    assert_close(local, F.kernel_ridge(p.query, p.centers, p.values, kernel=kernel), rtol=1e-9, atol=1e-9)


# Symmetries.


@given(s=setups(), seed=seeds, trend=st.sampled_from(TRENDS))
@few
def test_order_of_centers_does_not_matter(s, seed, trend):
    order = torch.randperm(len(s.centers), generator=torch.Generator().manual_seed(seed))
    options = {"kernel": s.kernel, "trend": trend}
    assert_close(
        F.kernel_ridge(s.query, s.centers[order], s.values[order], **options),
        F.kernel_ridge(s.query, s.centers, s.values, **options),
    )
    renamed = order.argsort()[s.indices]
    expected = F.local_kernel_ridge(s.query, s.centers, s.values, s.indices, **options)
    assert_close(F.local_kernel_ridge(s.query, s.centers[order], s.values[order], renamed, **options), expected)
    # Nor does the order in which a neighborhood lists them: only path and fade need the nearest first.
    assert_close(F.local_kernel_ridge(s.query, s.centers, s.values, s.indices.flip(1), **options), expected)


@given(s=setups(), seed=seeds, fade=st.booleans(), far=st.sampled_from([0.0, 3.0, 1e3]))
@few
def test_moving_and_turning_everything_changes_nothing(s, seed, fade, far):
    turn = rotation(s.query.shape[1], seed)
    query, centers = s.query @ turn + far, s.centers @ turn + far
    options = {"kernel": s.kernel, "fade": fade and s.indices.shape[1] > 1}
    tolerance = {"rtol": 1e-8, "atol": 1e-8 * (1 + far)}
    assert_close(
        F.local_kernel_ridge(query, centers, s.values, s.indices, **options),
        F.local_kernel_ridge(s.query, s.centers, s.values, s.indices, **options),
        **tolerance,
    )
    assert_close(
        F.kernel_ridge(query, centers, s.values, kernel=s.kernel),
        F.kernel_ridge(s.query, s.centers, s.values, kernel=s.kernel),
        **tolerance,
    )


@given(s=setups(), trend=st.sampled_from(TRENDS), fade=st.booleans())
@few
def test_prediction_is_linear_in_values_with_the_transposed_weights_as_gradient(s, trend, fade):
    options: dict[str, Any] = {"kernel": s.kernel, "trend": trend}
    values = s.values.clone().requires_grad_()
    arriving = torch.linspace(-1, 1, len(s.query) * 2, dtype=torch.float64).view(-1, 2)

    weights = F.cardinal_weights(s.query, s.centers, **options)  # (Q, N)
    dense = F.kernel_ridge(s.query, s.centers, values, **options)
    assert_close(dense, weights @ values)
    (gradient,) = torch.autograd.grad(dense, values, arriving)
    assert_close(gradient, weights.mT @ arriving)

    options["fade"] = fade and s.indices.shape[1] > 1
    local_weights = F.local_cardinal_weights(s.query, s.centers, s.indices, **options)  # (Q, M)
    scattered = torch.zeros_like(weights).scatter(1, s.indices, local_weights)  # (Q, N)
    local = F.local_kernel_ridge(s.query, s.centers, values, s.indices, **options)
    assert_close(local, scattered @ values)
    (gradient,) = torch.autograd.grad(local, values, arriving)
    assert_close(gradient, scattered.mT @ arriving)


# Interpolation.


@given(s=setups(), trend=st.sampled_from(TRENDS))
@few
def test_without_ridge_the_prediction_at_a_center_is_its_value(s, trend):
    options = {"kernel": s.kernel, "ridge": 0.0, "trend": trend}
    near = {"rtol": 1e-9, "atol": 1e-9}
    assert_close(F.kernel_ridge(s.centers, s.centers, s.values, **options), s.values, **near)
    identity = torch.eye(len(s.centers), dtype=torch.float64)
    assert_close(F.cardinal_weights(s.centers, s.centers, **options), identity, **near)
    indices = s.neighbors(s.indices.shape[1], s.centers)
    assert_close(F.local_kernel_ridge(s.centers, s.centers, s.values, indices, **options), s.values, **near)


@given(s=setups())
@few
def test_with_a_trend_constants_are_reproduced(s):
    level = torch.full_like(s.values, 3.0)
    expected = torch.full((len(s.query), 2), 3.0, dtype=torch.float64)
    assert_close(F.kernel_ridge(s.query, s.centers, level, kernel=s.kernel, trend="constant"), expected)
    for fade in (False, s.indices.shape[1] > 1):
        options = {"kernel": s.kernel, "trend": "constant", "fade": fade}
        assert_close(F.local_kernel_ridge(s.query, s.centers, level, s.indices, **options), expected)
        sums = F.local_cardinal_weights(s.query, s.centers, s.indices, **options).sum(1)
        assert_close(sums, torch.ones_like(sums))
