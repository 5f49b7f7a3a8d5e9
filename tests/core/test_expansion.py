"""Regressors as expansions: solved once, they predict what solving for each query predicts."""

import pytest
import torch

from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.core.expansion import Expansions, Points, Regressors, find_coefficients
from torchkrr.core.options import SolveOptions

KERNEL = kernels.Matern52(2.0)


def problem(dtype):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(*shape, generator=generator).to(dtype) for shape in ((6, 3), (40, 3), (40, 2)))


def as_points(x, kernel=KERNEL):
    return Points(x, kernel.embed(x))


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_expansion_is_the_local_regressor(dtype, trend):
    query, centers, values = problem(dtype)
    members = neighbors.nearest(query, centers, 12)
    options, scale = SolveOptions(KERNEL, 1e-3, trend), torch.ones(1, 2, dtype=dtype)
    found = find_coefficients(query, as_points(centers), values, members, scale=scale, options=options)
    expansions, numbers = Expansions(6, query.device), torch.arange(6)
    for part in (numbers[3:], numbers[:3]):  # in any order, and in several steps
        assert torch.equal(expansions.missing(numbers.repeat(2)), numbers[expansions.missing(numbers)])
        expansions.add(part, Regressors(found.table[part], found.wide[part]))
    assert len(expansions.missing(numbers)) == 0
    result = expansions.evaluate(as_points(query), as_points(centers), numbers, numbers, members, KERNEL)
    expected = F.local_kernel_ridge(query, centers, values, members, kernel=KERNEL, ridge=1e-3, trend=trend)
    assert result.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def test_large_coefficients_are_marked_for_float64():
    query, centers, values = problem(torch.float32)
    kernel, members = kernels.Gaussian(4.0), neighbors.nearest(query, centers, 30)
    scale = torch.ones(1, 2)
    smooth = SolveOptions(kernel, 1e-9)
    found = find_coefficients(query, as_points(centers, kernel), values, members, scale=scale, options=smooth)
    assert found.wide.all()
    kernel = kernels.Exponential(2.0)
    found = find_coefficients(
        query, as_points(centers, kernel), values, members, scale=scale, options=SolveOptions(kernel, 0.1)
    )
    assert not found.wide.any()
