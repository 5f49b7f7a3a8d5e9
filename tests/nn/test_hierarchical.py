"""Layers of a coarse part and local corrections: the residual, and the number of coarse points."""

from __future__ import annotations

import torch
from tests.nn.layers import (
    NUM_CENTERS,
    data,
    make,
    predicts_as_rebuilt,
    queries,
)

from torchkrr import kernels, nn


def test_the_rest_that_cells_correct_is_taken_in_float64():
    torch.manual_seed(0)
    centers, query = torch.randn(400, 3), torch.randn(50, 3)
    values = centers.sum(1, keepdim=True).sin()
    choices = {"kernel": kernels.Gaussian(2.0), "num_coarse": 30}
    layer = nn.HierarchicalKernelRidge(centers, values, 20, **choices)
    exact = nn.HierarchicalKernelRidge(centers.double(), values.double(), 20, **choices)(query.double())
    for found in (layer(query), layer(query.requires_grad_())):
        assert (found - exact).abs().max() < 1e-4


def test_more_coarse_points_than_centers_are_all_of_them():
    layer = make("hierarchical", num_coarse=1000)
    torch.testing.assert_close(layer(queries()), make("dense")(queries()), rtol=1e-3, atol=1e-3)
    layer.append(*data(4, 5))
    assert predicts_as_rebuilt(layer)
    assert layer.num_centers == NUM_CENTERS + 5
