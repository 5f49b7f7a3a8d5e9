"""Kernels with a polynomial of too low a degree are solved as they stand."""

import numpy as np
import pytest
import torch
from tests import reference
from torch.autograd import gradcheck

from torchkrr import kernels, neighbors
from torchkrr.errors import SolveError
from torchkrr.interpolate.indefinite import interpolate_indefinite


def problem(seed=0):
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(array) for array in (rng.random((5, 2)), rng.random((25, 2)), rng.random((25, 1))))


@pytest.mark.parametrize("degree", [-1, 0])
@pytest.mark.parametrize("count", [None, 12])
def test_it_is_the_saddle_point_system(degree, count):
    query, centers, values = problem()
    rows = None if count is None else neighbors.nearest(query, centers, count)
    choices = {"kernel": kernels.Cubic(), "ridge": torch.full((25,), 0.1, dtype=torch.float64), "degree": degree}
    found = interpolate_indefinite(query, centers, values, indices=rows, **choices)
    trend, profile = None if degree < 0 else degree, reference.cubic
    everyone = np.tile(np.arange(25), (5, 1)) if rows is None else rows.numpy()
    arrays = query.numpy(), centers.numpy(), values.numpy(), everyone
    expected = reference.local_kernel_ridge(*arrays, profile=profile, ridge=0.1, trend=trend)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


def test_it_has_derivatives():
    query, centers, values = problem()
    rows, ridge = neighbors.nearest(query, centers, 8), torch.full((25,), 0.1, dtype=torch.float64)

    def interpolate(*tensors):
        *points, ridge = tensors
        return interpolate_indefinite(*points, kernel=kernels.Linear(), ridge=ridge, degree=-1, indices=rows)

    assert gradcheck(interpolate, [x.requires_grad_() for x in (query, centers, values, ridge)], fast_mode=True)


def test_a_singular_system_says_so():
    _, centers, values = problem()
    centers = torch.cat((centers[:1], centers))
    with pytest.raises(SolveError, match="Leave `degree` at its default"):
        interpolate_indefinite(
            centers[:1],
            centers,
            values[:1].repeat(26, 1),
            kernel=kernels.Linear(),
            ridge=torch.zeros(26, dtype=torch.float64),
            degree=-1,
            indices=None,
        )
