"""The steps for `torch.func` and the operators for the compiler give what the plain call gives."""

import pytest
import torch

from torchkrr import kernels, neighbors
from torchkrr.core import dense, local, traced
from torchkrr.core.options import SolveOptions
from torchkrr.errors import RidgeRaisedWarning

KERNEL = kernels.Matern52(1.5)
LOCAL = {"operator": traced.symbolic_local, "steps": traced.transformed_local}
DENSE = {"operator": traced.symbolic_dense, "steps": traced.transformed_dense}


def problem():
    generator = torch.Generator().manual_seed(2)
    query, centers, values = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 2), (20, 2), (20, 3))
    )
    return query, centers, values, neighbors.nearest(query, centers, 8)


@pytest.mark.parametrize("kind", ["mean", "weights", "path"])
@pytest.mark.parametrize("way", LOCAL)
def test_a_local_problem(way, kind):
    options = SolveOptions(KERNEL, 1e-3)
    found, expected = (solve(*problem(), options, kind) for solve in (LOCAL[way], local.solve_local))
    torch.testing.assert_close(tuple(found), tuple(expected))


@pytest.mark.parametrize("kind", ["mean", "weights", "power", "leave_one_out", "norm"])
@pytest.mark.parametrize("way", DENSE)
def test_a_dense_problem(way, kind):
    query, centers, values, _ = problem()
    given = centers if kind in ("leave_one_out", "norm") else query
    options = SolveOptions(KERNEL, 1e-3)
    found, expected = (solve(kind, given, centers, values, options) for solve in (DENSE[way], dense.solve_dense))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", LOCAL)
def test_a_singular_cell_gets_the_same_larger_ridge(way):
    query, centers, values, indices = problem()
    centers[indices[0, 0]] = centers[indices[0, 1]]
    options = SolveOptions(KERNEL, 0.0)
    with pytest.warns(RidgeRaisedWarning):
        expected, _ = local.solve_local(query, centers, values, indices, options, "mean")
    with pytest.warns(RidgeRaisedWarning):
        found, _ = LOCAL[way](query, centers, values, indices, options, "mean")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)  # with so small a ridge, rounding is larger
