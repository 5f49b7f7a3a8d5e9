"""Theorems about faded local predictions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import problems, reference
from tests.strategies import TRENDS, few, setups
from torch.testing import assert_close

from torchkrr import functional as F
from torchkrr import kernels

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
