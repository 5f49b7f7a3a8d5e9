"""Properties that hold for every problem: the name of a test is the theorem."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import problems, reference
from torch import Tensor
from torch.testing import assert_close

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import RidgeRaisedWarning

TRENDS = [None, "constant"]
few = settings(derandomize=True, deadline=None, max_examples=60, database=None)
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Setup:
    """A well-conditioned float64 problem with a kernel."""

    query: Tensor
    centers: Tensor
    values: Tensor
    indices: Tensor  # (Q, M)
    kernel: kernels.Kernel
    profile: reference.Profile
    name: str

    @property
    def everyone(self) -> Tensor:
        """All centers as neighbors of each query, nearest first."""
        return self.neighbors(len(self.centers))

    def neighbors(self, count: int, query: Tensor | None = None) -> Tensor:
        query = self.query if query is None else query
        return torch.from_numpy(reference.nearest(query.numpy(), self.centers.numpy(), count))


def spread_points(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    """Distinct cells of a unit lattice, shaken: no two points are close, so even smooth kernels are well conditioned."""
    side = 2
    while side**features < 2 * count:
        side += 1
    cells = rng.choice(side**features, size=count, replace=False)
    lattice = np.stack(np.unravel_index(cells, (side,) * features), 1).astype(float)
    return lattice + rng.uniform(-0.2, 0.2, size=lattice.shape)


@st.composite
def setups(draw: Any, *, min_centers: int = 1, names: tuple[str, ...] = tuple(reference.PROFILES)) -> Setup:
    rng = np.random.default_rng(draw(seeds, label="seed"))
    features = draw(st.integers(1, 4), label="D")
    count = draw(st.integers(min_centers, 20), label="N")
    neighbors = draw(st.integers(1, count), label="M")
    name = draw(st.sampled_from(names), label="kernel")
    options: dict[str, Any] = {"dimension": features} if name == "Wendland" else {}
    queries = draw(st.integers(1, 5), label="Q")
    centers = spread_points(rng, count, features)
    query = centers[rng.integers(count, size=queries)] + rng.uniform(-1, 1, size=(queries, features))
    return Setup(
        torch.from_numpy(query),
        torch.from_numpy(centers),
        torch.from_numpy(rng.normal(size=(count, 2))),
        torch.from_numpy(reference.nearest(query, centers, neighbors)),
        # A Wendland kernel of lengthscale 1 would see no neighbor at all.
        getattr(kernels, name)(2.5 if name == "Wendland" else 1.0, **options),
        lambda d: reference.PROFILES[name](d / 2.5 if name == "Wendland" else d, **options),
        name,
    )


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


# Power function, norm and bound.


@given(s=setups())
@few
def test_power_function_lies_between_zero_and_one_and_falls_with_every_center(s):
    slack = 1e-7
    dense = F.power_function(s.query, s.centers, kernel=s.kernel)
    _, path = F.local_path(s.query, s.centers, s.values, s.everyone, kernel=s.kernel)
    for power in (dense, path):
        assert (power >= 0).all()
        assert (power <= 1).all()
    assert (path.diff(dim=1) <= slack).all()
    without_last = F.power_function(s.query, s.centers[:-1], kernel=s.kernel) if len(s.centers) > 1 else torch.ones(1)
    assert (dense <= without_last + slack).all()


@given(s=setups(), trend=st.sampled_from(TRENDS))
@few
def test_local_power_function_is_never_below_the_dense_one(s, trend):
    dense = F.power_function(s.query, s.centers, kernel=s.kernel, trend=trend)
    local = F.local_power_function(s.query, s.centers, s.indices, kernel=s.kernel, trend=trend)
    assert (local >= dense - 1e-7).all()
    if s.indices.shape[1] > 1:
        # Faded weights minimise nothing, so they cannot do better than the weights that do.
        faded = F.local_power_function(s.query, s.centers, s.indices, kernel=s.kernel, trend=trend, fade=True)
        plain = F.local_power_function(s.query, s.centers, s.indices[:, :-1], kernel=s.kernel, trend=trend)
        assert (faded >= plain - 1e-7).all()


@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["Exponential", "Matern32"]),
    ridge=st.sampled_from([0.0, 1e-9, 1e-2]),
)
@few
def test_error_is_at_most_power_function_times_norm(seed, name, ridge):
    p = problems.finite_expansion(seed, profile=reference.PROFILES[name], num_features=3)
    options = {"kernel": getattr(kernels, name)(), "ridge": ridge}
    dense = F.kernel_ridge(p.query, p.centers, p.values, **options)
    bound = F.power_function(p.query, p.centers, **options)[:, None] * p.norm
    assert ((dense - p.answer).abs() <= bound + 1e-9).all()
    local = F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbor_indices, **options)
    bound = F.local_power_function(p.query, p.centers, p.neighbor_indices, **options)[:, None] * p.norm
    assert ((local - p.answer).abs() <= bound + 1e-9).all()


@given(seeds, st.sampled_from(["Exponential", "Matern32"]))
@few
def test_norm_of_an_expansion_on_the_centers_is_known_and_else_a_lower_bound(seed, name):
    options = {"kernel": getattr(kernels, name)(), "ridge": 0.0}
    p = problems.finite_expansion(seed, profile=reference.PROFILES[name], num_features=3, known_terms=True)
    assert_close(F.rkhs_norm(p.centers, p.values, **options), p.norm, rtol=1e-6, atol=0)
    assert_close(F.kernel_ridge(p.query, p.centers, p.values, **options), p.answer, rtol=1e-7, atol=1e-7)
    p = problems.finite_expansion(seed, profile=reference.PROFILES[name], num_features=3)
    assert (F.rkhs_norm(p.centers, p.values, **options) <= p.norm * (1 + 1e-9)).all()


@given(s=setups(min_centers=3), trend=st.sampled_from(TRENDS))
@few
def test_leaving_one_out_in_closed_form_is_refitting(s, trend):
    expected = reference.leave_one_out(s.centers.numpy(), s.values.numpy(), profile=s.profile, trend=trend)
    found = F.leave_one_out(s.centers, s.values, kernel=s.kernel, trend=trend)
    assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


# Duplicates.


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("ridge", [1e-9, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_of_a_center_act_as_one_with_their_mean_value_and_a_shared_ridge(dtype, ridge, trend):
    copies, kernel = 3, kernels.Exponential()
    p = problems.conflicting_duplicates(copies=copies).to(dtype)
    places, means = p.centers[::copies], p.values.view(-1, copies, 1).mean(1)
    query = p.query + torch.linspace(-0.5, 0.5, p.query.numel(), dtype=dtype).view_as(p.query)
    expected = F.kernel_ridge(query, places, means, kernel=kernel, ridge=ridge / copies, trend=trend)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-6}
    assert_close(F.kernel_ridge(query, p.centers, p.values, kernel=kernel, ridge=ridge, trend=trend), expected, **near)
    everyone = torch.from_numpy(reference.nearest(query.double().numpy(), p.centers.double().numpy(), len(p.centers)))
    local = F.local_kernel_ridge(query, p.centers, p.values, everyone, kernel=kernel, ridge=ridge, trend=trend)
    assert_close(local, expected, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_without_ridge_give_their_mean_and_a_warning(dtype):
    p, kernel = problems.conflicting_duplicates().to(dtype), kernels.Exponential()
    with pytest.warns(RidgeRaisedWarning, match="larger ridge"):
        dense = F.kernel_ridge(p.query, p.centers, p.values, kernel=kernel, ridge=0.0)
    assert_close(dense, p.answer, rtol=1e-3, atol=1e-3)
    with pytest.warns(RidgeRaisedWarning, match="larger ridge"):
        local = F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbor_indices, kernel=kernel, ridge=0.0)
    assert_close(local, p.answer, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_of_copies_is_the_norm_of_their_mean(dtype):
    # The coefficients of copies with different values are of the order of 1 / ridge and cancel in the function.
    copies, kernel = 3, kernels.Exponential()
    p = problems.conflicting_duplicates(copies=copies).to(dtype)
    expected = F.rkhs_norm(p.centers[::copies], p.values.view(-1, copies, 1).mean(1), kernel=kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RidgeRaisedWarning)  # a larger ridge is an answer; a wrong norm is not
        found = F.rkhs_norm(p.centers, p.values, kernel=kernel)
    assert_close(found, expected, rtol=1e-3, atol=1e-3)


# Fade.


@given(s=setups(min_centers=6), trend=st.sampled_from(TRENDS))
@few
def test_faded_predictions_interpolate_and_the_last_neighbor_has_no_weight(s, trend):
    # From four members on the nearest is always inside the ring; the last column only sets the radius.
    columns = max(5, s.indices.shape[1])
    options = {"kernel": s.kernel, "ridge": 0.0, "trend": trend, "fade": True}
    indices = s.neighbors(columns, s.centers)
    predicted = F.local_kernel_ridge(s.centers, s.centers, s.values, indices, **options)
    assert_close(predicted, s.values, rtol=1e-9, atol=1e-9)
    weights = F.local_cardinal_weights(s.query, s.centers, s.neighbors(columns), **options)
    assert weights.shape == (len(s.query), columns)
    assert (weights[:, -1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_all_distances_equal_faded_weights_are_zero_and_with_a_trend_the_plain_mean(dtype):
    centers = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1], [1, 0]], dtype=dtype)  # a circle around the query
    values = torch.tensor([[1.0], [2.0], [3.0], [6.0], [100.0]], dtype=dtype)
    query, indices = torch.zeros(1, 2, dtype=dtype), torch.arange(5)[None]
    options = {"kernel": kernels.Exponential(), "fade": True}
    assert (F.local_cardinal_weights(query, centers, indices, **options) == 0).all()
    assert F.local_kernel_ridge(query, centers, values, indices, **options).item() == 0
    assert F.local_power_function(query, centers, indices, **options).item() == 1
    mean = F.local_kernel_ridge(query, centers, values, indices, trend="constant", **options)
    assert mean.item() == pytest.approx(3.0)  # of the four members, not of the one that sets the radius


@pytest.mark.parametrize("trend", TRENDS)
def test_faded_predictions_are_continuous_where_the_neighbors_change_and_plain_ones_are_not(trend):
    centers = problems.random_points(3, num_centers=40, num_features=2).centers
    values = torch.sin(7 * centers.sum(1, keepdim=True))
    members, kernel = 8, kernels.Exponential()
    start, end = torch.tensor([[-1.0, -1.0]], dtype=torch.float64), torch.tensor([[1.0, 0.8]], dtype=torch.float64)
    query = start + torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None] * (end - start)
    indices = torch.from_numpy(reference.nearest(query.numpy(), centers.numpy(), members + 1))
    faded = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, trend=trend, fade=True)
    plain = F.local_kernel_ridge(query, centers, values, indices[:, :-1], kernel=kernel, trend=trend)
    # Between two queries 7e-4 apart a continuous prediction moves little, whether or not a neighbor was exchanged.
    exchanged = (indices[1:, :-1].sort(1).values != indices[:-1, :-1].sort(1).values).any(1)
    assert exchanged.sum() > 5
    jump_of_plain = plain.diff(dim=0)[exchanged].abs().max()
    jump_of_faded = faded.diff(dim=0)[exchanged].abs().max()
    assert jump_of_faded < 0.1 * jump_of_plain


def test_neighbors_tied_at_the_border_can_be_exchanged():
    p, kernel = problems.grid_with_ties(), kernels.Exponential()
    query = p.query[:1] + torch.tensor([[0.0, 0.25]], dtype=torch.float64)  # left and right of it the grid is symmetric
    indices = torch.from_numpy(reference.nearest(query.numpy(), p.centers.numpy(), len(p.centers)))
    distance = (p.centers[indices[0]] - query).norm(dim=1)
    tied = next(m for m in range(6, 20) if distance[m] == distance[m - 1] and distance[m] > distance[m - 2])
    cut = indices[:, : tied + 1]
    swapped = cut.clone()
    swapped[:, [-2, -1]] = cut[:, [-1, -2]]
    options = {"kernel": kernel, "fade": True}
    assert_close(
        F.local_kernel_ridge(query, p.centers, p.values, swapped, **options),
        F.local_kernel_ridge(query, p.centers, p.values, cut, **options),
    )
