"""Kernels against scikit-learn and their formulas, and what a kernel must be: positive definite, smooth, never promoting."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import sklearn.gaussian_process.kernels as peers
import torch
from scipy.spatial.distance import cdist
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors, transforms

PEERS = {
    "Exponential": lambda scale: peers.Matern(scale, nu=0.5),
    "Matern32": lambda scale: peers.Matern(scale, nu=1.5),
    "Matern52": lambda scale: peers.Matern(scale, nu=2.5),
    "Gaussian": peers.RBF,
}
WENDLAND = [(dimension, smoothness) for dimension in (1, 2, 3, 5, 8) for smoothness in (0, 1, 2, 3)]
KERNELS = {
    "Exponential": kernels.Exponential,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "Gaussian": kernels.Gaussian,
    "RationalQuadratic": lambda *arguments, **choices: kernels.RationalQuadratic(*arguments, alpha=0.7, **choices),
    "InverseMultiquadric": kernels.InverseMultiquadric,
    **{
        f"Wendland{dimension}{smoothness}": lambda *arguments, _d=dimension, _s=smoothness, **choices: kernels.Wendland(
            *arguments, dimension=_d, smoothness=_s, **choices
        )
        for dimension, smoothness in WENDLAND
        if dimension >= 3
    },
}
PROFILES = {
    "Exponential": lambda d: np.exp(-d),
    "Matern32": lambda d: (1 + math.sqrt(3) * d) * np.exp(-math.sqrt(3) * d),
    "Matern52": lambda d: (1 + math.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-math.sqrt(5) * d),
    "Gaussian": lambda d: np.exp(-(d**2) / 2),
    "RationalQuadratic": lambda d: (1 + d**2 / 1.4) ** -0.7,
    "InverseMultiquadric": lambda d: 1 / np.sqrt(1 + d**2),
    # Wendland's own table; r = (1 - d)_+.
    "Wendland30": lambda d: np.maximum(1 - d, 0) ** 2,
    "Wendland31": lambda d: np.maximum(1 - d, 0) ** 4 * (4 * d + 1),
    "Wendland32": lambda d: np.maximum(1 - d, 0) ** 6 * (35 * d**2 + 18 * d + 3) / 3,
    "Wendland33": lambda d: np.maximum(1 - d, 0) ** 8 * (32 * d**3 + 25 * d**2 + 8 * d + 1),
    "Wendland50": lambda d: np.maximum(1 - d, 0) ** 3,
    "Wendland51": lambda d: np.maximum(1 - d, 0) ** 5 * (5 * d + 1),
    "Wendland52": lambda d: np.maximum(1 - d, 0) ** 7 * (16 * d**2 + 7 * d + 1),
}
# The limit of slope / distance at zero, by hand; where there is none the symmetric subgradient 0.
AT_ZERO = {
    "Exponential": 0.0,
    "Matern32": -3.0,
    "Matern52": -5 / 3,
    "Gaussian": -1.0,
    "RationalQuadratic": -1.0,
    "InverseMultiquadric": -1.0,
    "Wendland30": 0.0,
    "Wendland31": -20.0,
    "Wendland32": -56 / 3,
    "Wendland33": -22.0,
    "Wendland51": -30.0,
}
SMOOTH = [name for name in KERNELS if name != "Exponential" and not (name.startswith("Wendland") and name.endswith("0"))]


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), **tolerance)


@pytest.fixture
def points():
    return torch.randn(30, 3, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)


# --- values ---


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


@pytest.mark.parametrize("name", KERNELS)
def test_profile_falls(name):
    distance = torch.linspace(0, 0.999, 500, dtype=torch.float64)
    assert (KERNELS[name]().profile(distance).diff() < 0).all()


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


# --- positive definite ---


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


# --- slopes ---


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slope_is_the_derivative_of_the_profile(name, dtype):
    kernel = KERNELS[name]()
    distance = torch.tensor([1e-3, 0.1, 0.4, 0.9, 1.5, 4.0], dtype=dtype, requires_grad=True)
    (expected,) = torch.autograd.grad(kernel.profile(distance).sum(), distance)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    close(kernel.slope(distance.detach()), expected, **tolerance)
    close(kernel.slope_over_distance(distance.detach()) * distance.detach(), expected, **tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_derivative_of_the_slope(name):
    kernel = KERNELS[name]()
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
    if name in ("Gaussian", "RationalQuadratic", "InverseMultiquadric"):
        assert gradgradcheck(kernel, moving)


@pytest.mark.parametrize("name", ["Exponential", "Wendland30"])
def test_gradient_of_a_cusp_is_zero(name):
    x = torch.tensor([[0.3, 0.1]], requires_grad=True)
    KERNELS[name]()(x, x.detach()).sum().backward()
    assert torch.equal(x.grad, torch.zeros(1, 2))


# --- lengthscales ---


@pytest.mark.parametrize("name", KERNELS)
def test_lengthscale_of_each_feature_divides_that_feature(name, points):
    a, b = (p / 10 for p in points)
    scales = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    close(KERNELS[name](scales)(a, b), KERNELS[name]()(a / scales, b / scales))
    assert torch.equal(KERNELS[name](scales.tolist())(a, b), KERNELS[name](scales)(a, b))


@pytest.mark.parametrize("name", KERNELS)
def test_lengthscale_is_fixed_unless_learned(name):
    assert not list(KERNELS[name](2.0).parameters())
    learned = KERNELS[name](2.0, learn_lengthscale=True)
    assert [n for n, _ in learned.named_parameters()] == ["log_lengthscale"]
    assert set(learned.state_dict()) == set(KERNELS[name](2.0).state_dict())
    close(learned.lengthscale.detach(), 2.0)


@pytest.mark.parametrize("lengthscale", [1.0, [1.0, 3.0]], ids=["one", "each"])
@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_learned_lengthscale_stays_positive_under_huge_steps(lengthscale, direction):
    # A lengthscale learned as it is would be at -9 after the first step.
    kernel = kernels.Gaussian(lengthscale, learn_lengthscale=True)
    optimizer = torch.optim.SGD(kernel.parameters(), lr=10.0)
    for _ in range(3):
        optimizer.zero_grad()
        (direction * kernel.lengthscale.log().sum()).backward()
        optimizer.step()
    assert (kernel.lengthscale > 0).all()
    assert kernel.lengthscale.isfinite().all()
    assert kernel(torch.rand(3, 2), torch.rand(4, 2)).isfinite().all()


def test_learning_finds_the_lengthscale_that_made_the_values():
    x = torch.rand(60, 1, dtype=torch.float64) * 6
    gram = kernels.Matern32(0.7)(x, x) + 1e-6 * torch.eye(60, dtype=torch.float64)
    y = torch.linalg.cholesky(gram) @ torch.randn(60, 20, dtype=torch.float64)
    kernel = kernels.Matern32(5.0, learn_lengthscale=True)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (F.leave_one_out(x, y, kernel=kernel, ridge=1e-6) - y).square().mean().backward()
        optimizer.step()
    assert 0.5 < kernel.lengthscale.item() < 1.0


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("lengthscale", [1.5, [1.5, 0.7]], ids=["one", "each"])
def test_lengthscale_that_requires_grad_keeps_its_graph(name, lengthscale):
    source = torch.tensor(lengthscale, dtype=torch.float64, requires_grad=True)
    a, b = torch.rand(3, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)

    def matrix(source):
        return KERNELS[name](2 * source)(a, b)

    assert gradcheck(matrix, (source,))


def test_lengthscale_from_a_network_trains_it_through_both_regressors():
    x, y, z = torch.rand(12, 2), torch.rand(12, 1), torch.rand(3, 2)
    network = torch.nn.Linear(1, 2)
    kernel = kernels.Matern52(torch.nn.functional.softplus(network(torch.ones(1))))
    F.kernel_ridge(z, x, y, kernel=kernel, ridge=1e-3).sum().backward(retain_graph=True)
    dense = network.weight.grad.clone()
    assert dense.abs().sum() > 0
    network.zero_grad()
    indices = torch.arange(12).repeat(3, 1)
    F.local_kernel_ridge(z, x, y, indices, kernel=kernel, ridge=1e-3).sum().backward()
    close(network.weight.grad, dense, rtol=1e-3, atol=1e-4)


def test_learned_alpha_is_differentiable_and_positive():
    kernel = kernels.RationalQuadratic(alpha=0.7, learn_alpha=True, learn_lengthscale=True)
    assert {name for name, _ in kernel.named_parameters()} == {"log_alpha", "log_lengthscale"}
    a, b = torch.rand(3, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)

    def matrix(a, b, *parameters):
        return kernel(a, b)

    assert gradcheck(matrix, (a.requires_grad_(), b.requires_grad_(), *kernel.parameters()))
    optimizer = torch.optim.SGD([kernel.log_alpha], lr=50.0)
    kernel.alpha.log().backward()
    optimizer.step()
    assert kernel.alpha.item() > 0


# --- a kernel of one's own ---


class Cauchy(kernels.Kernel):
    def profile(self, distance):
        return 1 / (1 + distance.square())


class Power(kernels.Kernel):
    def __init__(self):
        super().__init__(1.2, learn_lengthscale=True)
        self.power = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def profile(self, distance):
        return (1 + distance.square()) ** -self.power.to(distance.dtype)


OWN = {"five lines": Cauchy, "with a parameter": Power}


@pytest.fixture
def small():
    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    return randn(3, 2), randn(7, 2), randn(7, 2)


def test_own_kernel_equals_the_library_one_with_that_profile(small):
    # 1 / (1 + d^2) is the rational quadratic of alpha 1 at lengthscale 1 / sqrt(2).
    query, centers, values = (tensor.detach() for tensor in small)
    ours, theirs = Cauchy(), kernels.RationalQuadratic(1 / math.sqrt(2), alpha=1.0)
    indices = neighbors.nearest(query, centers, 5)
    close(
        F.kernel_ridge(query, centers, values, kernel=ours),
        F.kernel_ridge(query, centers, values, kernel=theirs),
    )
    close(
        F.local_kernel_ridge(query, centers, values, indices, kernel=ours),
        F.local_kernel_ridge(query, centers, values, indices, kernel=theirs),
    )


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("local", [False, True], ids=["dense", "local"])
def test_own_kernel_has_right_derivatives(check, name, local, small):
    kernel = OWN[name]()
    indices = neighbors.nearest(small[0].detach(), small[1].detach(), 5)

    def predict(query, centers, values, *parameters):
        if local:
            return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-2)
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=1e-2)

    assert check(predict, (*small, *kernel.parameters()))


def test_own_kernel_has_finite_gradients_at_a_center(small):
    _, centers, values = (tensor.detach() for tensor in small)
    query = centers[:3].clone().requires_grad_()
    indices = neighbors.nearest(query.detach(), centers, 5)
    F.kernel_ridge(query, centers, values, kernel=Cauchy()).sum().backward()
    F.local_kernel_ridge(query, centers, values, indices, kernel=Cauchy()).sum().backward()
    assert query.grad.isfinite().all()


# --- dtypes and state ---


def standard() -> transforms.Transform:
    return transforms.StandardMean().fit(torch.rand(20, 3))


CONFIGURATIONS = {
    "plain": lambda make: make(1.7),
    "each": lambda make: make([1.7, 0.9, 1.1]),
    "learned": lambda make: make(1.7, learn_lengthscale=True),
    "transformed": lambda make: make(1.7, input_transform=standard()),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_data_are_never_promoted(name, configuration, dtype):
    kernel = CONFIGURATIONS[configuration](KERNELS[name])
    assert kernel.log_lengthscale.dtype == torch.float64
    x = torch.rand(5, 3).to(dtype)
    assert kernel.embed(x).dtype == dtype
    assert kernel(x, x).dtype == dtype
    distance = torch.rand(5, dtype=dtype)
    assert {f(distance).dtype for f in (kernel.profile, kernel.slope, kernel.slope_over_distance)} == {dtype}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_predictions_and_gradients_are_never_promoted(name, configuration):
    kernel = CONFIGURATIONS[configuration](KERNELS[name])
    query, centers, values = torch.rand(4, 3, requires_grad=True), torch.rand(9, 3), torch.rand(9, 2)
    indices = neighbors.nearest(query.detach(), centers, 5, kernel=kernel)
    for prediction in (
        F.kernel_ridge(query, centers, values, kernel=kernel, ridge=1e-3),
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-3),
    ):
        assert prediction.dtype == torch.float32
        query.grad = None
        prediction.sum().backward()
        assert query.grad.dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float64 for parameter in kernel.parameters())


@pytest.mark.parametrize("name", ["Exponential", "Gaussian", "Matern32", "RationalQuadratic"])
@pytest.mark.parametrize("convert", [lambda kernel: kernel, lambda kernel: kernel.double()], ids=["as made", "double"])
def test_double_precision_is_exact(name, convert):
    # 1.7 and 0.7 have no exact float32: one that passed through it is off by 1e-8.
    x = torch.linspace(0, 3, 50, dtype=torch.float64)[:, None]
    kernel = convert(KERNELS[name](1.7))
    expected = PROFILES[name](np.abs(x.numpy() - x.numpy().T) / 1.7)
    close(kernel(x, x), expected, rtol=1e-14, atol=1e-15)


def test_double_precision_of_fitted_statistics_is_exact():
    x = torch.rand(50, 3, dtype=torch.float64) / 3
    kernel = kernels.Gaussian(1.7, input_transform=transforms.StandardMean().fit(x))
    before = kernel.embed(x)
    assert torch.equal(copy.deepcopy(kernel).double().embed(x), before)
    reloaded = kernels.Gaussian(input_transform=transforms.StandardMean())
    reloaded.load_state_dict(kernel.state_dict())
    assert torch.equal(reloaded.embed(x), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_converting_a_module_and_back_does_not_round_its_kernel(dtype):
    kernel = kernels.Gaussian(1.7, input_transform=transforms.Standardize().fit(1000 + torch.rand(50, 2)))
    x = 1000 + torch.rand(5, 2, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(kernel).to(dtype).double().embed(x), kernel.embed(x))


@pytest.mark.parametrize("name", KERNELS)
def test_state_round_trip(name):
    kernel = KERNELS[name]([1.7, 0.3, 2.0], input_transform=standard())
    other = KERNELS[name](input_transform=transforms.StandardMean())
    other.load_state_dict(kernel.state_dict())
    x = torch.rand(4, 3)
    assert torch.equal(other(x, x), kernel(x, x))


def test_state_of_a_fixed_kernel_goes_into_a_learned_one_and_back():
    fixed, learned = kernels.Gaussian(3.0), kernels.Gaussian(1.0, learn_lengthscale=True)
    learned.load_state_dict(fixed.state_dict())
    assert isinstance(learned.log_lengthscale, torch.nn.Parameter)
    close(learned.lengthscale.detach(), 3.0)
    fixed.load_state_dict(kernels.Gaussian(0.5, learn_lengthscale=True).state_dict())
    close(fixed.lengthscale, 0.5)


def test_a_kernel_shows_its_choices():
    assert repr(kernels.Exponential(2.0)) == "Exponential(lengthscale=2)"
    assert repr(kernels.Gaussian([1.0, 2.0], learn_lengthscale=True)) == "Gaussian(lengthscale=(2 features), learned)"
    assert repr(kernels.Wendland(dimension=3)) == "Wendland(lengthscale=1, dimension=3, smoothness=1)"
    assert repr(kernels.RationalQuadratic(alpha=0.5)) == "RationalQuadratic(lengthscale=1, alpha=0.5)"


def test_default_kernel_is_exponential_on_standard_mean():
    x, new = torch.randn(30, 4), torch.randn(6, 4)
    embed = transforms.StandardMean().fit(x)
    expected = torch.exp(-torch.cdist(embed(new), embed(x)))
    close(kernels.default_kernel(x)(new, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", [2, 40])
def test_distances_between_close_points_far_from_the_origin(features):
    # The inner-product form in float32 would be off by more than the distance itself.
    base = torch.randn(1, features) * 100
    x = base + 1e-2 * torch.randn(20, features)
    exact = torch.exp(-torch.tensor(cdist(x.double().numpy(), x.double().numpy())))
    close(kernels.Exponential()(x, x), exact, rtol=1e-5, atol=1e-5)


def test_a_kernel_under_autocast_keeps_its_precision():
    a, b = 3 * torch.randn(20, 64), 3 * torch.randn(30, 64)
    kernel = kernels.Gaussian(10.0)
    with torch.autocast("cpu", torch.bfloat16):
        matrix = kernel(a, b)
    close(matrix, kernel(a, b))


def embedded(kernel: kernels.Kernel, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return kernel.embed(x)


def test_an_embedding_under_autocast_keeps_its_precision():
    kernel, x = kernels.Gaussian(input_transform=transforms.Linear(torch.randn(8, 16))), torch.randn(20, 16)
    close(embedded(kernel, x), kernel.embed(x))
