"""Kernels against scikit-learn and their formulas: values, definiteness, slopes."""

from __future__ import annotations

import math

import pytest
import sklearn.gaussian_process.kernels as peers
import torch
from scipy.spatial.distance import cdist
from tests.kernel_cases import KERNELS, PROFILES, RADIAL, WENDLAND, close
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import kernels

PEERS = {
    "Exponential": lambda scale: peers.Matern(scale, nu=0.5),
    "Matern32": lambda scale: peers.Matern(scale, nu=1.5),
    "Matern52": lambda scale: peers.Matern(scale, nu=2.5),
    "Gaussian": peers.RBF,
}


# The limit of slope / distance at zero, by hand; where there is none the symmetric subgradient 0.
AT_ZERO = {
    "Exponential": 0.0,
    "Matern32": -3.0,
    "Matern52": -5 / 3,
    "Gaussian": -1.0,
    "RationalQuadratic": -1.0,
    "InverseMultiquadric": -1.0,
    "InverseQuadratic": -2.0,
    "Wendland30": 0.0,
    "Wendland31": -20.0,
    "Wendland32": -56 / 3,
    "Wendland33": -22.0,
    "Wendland51": -30.0,
}


SMOOTH = [name for name in KERNELS if name != "Exponential" and not (name.startswith("Wendland") and name.endswith("0"))]


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("lengthscale", [0.3, 1.0, 7.0, [0.5, 2.0, 9.0]], ids=str)
def test_kernel_is_that_of_scikit_learn(name, lengthscale, points):
    a, b = points
    close(KERNELS[name](lengthscale)(a, b), PEERS[name](lengthscale)(a.numpy(), b.numpy()))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0])
def test_rational_quadratic_is_that_of_scikit_learn(alpha, points):
    a, b = points
    expected = peers.RationalQuadratic(1.7, alpha)(a.numpy(), b.numpy())
    close(kernels.RationalQuadratic(1.7, alpha=alpha)(a, b), expected)


@pytest.mark.parametrize("name", PROFILES)
def test_profile_formula(name):
    distance = torch.linspace(0, 3, 301, dtype=torch.float64)
    close(KERNELS[name]().profile(distance), PROFILES[name](distance.numpy()))


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_its_profile_of_the_distance_of_embedded_points(name, points):
    a, b = (p / 4 for p in points)
    kernel = KERNELS[name](1.3)
    expected = kernel.profile(torch.tensor(cdist(a.numpy() / 1.3, b.numpy() / 1.3)))
    close(kernel(a, b), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_of_a_point_with_itself_is_one_and_less_elsewhere(name, points):
    a, _ = points
    for x in (a, a.float(), a.float() + 1000):
        matrix = KERNELS[name](5.0)(x, x)
        assert torch.equal(matrix.diagonal(), torch.ones(30, dtype=x.dtype))
        close(matrix, matrix.mT)
        off_diagonal = matrix[~torch.eye(30, dtype=torch.bool)]
        assert (off_diagonal >= 0).all()
        assert (off_diagonal < 1).all()


@pytest.mark.parametrize("name", RADIAL)
def test_profile_falls(name):
    distance = torch.linspace(0, 0.999, 500, dtype=torch.float64)
    assert (RADIAL[name]().profile(distance).diff() < 0).all()


@pytest.mark.parametrize(("dimension", "smoothness"), WENDLAND)
def test_wendland_is_zero_outside_its_support(dimension, smoothness):
    kernel = kernels.Wendland(2.0, dimension=dimension, smoothness=smoothness)
    values = kernel(torch.zeros(1, 1), torch.tensor([[0.0], [1.9], [2.0], [2.1], [1e6]]))
    assert torch.equal(values > 0, torch.tensor([[True, True, False, False, False]]))


@pytest.mark.parametrize("name", KERNELS)
def test_leading_dimensions_broadcast(name):
    a, b = torch.rand(4, 1, 5, 2), torch.rand(3, 6, 2)
    matrix = KERNELS[name]()(a, b)
    assert matrix.shape == (4, 3, 5, 6)
    close(matrix[2, 1], KERNELS[name]()(a[2, 0], b[1]))


@pytest.mark.parametrize("name", [name for name in KERNELS if not name.startswith("Wendland")])
@pytest.mark.parametrize("features", [1, 3, 10])
def test_gram_matrices_are_positive_definite(name, features):
    x = torch.rand(60, features, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(KERNELS[name](0.3)(x, x))
    # Smooth kernels have eigenvalues below the rounding error of the matrix, of either sign.
    assert eigenvalues.min() > -1e-13
    assert eigenvalues.max() > 1


@pytest.mark.parametrize(("dimension", "smoothness"), WENDLAND)
def test_wendland_is_positive_definite_up_to_its_dimension(dimension, smoothness):
    x = torch.rand(80, dimension, dtype=torch.float64)
    # A support that holds many points but not all.
    kernel = kernels.Wendland(0.8 * math.sqrt(dimension), dimension=dimension, smoothness=smoothness)
    assert torch.linalg.eigvalsh(kernel(x, x)).min() > -1e-13


def test_wendland_beyond_its_dimension_would_not_be_positive_definite():
    # Why more features than `dimension` is an error: the profile for one dimension on a grid in five.
    kernel = kernels.Wendland(dimension=1, smoothness=0)
    grid = torch.cartesian_prod(*[torch.arange(3, dtype=torch.float64)] * 5)
    matrix = kernel.profile(torch.cdist(grid, grid) / 1.9)
    assert torch.linalg.eigvalsh(matrix).min() < -0.1


@pytest.mark.parametrize("name", RADIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slope_is_the_derivative_of_the_profile(name, dtype):
    kernel = RADIAL[name]()
    distance = torch.tensor([1e-3, 0.1, 0.4, 0.9, 1.5, 4.0], dtype=dtype, requires_grad=True)
    (expected,) = torch.autograd.grad(kernel.profile(distance).sum(), distance)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    close(kernel.slope(distance.detach()), expected, **tolerance)
    close(kernel.slope_over_distance(distance.detach()) * distance.detach(), expected, **tolerance)


@pytest.mark.parametrize("name", RADIAL)
def test_derivative_of_the_slope(name):
    kernel = RADIAL[name]()
    # The second derivative of some Wendland functions jumps at 1: keep away from it.
    distance = torch.tensor([0.05, 0.3, 0.8, 1.3], dtype=torch.float64, requires_grad=True)
    assert gradcheck(kernel.slope, (distance,))
    assert gradcheck(kernel.slope_over_distance, (distance,))


@pytest.mark.parametrize("name", AT_ZERO)
def test_slope_over_distance_at_zero_is_its_limit(name):
    kernel = KERNELS[name]()
    close(kernel.slope_over_distance(torch.zeros((), dtype=torch.float64)), AT_ZERO[name])
    if name in SMOOTH:
        close(kernel.slope_over_distance(torch.tensor(1e-7, dtype=torch.float64)), AT_ZERO[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_slope_at_zero_is_its_limit_from_the_right(name):
    at_zero = KERNELS[name]().slope(torch.zeros((), dtype=torch.float64))
    close(at_zero, KERNELS[name]().slope(torch.tensor(1e-12, dtype=torch.float64)), rtol=1e-9, atol=1e-9)
    assert (at_zero == 0) == (name in SMOOTH)


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_where_points_coincide(name):
    # Two of the three pairs of equal points sit on each other, which finite differences then pull apart.
    a = torch.tensor([[0.1, 0.2, 0.0], [0.5, 0.1, 0.3]], dtype=torch.float64)
    kernel = KERNELS[name](2.0)
    moving = [a.clone().requires_grad_(), a.clone().requires_grad_()]
    assert gradcheck(kernel, moving)
    # Wendland's third derivative and Matern 3/2's jump at zero, so that second differences there are only of first order.
    if name in ("Gaussian", "RationalQuadratic", "InverseMultiquadric", "InverseQuadratic"):
        assert gradgradcheck(kernel, moving)


@pytest.mark.parametrize("name", ["Exponential", "Wendland30"])
def test_gradient_of_a_cusp_is_zero(name):
    x = torch.tensor([[0.3, 0.1]], requires_grad=True)
    KERNELS[name]()(x, x.detach()).sum().backward()
    assert torch.equal(x.grad, torch.zeros(1, 2))
