"""Theorems about the power function, norms, leave-one-out and repeated centers."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import problems, reference
from tests.strategies import TRENDS, few, seeds, setups
from torch.testing import assert_close

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import RidgeRaisedWarning

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
        # Faded weights minimize nothing, so they cannot do better than the weights that do.
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
