"""Conditionally positive definite kernels: scipy's values and signs, their orders, their slopes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.interpolate import RBFInterpolator
from tests import reference
from tests.kernel_cases import CONDITIONAL, close
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from torchkrr import kernels

NAMES = {
    "linear": kernels.Linear,
    "thin_plate_spline": kernels.ThinPlateSpline,
    "cubic": kernels.Cubic,
    "quintic": kernels.Quintic,
    "multiquadric": kernels.Multiquadric,
    "inverse_quadratic": kernels.InverseQuadratic,
}
BOTH = {**{name: make for name, (_, make) in CONDITIONAL.items()}, "InverseQuadratic": kernels.InverseQuadratic}
ONCE = ("Linear", "ThinPlateSpline")  # their second derivatives jump or are infinite at zero


def monomials(x, degree):
    powers = [p for p in itertools.product(range(degree + 1), repeat=x.shape[1]) if sum(p) <= degree]
    return torch.stack([torch.stack([x[:, d] ** e for d, e in enumerate(p)]).prod(0) for p in powers], 1)


def smallest_eigenvalue(kernel, x, degree):
    """Of the kernel matrix, among coefficients that annihilate the polynomials of this degree."""
    gram = kernel(x, x)
    if degree < 0:
        return torch.linalg.eigvalsh(gram)[0]
    border = monomials(x, degree)
    basis = torch.linalg.qr(border, mode="complete").Q[:, border.shape[1] :]
    return torch.linalg.eigvalsh(basis.mT @ gram @ basis)[0]


@pytest.mark.parametrize("name", NAMES)
def test_values_and_signs_are_those_of_scipy(name):
    generator = np.random.default_rng(0)
    y, d, x = generator.normal(size=(15, 2)), generator.normal(size=15), generator.normal(size=(9, 2))
    # With smoothing the sign and the scale of a kernel matter.
    theirs = RBFInterpolator(y, d, kernel=name, epsilon=0.7, degree=2, smoothing=0.3)(x)
    kernel, centers, query = NAMES[name](1 / 0.7), torch.from_numpy(y), torch.from_numpy(x)
    border, at = monomials(centers, 2), monomials(query, 2)
    matrix = kernel(centers, centers) + 0.3 * torch.eye(15, dtype=torch.float64)
    saddle = torch.cat((torch.cat((matrix, border), 1), torch.cat((border.mT, torch.zeros(6, 6)), 1)))
    solved = torch.linalg.solve(saddle, torch.cat((torch.from_numpy(d), torch.zeros(6))))
    close(torch.cat((kernel(query, centers), at), 1) @ solved, theirs)


@pytest.mark.parametrize("name", BOTH)
def test_profile_formula(name):
    distance = torch.linspace(0, 3, 301, dtype=torch.float64)
    formula = {**reference.PROFILES, **reference.CONDITIONAL}[name]
    close(BOTH[name]().profile(distance), formula(distance.numpy()))


@pytest.mark.parametrize("name", BOTH)
def test_profile_at_zero_is_what_the_kernel_says(name):
    kernel = BOTH[name]()
    assert float(kernel.profile(torch.zeros(()))) == kernel.at_zero


@pytest.mark.parametrize("name", CONDITIONAL)
@pytest.mark.parametrize("features", [1, 2, 5])
def test_definite_with_the_trend_of_its_order_and_not_with_less(name, features):
    order, make = CONDITIONAL[name]
    assert make.order == order
    kernel, x = make(0.05), torch.rand(80, features, dtype=torch.float64)
    assert smallest_eigenvalue(kernel, x, order - 1) > 0
    assert smallest_eigenvalue(kernel, x, order) > 0
    assert smallest_eigenvalue(kernel, x, order - 2) < -0.1


def test_inverse_quadratic_is_positive_definite():
    assert kernels.InverseQuadratic.order == 0
    assert smallest_eigenvalue(kernels.InverseQuadratic(0.3), torch.rand(40, 3, dtype=torch.float64), -1) > 0


@pytest.mark.parametrize("name", BOTH)
def test_slope_is_the_derivative_of_the_profile(name):
    kernel = BOTH[name]()
    distance = torch.tensor([1e-3, 0.1, 0.4, 0.9, 1.0, 1.5, 4.0], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(kernel.profile(distance).sum(), distance)
    close(kernel.slope(distance.detach()), expected)
    close(kernel.slope_over_distance(distance.detach()) * distance.detach(), expected)
    assert gradcheck(kernel.slope_over_distance, (distance,))


@pytest.mark.parametrize("name", BOTH)
def test_derivatives_are_finite_where_points_coincide(name):
    a = torch.tensor([[0.1, 0.2, 0.0], [0.5, 0.1, 0.3]], dtype=torch.float64)
    moving = [a.clone().requires_grad_(), a.clone().requires_grad_()]
    kernel = BOTH[name](2.0)
    gradients = torch.autograd.grad(kernel(*moving).sum(), moving, create_graph=True)
    assert all(torch.isfinite(g).all() for g in gradients)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(sum(g.sin().sum() for g in gradients), moving))
    apart = [a, a + torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)]
    leaves = [x.clone().requires_grad_() for x in apart]
    assert gradcheck(kernel, leaves)
    assert gradgradcheck(kernel, leaves)
    if name not in ONCE:
        assert gradcheck(kernel, moving)


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")  # torch's own, on entering forward mode
def test_profiles_have_finite_derivatives_at_zero_in_forward_mode():
    for make in BOTH.values():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
            assert torch.isfinite(forward_ad.unpack_dual(make().profile(dual)).tangent).all()
