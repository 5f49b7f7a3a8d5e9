"""Bordered systems: monomials, their frame, solves and derivatives against the saddle-point system itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacrev, vmap

from torchkrr import kernels
from torchkrr.core import tails

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


def system(rows=9, features=2, degree=1, *, batch=(), seed=0, kernel=None):
    """A, P and a unit, of a kernel that is conditionally positive definite of order 2."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*batch, rows, features, generator=generator, dtype=torch.float64)
    kernel = kernels.ThinPlateSpline() if kernel is None else kernel
    return kernel(x, x) + 1e-2 * torch.eye(rows), tails.monomials(x, degree), torch.ones(batch, dtype=torch.float64)


def saddle(matrix, border):
    zeros = torch.zeros(*matrix.shape[:-2], *(border.shape[-1],) * 2, dtype=matrix.dtype)
    return torch.cat((torch.cat((matrix, border), -1), torch.cat((border.mT, zeros), -1)), -2)


def bordered(matrix, border, unit):
    return tails.bordered(matrix, border, unit, torch.zeros_like(unit))


@pytest.mark.parametrize("features", [1, 2, 3, 5])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_monomials_are_all_products_up_to_the_degree_once(features, degree):
    x = torch.rand(4, features, dtype=torch.float64)
    powers = [p for p in itertools.product(range(degree + 1), repeat=features) if sum(p) <= degree]
    expected = torch.stack([torch.stack([x[:, f] ** e for f, e in enumerate(p)]).prod(0) for p in powers], 1)
    found = tails.monomials(x, degree)
    assert found.shape[1] == tails.num_monomials(features, degree) == len(powers)
    torch.testing.assert_close(found.sort(1).values, expected.sort(1).values)
    assert torch.equal(found[:, 0], torch.ones(4, dtype=torch.float64))


def test_coordinates_of_a_frame_are_of_size_one_wherever_the_members_are():
    x = torch.rand(6, 10, 3, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e9]) + torch.tensor([1.0, 1e6, -1e12])
    found = tails.frame_of(x).coordinates(x)
    torch.testing.assert_close(found.abs().amax(-2), torch.ones(6, 3, dtype=torch.float64))
    torch.testing.assert_close(found.mean(-2), torch.zeros(6, 3, dtype=torch.float64), atol=1e-4, rtol=0)


def test_a_coordinate_that_members_share_up_to_rounding_is_none():
    x = torch.rand(8, 2, dtype=torch.float64)
    x[:, 1] = torch.tensor([0.1 + 0.2, 0.3] * 4, dtype=torch.float64)
    found = tails.frame_of(x).coordinates(x)
    assert torch.equal(found[:, 1], torch.zeros(8, dtype=torch.float64))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("degree", [1, 2])
def test_solve_is_that_of_the_saddle_point_system(batch, degree):
    matrix, border, unit = system(degree=degree, batch=batch)
    rhs = torch.randn(*batch, 9 + border.shape[-1], 2, dtype=torch.float64)
    found = bordered(matrix, border, unit)
    assert bool(found.sound.all())
    assert bool(found.determined.all())
    expected = torch.linalg.solve(saddle(matrix, border), rhs)
    torch.testing.assert_close(found.solve(rhs), expected, rtol=1e-9, atol=1e-9)
    above = torch.linalg.solve(saddle(matrix, border), torch.cat((rhs[..., :9, :], torch.zeros_like(rhs[..., 9:, :])), -2))
    torch.testing.assert_close(found.solve(rhs[..., :9, :]), above, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_upper_left_block_of_the_inverse_does_not_depend_on_the_unit(unit):
    matrix, border, _ = system()
    found = bordered(matrix, border, torch.tensor(unit, dtype=torch.float64))
    expected = torch.linalg.inv(saddle(matrix, border))[:9, :9]
    torch.testing.assert_close(found.complement_inverse(), expected, rtol=1e-8, atol=1e-8)


def test_as_many_members_as_monomials_leave_nothing_but_the_polynomial():
    matrix, border, unit = system(rows=3)
    rhs = torch.cat((torch.randn(3, 1, dtype=torch.float64), torch.zeros(3, 1)))
    solved = bordered(matrix, border, unit).solve(rhs)
    torch.testing.assert_close(solved[:3], torch.zeros(3, 1, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(border @ solved[3:], rhs[:3])


@pytest.mark.parametrize("rows", [2, 9])
def test_where_the_polynomial_is_not_determined_it_is_that_of_the_smallest_norm(rows):
    generator = torch.Generator().manual_seed(1)
    line = torch.rand(rows, 1, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0]) + 0.3
    matrix = kernels.ThinPlateSpline()(line, line) + 1e-2 * torch.eye(rows)
    border, values = tails.monomials(line, 1), torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    found = bordered(matrix, border, torch.ones((), dtype=torch.float64))
    assert not bool(found.determined)
    solved = found.solve(values)
    alpha, beta = solved[:rows], solved[rows:]
    torch.testing.assert_close(border.mT @ alpha, torch.zeros(3, 1, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(matrix @ alpha + border @ beta, values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(beta, torch.linalg.pinv(border) @ (values - matrix @ alpha), rtol=1e-8, atol=1e-9)


def test_a_kernel_that_is_not_definite_on_the_complement_is_not_sound():
    matrix, border, unit = system(degree=0, kernel=kernels.ThinPlateSpline(0.05))
    assert not bool(bordered(matrix, border, unit).sound)
    assert bool(torch.isfinite(bordered(matrix, border, unit).solve(torch.ones(9, 1, dtype=torch.float64))).all())


def test_float32_leaves_badly_conditioned_monomials_to_float64():
    x = torch.rand(12, 2, dtype=torch.float64)
    x[:, 1] = x[:, 0] + 1e-5 * x[:, 1]
    for dtype, expected in ((torch.float64, True), (torch.float32, False)):
        matrix, border = kernels.Gaussian()(x, x).to(dtype) + torch.eye(12, dtype=dtype), tails.monomials(x, 1).to(dtype)
        assert bool(bordered(matrix, border, torch.ones((), dtype=dtype)).determined) is expected


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_in_matrix_border_and_right_hand_side(check):
    matrix, border, unit = system(rows=6)
    rhs = torch.randn(6 + 3, 2, dtype=torch.float64)

    def solve(matrix, border, rhs):
        return bordered(0.5 * (matrix + matrix.mT), border, unit).solve(rhs)

    assert check(solve, [x.clone().requires_grad_() for x in (matrix, border, rhs)])


def test_vmap_and_jacobians_are_those_of_a_loop():
    matrix, border, unit = system(rows=6, batch=(4,))
    rhs = torch.randn(4, 9, 1, dtype=torch.float64)

    def solve(matrix, border, rhs):
        return bordered(matrix, border, unit[0]).solve(rhs)

    each = torch.stack([solve(*parts) for parts in zip(matrix, border, rhs, strict=True)])
    torch.testing.assert_close(vmap(solve)(matrix, border, rhs), each)
    slopes = torch.stack([jacrev(solve, argnums=1)(*parts) for parts in zip(matrix, border, rhs, strict=True)])
    torch.testing.assert_close(vmap(jacrev(solve, argnums=1))(matrix, border, rhs), slopes)


def test_needed_members_are_those_without_which_the_rest_lies_on_a_line():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
    found = bordered(kernels.ThinPlateSpline()(x, x), tails.monomials(x, 1), torch.ones((), dtype=torch.float64))
    assert found.needed().tolist() == [False, False, False, True]
    assert bordered(*system()).needed() is None
