"""Distances are exact where it matters: between close points, wherever they lie."""

from __future__ import annotations

import pytest
import torch
from scipy.spatial.distance import cdist
from tests.kernel_cases import close

from torchkrr import functional as F
from torchkrr import kernels


@pytest.mark.parametrize("features", [2, 40])
def test_distances_between_close_points_far_from_the_origin(features):
    # The inner-product form in float32 would be off by more than the distance itself.
    base = torch.randn(1, features) * 100
    x = base + 1e-2 * torch.randn(20, features)
    exact = torch.exp(-torch.tensor(cdist(x.double().numpy(), x.double().numpy())))
    close(kernels.Exponential()(x, x), exact, rtol=1e-5, atol=1e-5)


def test_close_points_of_far_clusters_keep_their_distances():
    # The mean of both clusters is far from either: shifting by it rounds away what separates the points of the small one.
    centers = torch.cat((torch.randn(10, 8) * 0.01, 1e4 + torch.randn(10, 8)))
    values, query = torch.randn(20, 1), centers[:10] + 0.003 * torch.randn(10, 8)
    kernel = kernels.Exponential()
    single = F.kernel_ridge(query, centers, values, kernel=kernel)
    double = F.kernel_ridge(query.double(), centers.double(), values.double(), kernel=kernel)
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-3)
