"""Layers of blended regressors: their anchors, and the precision of their sums."""

from __future__ import annotations

import pytest
import torch
from tests.nn.layers import (
    NUM_NEIGHBORS,
    data,
    make,
    queries,
    rebuilt,
)

from torchkrr import functional as F
from torchkrr import kernels, neighbors


@pytest.mark.parametrize("num_blended", [3, 99])
def test_few_anchors_are_the_farthest_points_with_their_own_neighbors(num_blended):
    centers, values = (tensor.double() for tensor in data())
    layer = make("blended", centers, values, num_anchors=20, num_blended=num_blended)
    anchors = F.farthest_points(centers, 20, distance=layer.kernel)
    own = neighbors.nearest(centers[anchors], centers, NUM_NEIGHBORS)
    near = neighbors.nearest(queries().double(), centers[anchors], min(num_blended + 1, 20))
    expected = F.blended_kernel_ridge(
        queries().double(),
        centers,
        values,
        anchors,
        own,
        near,
        kernel=layer.kernel,
        ridge=1e-4,
        last_sets_radius=num_blended < 20,
    )
    torch.testing.assert_close(layer(queries().double()), expected)


def test_large_coefficients_are_summed_in_float64():
    centers, _ = data(3, 400)
    layer = make("blended", centers, centers.sin(), kernel=kernels.Gaussian(4.0), ridge=1e-9)
    exact = rebuilt(layer.double())(queries(40).double())
    layer.float()
    torch.testing.assert_close(layer(queries(40)).double(), exact, rtol=1e-6, atol=1e-6)
    # In float32 they would not cancel as they should.
    layer._solutions.regressors.wide.fill_(False)
    assert (layer(queries(40)) - exact).abs().max() > 1e-4
    rough = make("blended", centers, centers.sin(), kernel=kernels.Exponential(4.0))
    rough(queries(40))
    assert not rough._solutions.regressors.wide[: rough._solutions.size].any()
