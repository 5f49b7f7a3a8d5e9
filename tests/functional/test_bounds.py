"""The error bound holds on functions whose norm is known: finite expansions in the kernel."""

import numpy as np
import pytest
import torch

from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.core import dense
from torchkrr.errors import InputError, RidgeRaisedWarning, ShapeError, SolveError
from torchkrr.functional import bounds

KERNELS = [kernels.Exponential(1.2), kernels.Matern32(1.2), kernels.Matern52(1.2), kernels.Gaussian(0.6)]


def expansion(kernel, outputs=1):
    """A function of the kernel's space, and its norm."""
    roots, coefficients = torch.randn(25, 3, dtype=torch.float64), torch.randn(25, outputs, dtype=torch.float64)
    norm = (coefficients * (kernel(roots, roots) @ coefficients)).sum(0).sqrt()
    return (lambda z: kernel(z, roots) @ coefficients), norm


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_bounds_hold_at_every_point(kernel):
    f, norm = expansion(kernel)
    centers, query = torch.randn(80, 3, dtype=torch.float64), 1.5 * torch.randn(400, 3, dtype=torch.float64)
    # The ridge adds an error of its own, below this slack.
    slack = 1e-6
    dense = F.kernel_ridge(query, centers, f(centers), kernel=kernel, ridge=1e-12)
    bound = F.error_bound(query, centers, kernel=kernel, norm=norm.squeeze(), ridge=1e-12)
    assert ((dense - f(query)).abs().squeeze() <= bound + slack).all()
    indices = neighbors.nearest(query, centers, 15, kernel=kernel)
    local = F.local_kernel_ridge(query, centers, f(centers), indices, kernel=kernel, ridge=1e-12)
    local_bound = F.local_error_bound(query, centers, indices, kernel=kernel, norm=norm.squeeze(), ridge=1e-12)
    assert ((local - f(query)).abs().squeeze() <= local_bound + slack).all()


@pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda kernel: type(kernel).__name__)
def test_bound_is_attained(kernel):
    # The residual of k(., z) vanishes on the centers, so it is interpolated by zero: nothing is worse at z.
    centers, z = torch.randn(30, 3, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    weights = F.cardinal_weights(z, centers, kernel=kernel, ridge=0.0)
    roots, coefficients = torch.cat((z, centers)), torch.cat((torch.ones(1, 1).double(), -weights), 1).T
    norm = (coefficients * (kernel(roots, roots) @ coefficients)).sum().sqrt()
    f_at_z = (kernel(z, roots) @ coefficients).squeeze()
    fitted = F.kernel_ridge(z, centers, kernel(centers, roots) @ coefficients, kernel=kernel, ridge=0.0).squeeze()
    bound = F.error_bound(z, centers, kernel=kernel, norm=norm, ridge=0.0).squeeze()
    torch.testing.assert_close((f_at_z - fitted).abs(), bound, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_local_indicator_is_never_below_the_dense_one(kernel):
    centers, query = torch.randn(80, 3, dtype=torch.float64), torch.randn(200, 3, dtype=torch.float64)
    dense = F.power_function(query, centers, kernel=kernel)
    for num_neighbors in (1, 10, 40):
        indices = neighbors.nearest(query, centers, num_neighbors, kernel=kernel)
        assert (F.local_power_function(query, centers, indices, kernel=kernel) >= dense - 1e-7).all()


def test_indicator_uses_the_norm_of_the_fit_and_stays_below_the_bound():
    kernel = KERNELS[0]
    f, norm = expansion(kernel, outputs=2)
    centers, query = torch.randn(60, 3, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64)
    indicator = F.error_indicator(query, centers, f(centers), kernel=kernel)
    assert (F.rkhs_norm(centers, f(centers), kernel=kernel) <= norm * (1 + 1e-6)).all()
    for c in range(2):
        assert (indicator[:, c] <= F.error_bound(query, centers, kernel=kernel, norm=norm[c]) * (1 + 1e-6)).all()


def test_local_norm_sums_each_cell_once():
    kernel = KERNELS[0]
    centers, values = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    cells = torch.tensor([[0, 1, 2], [2, 1, 0], [5, 6, 7], [0, 1, 2]])  # the first, second and fourth are one cell
    parts = [F.rkhs_norm(centers[row], values[row], kernel=kernel).square() for row in (cells[0], cells[2])]
    torch.testing.assert_close(F.local_rkhs_norm(centers, values, cells, kernel=kernel).square(), sum(parts))
    everyone = torch.arange(20).expand(4, -1)
    torch.testing.assert_close(
        F.local_rkhs_norm(centers, values, everyone, kernel=kernel), F.rkhs_norm(centers, values, kernel=kernel)
    )


def test_local_norm_takes_a_ridge_for_each_center():
    kernel, ridge = KERNELS[0], torch.rand(20, dtype=torch.float64)
    centers, values = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    cells = torch.tensor([[0, 1, 2], [9, 6, 7]])
    parts = [F.rkhs_norm(centers[row], values[row], kernel=kernel, ridge=ridge[row]).square() for row in cells]
    torch.testing.assert_close(F.local_rkhs_norm(centers, values, cells, kernel=kernel, ridge=ridge).square(), sum(parts))
    with pytest.raises(ShapeError, match=r"ridge must be .* or have shape \(20,\), got shape \(3,\)"):
        F.local_rkhs_norm(centers, values, cells, kernel=kernel, ridge=ridge[:3])


def test_local_norm_builds_no_more_cells_at_a_time_than_fit(monkeypatch):
    centers, values = torch.randn(200, 2, dtype=torch.float64), torch.randn(200, 3, dtype=torch.float64)
    cells = neighbors.nearest(centers, centers, 10)
    expected = F.local_rkhs_norm(centers, values, cells, kernel=KERNELS[0])
    built, norm_squared = [], dense.norm_squared
    counted = {**dense.EVALUATE, "norm": lambda problem: built.append(len(problem.centers)) or norm_squared(problem)}
    monkeypatch.setattr(dense, "EVALUATE", counted)
    monkeypatch.setattr(bounds, "SEARCH_BYTES", 100_000)
    torch.testing.assert_close(F.local_rkhs_norm(centers, values, cells, kernel=KERNELS[0]), expected)
    assert len(built) > 1
    assert max(built) * 10 * 10 * 8 < 100_000


def test_local_norm_under_autocast_takes_centers_in_half():
    centers, values = torch.randn(20, 2).bfloat16(), torch.randn(20, 3)
    cells = torch.arange(20).view(4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = F.local_rkhs_norm(centers, values, cells, kernel=KERNELS[0])
    assert torch.equal(found, F.local_rkhs_norm(centers.float(), values, cells, kernel=KERNELS[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.1, 1e6])
def test_a_constant_has_no_norm_beside_a_trend(dtype, constant):
    centers, values = torch.rand(20, 2).to(dtype), torch.full((20, 1), constant, dtype=dtype)
    choices = {"kernel": kernels.Exponential(), "trend": "constant", "on_singular": "raise"}
    tiny = 20 * torch.finfo(dtype).eps * constant
    assert float(F.rkhs_norm(centers, values, **choices)) <= tiny
    assert float(F.local_rkhs_norm(centers, values, torch.arange(20).view(2, 10), **choices)) <= tiny


def test_conflicting_values_beside_a_trend_are_still_singular():
    centers, values = torch.tensor([[0.0], [0.0], [1.0]]).double(), torch.tensor([[1.0], [1.001], [1.0]]).double()
    with pytest.raises(SolveError):
        F.rkhs_norm(centers, values, kernel=KERNELS[0], ridge=1e-15, trend="constant", on_singular="raise")


@pytest.mark.parametrize(
    "bound",
    [
        lambda x, **choices: F.error_bound(x, x, norm=1.0, **choices),
        lambda x, **choices: F.local_error_bound(x, x, torch.tensor([[0, 1]]).expand(3, -1), norm=1.0, **choices),
        lambda x, **choices: F.error_indicator(x, x, torch.ones_like(x), **choices),
    ],
    ids=["error_bound", "local_error_bound", "error_indicator"],
)
def test_bounds_on_repeated_centers_warn_or_raise(bound):
    centers = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    with pytest.warns(RidgeRaisedWarning):
        assert bool(bound(centers, kernel=KERNELS[0], ridge=0.0).isfinite().all())
    with pytest.raises(SolveError, match="cannot be solved in float64"):
        bound(centers, kernel=KERNELS[0], ridge=0.0, on_singular="raise")


def test_norm_must_be_positive():
    x = torch.zeros(1, 1)
    with pytest.raises(InputError, match="norm must be positive"):
        F.error_bound(x, x, kernel=KERNELS[0], norm=-1.0)


def test_bounds_hold_with_a_trend():
    kernel = KERNELS[0]
    f, norm = expansion(kernel)
    centers, query = torch.randn(80, 3, dtype=torch.float64), 1.5 * torch.randn(400, 3, dtype=torch.float64)
    choices = {"kernel": kernel, "ridge": 1e-12, "trend": "constant"}
    error = (F.kernel_ridge(query, centers, f(centers), **choices) - f(query)).abs().squeeze()
    bound = F.error_bound(query, centers, norm=norm.squeeze(), **choices)
    assert (error <= bound + 1e-6).all()
    assert (bound > F.error_bound(query, centers, norm=norm.squeeze(), kernel=kernel, ridge=1e-12)).all()
    indices = neighbors.nearest(query, centers, 15, kernel=kernel)
    error = (F.local_kernel_ridge(query, centers, f(centers), indices, **choices) - f(query)).abs().squeeze()
    assert (error <= F.local_error_bound(query, centers, indices, norm=norm.squeeze(), **choices) + 1e-6).all()


def test_a_ridge_of_numpy_is_a_number():
    x = torch.randn(5, 2)
    power = F.power_function(x, x, kernel=KERNELS[0], ridge=np.float32(0.5))
    torch.testing.assert_close(power, F.power_function(x, x, kernel=KERNELS[0], ridge=0.5))
