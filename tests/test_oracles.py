"""Independent implementations agree: scikit-learn, scipy, refits. Float64, error below 1e-9."""

import numpy as np
import pytest
import torch
from scipy.interpolate import RBFInterpolator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.kernel_ridge import KernelRidge

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(n, d, generator=generator, dtype=torch.float64) for n, d in ((60, 5), (200, 5), (200, 3)))


@pytest.mark.parametrize(
    ("kernel", "oracle", "ridge", "tolerance"),
    [
        pytest.param(kernels.Exponential(1.3), Matern(1.3, nu=0.5), 1e-9, 1e-9, id="exponential"),
        pytest.param(kernels.Matern32(1.3), Matern(1.3, nu=1.5), 1e-9, 1e-9, id="matern32"),
        pytest.param(kernels.Matern52(1.3), Matern(1.3, nu=2.5), 1e-9, 1e-9, id="matern52"),
        pytest.param(kernels.Gaussian(1.3), RBF(1.3), 1e-6, 1e-7, id="gaussian"),
    ],
)
def test_dense_mean_and_power_function_are_those_of_a_gaussian_process(data, kernel, oracle, ridge, tolerance):
    query, centers, values = data
    process = GaussianProcessRegressor(oracle, alpha=ridge, optimizer=None).fit(centers.numpy(), values.numpy())
    mean, std = process.predict(query.numpy(), return_std=True)
    ours = F.kernel_ridge(query, centers, values, kernel=kernel, ridge=ridge)
    assert np.abs(ours.numpy() - mean).max() < tolerance
    power = F.power_function(query, centers, kernel=kernel, ridge=ridge)
    assert np.abs(power.numpy() - std[:, 0]).max() < tolerance


@pytest.mark.parametrize("ridge", [1e-2, 1e-6])
def test_dense_mean_is_that_of_kernel_ridge(data, ridge):
    query, centers, values = data
    # scikit-learn's Laplacian kernel uses the 1-norm; the Gaussian one is common ground.
    oracle = KernelRidge(kernel="rbf", gamma=0.5 / 1.3**2, alpha=ridge).fit(centers.numpy(), values.numpy())
    ours = F.kernel_ridge(query, centers, values, kernel=kernels.Gaussian(1.3), ridge=ridge)
    assert np.abs(ours.numpy() - oracle.predict(query.numpy())).max() < (1e-9 if ridge > 1e-3 else 1e-7)


@pytest.mark.parametrize("num_neighbors", [1, 10, 50])
def test_local_gaussian_is_that_of_scipy(data, num_neighbors):
    query, centers, values = data
    oracle = RBFInterpolator(
        centers.numpy(),
        values.numpy(),
        neighbors=num_neighbors,
        kernel="gaussian",
        epsilon=1 / (2**0.5 * 0.8),
        degree=-1,
        smoothing=1e-6,
    )
    kernel = kernels.Gaussian(0.8)
    indices = neighbors.nearest(query, centers, num_neighbors, kernel=kernel)
    ours = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-6)
    assert np.abs(ours.numpy() - oracle(query.numpy())).max() < 1e-9


@pytest.mark.parametrize("trend", [None, "constant"])
def test_leave_one_out_equals_refits(data, trend):
    _, centers, values = data
    kernel = kernels.Exponential(1.3)
    closed = F.leave_one_out(centers, values, kernel=kernel, trend=trend)
    for i in range(0, len(centers), 7):
        rest = torch.arange(len(centers)) != i
        refit = F.kernel_ridge(centers[i : i + 1], centers[rest], values[rest], kernel=kernel, trend=trend)
        torch.testing.assert_close(closed[i : i + 1], refit, rtol=0, atol=1e-9)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", [kernels.Exponential(1.3), kernels.Matern52(0.7)], ids=["exponential", "matern52"])
def test_path_equals_separate_solves(data, kernel, trend):
    query, centers, values = data
    indices = neighbors.nearest(query, centers, 40, kernel=kernel)
    means, powers = F.local_path(query, centers, values, indices, kernel=kernel, trend=trend)
    for m in (1, 2, 7, 40):
        first = indices[:, :m]
        mean = F.local_kernel_ridge(query, centers, values, first, kernel=kernel, trend=trend)
        power = F.local_power_function(query, centers, first, kernel=kernel, trend=trend)
        torch.testing.assert_close(means[:, m - 1], mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(powers[:, m - 1], power, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "choices", [{}, {"trend": "constant"}, {"fade": True}, {"fade": True, "trend": "constant"}], ids=str
)
def test_explained_weights_times_values_are_the_prediction(data, choices):
    query, centers, values = data
    layer = nn.LocalKernelRidge(centers, values, 20, **choices)
    explanation = layer.explain(query)
    rebuilt = (explanation.weights[..., None] * values[explanation.indices]).sum(-2)
    torch.testing.assert_close(rebuilt, layer(query), rtol=0, atol=1e-9)


@pytest.mark.parametrize("sizes", [(2, 9), (9, 2)], ids=["fewer queries than outputs", "fewer outputs than queries"])
@pytest.mark.parametrize("trend", [None, "constant"])
def test_dense_result_does_not_depend_on_which_side_is_solved(data, sizes, trend):
    query, centers, values = data
    queries, outputs = sizes
    query, values = query[:queries], values[:, :1].repeat(1, outputs) + torch.arange(outputs)
    kernel = kernels.Exponential(1.3)
    weights = F.cardinal_weights(query, centers, kernel=kernel, trend=trend)
    ours = F.kernel_ridge(query, centers, values, kernel=kernel, trend=trend)
    torch.testing.assert_close(ours, weights @ values, rtol=0, atol=1e-9)
