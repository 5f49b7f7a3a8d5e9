"""`RBFInterpolator` against scipy's, its derivatives, and what it does beyond scipy."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import scipy.interpolate
import torch
from scipy.stats.qmc import Halton
from tests import reference
from torch.autograd import gradcheck, gradgradcheck

import torchkrr
from torchkrr import neighbors
from torchkrr.core import tails
from torchkrr.errors import InputError, KernelRidgeError, RidgeRaisedWarning
from torchkrr.interpolate import RBFInterpolator, SingularError, rbf
from torchkrr.interpolate.arguments import KERNELS, POWERS

PROFILES = {
    "thin_plate_spline": reference.thin_plate_spline,
    "linear": reference.linear,
    "cubic": reference.cubic,
    "quintic": reference.quintic,
    "multiquadric": reference.multiquadric,
    "inverse_multiquadric": reference.inverse_multiquadric,
    "inverse_quadratic": reference.inverse_quadratic,
    "gaussian": lambda d: np.exp(-(d**2)),
}
ILL_CONDITIONED = 1e8
kernels = pytest.mark.parametrize("kernel", KERNELS)
ways = pytest.mark.parametrize("count", [None, 14], ids=["dense", "local"])


def franke(x):
    a, b = x[:, 0], x[:, 1]
    bumps = 0.75 * np.exp(-((9 * a - 2) ** 2 + (9 * b - 2) ** 2) / 4)
    bumps = bumps + 0.75 * np.exp(-((9 * a + 1) ** 2) / 49 - (9 * b + 1) / 10)
    bumps = bumps + 0.5 * np.exp(-((9 * a - 7) ** 2 + (9 * b - 3) ** 2) / 4)
    return bumps - 0.2 * np.exp(-((9 * a - 4) ** 2) - (9 * b - 7) ** 2)


def scattered(seed=0, count=80, features=2):
    rng = np.random.default_rng(seed)
    y, x = rng.random((count, features)), rng.random((9, features))
    return y, np.sin(4 * y.sum(1)) + y[:, 0], x


def condition(y, kernel, epsilon, smoothing, degree):
    """Of the bordered system in coordinates of size one."""
    half = np.ptp(y, axis=0).max() / 2
    scaled = (y - y.mean(0)) / half
    if kernel in POWERS:
        shape, smoothing = 1.0, np.asarray(smoothing) / (epsilon * half) ** POWERS[kernel]
    else:
        shape = epsilon * half
    matrix = PROFILES[kernel](reference.distances(scaled, scaled) * shape) + np.diag(np.broadcast_to(smoothing, len(y)))
    return np.linalg.cond(reference.saddle_point(matrix, reference.polynomials(scaled, degree if degree >= 0 else None)))


def test_random_problems_are_solved_as_by_scipy(capsys):
    """200 problems: to 1e-8 of the largest prediction, or ill-conditioned; those are printed with their condition number."""
    ill, reported = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        kernel, features = list(KERNELS)[seed % len(KERNELS)], int(rng.integers(1, 6))
        degree = max(KERNELS[kernel].order - 1, -1) + int(rng.integers(0, 2))
        size = max(40, 2 * (tails.num_monomials(features, degree) if degree >= 0 else 0))
        count = int(rng.integers(size, size + 60))
        y, x = Halton(features, seed=seed).random(count), Halton(features, seed=seed + 1).random(20)
        d = np.sin(4 * y.sum(1)) + 0.1 * rng.normal(size=count)
        epsilon = float(count ** (1 / features) * rng.uniform(0.7, 2))
        smoothing = [0.0, 0.0, 1e-3, rng.random(count) / 10][int(rng.integers(4))]
        near = [None, None, min(count - 1, size)][int(rng.integers(3))]
        choices = {"kernel": kernel, "epsilon": epsilon, "degree": degree, "smoothing": smoothing, "neighbors": near}
        rows = [np.arange(count)] if near is None else reference.nearest(x, y, near)
        sites = np.broadcast_to(smoothing, count)
        worst = max(condition(y[row], kernel, epsilon, sites[row], degree) for row in rows)
        expected = scipy.interpolate.RBFInterpolator(y, d, **choices)(x)
        if worst > ILL_CONDITIONED:
            ill += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("warnings.warn", lambda *args, **kwargs: None)
                error = np.abs(RBFInterpolator(y, d, **choices)(x) - expected).max() / np.abs(expected).max()
            reported.append(
                f"{kernel}, degree {degree}, D {features}, N {count}: condition {worst:.0e}, differs by {error:.0e}"
            )
        else:
            found = RBFInterpolator(y, d, **choices)(x)
            assert np.abs(found - expected).max() <= 1e-8 * np.abs(expected).max(), choices
    with capsys.disabled():
        print(f"\n{200 - ill} problems as by scipy to 1e-8; {ill} ill-conditioned:", *reported, sep="\n  ")
    assert ill < 60


@kernels
@ways
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_in_everything(kernel, count, check):
    y, d, x = (torch.from_numpy(array) for array in scattered(count=20))
    values = torch.stack((d, d.cos()), 1)
    epsilon, smoothing = torch.tensor(3.0, dtype=torch.float64), torch.full((20,), 0.1, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (x[:2], y, values, epsilon, smoothing)]

    def interpolate(x, y, d, epsilon, smoothing):
        return RBFInterpolator(y, d, count, smoothing, kernel, epsilon)(x)

    assert check(interpolate, leaves, fast_mode=True, atol=1e-4)


@kernels
@ways
def test_a_fixed_interpolant_has_derivatives_in_the_query(kernel, count):
    y, d, x = (torch.from_numpy(array) for array in scattered())
    f = RBFInterpolator(y, d, count, kernel=kernel, epsilon=4.0, smoothing=1e-3)
    assert gradcheck(f, x.clone().requires_grad_())
    slope = f.derivative(x)
    for feature in range(2):
        move = torch.eye(2, dtype=torch.float64)[feature] * 1e-6
        torch.testing.assert_close(slope[:, feature], (f(x + move) - f(x - move)) / 2e-6, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(
        RBFInterpolator(y.numpy(), d.numpy(), count, 1e-3, kernel, 4.0).derivative(x.numpy()), slope
    )


@ways
def test_a_tensor_that_learns_may_be_used_again_and_again(count):
    y, d, x = (torch.from_numpy(array) for array in scattered())
    epsilon = torch.tensor(2.0, requires_grad=True)
    f = RBFInterpolator(y, d.requires_grad_(), count, 0.1, "gaussian", epsilon)
    gradients = [torch.autograd.grad(f(x).square().sum(), (epsilon, d)) for _ in range(2)]
    assert torch.equal(gradients[0][0], gradients[1][0])
    with torch.no_grad():
        epsilon.fill_(3.0)
    assert not torch.equal(torch.autograd.grad(f(x).square().sum(), epsilon)[0], gradients[0][0])


@ways
def test_trailing_dimensions_and_complex_values_are_so_many_problems(count):
    y, d, x = scattered()
    values = np.stack([d, d**2, 1j * d, d - 2j * d, 0 * d, np.cos(d)], 1).reshape(-1, 2, 3)
    found = RBFInterpolator(y, values, count)(x)
    assert found.shape == (9, 2, 3)
    np.testing.assert_allclose(found, scipy.interpolate.RBFInterpolator(y, values, count)(x), rtol=1e-8, atol=1e-8)
    slope = RBFInterpolator(y, values, count).derivative(x)
    assert slope.shape == (9, 2, 3, 2)
    np.testing.assert_allclose(slope[:, 0, 2], 1j * RBFInterpolator(y, d, count).derivative(x), rtol=1e-7, atol=1e-7)
    tensors = RBFInterpolator(torch.from_numpy(y), torch.from_numpy(values), count)(torch.from_numpy(x))
    np.testing.assert_array_equal(tensors, found)


@ways
def test_arrays_give_float64_arrays_and_tensors_their_dtype(count):
    y, d, x = scattered()
    single = RBFInterpolator(y.astype(np.float32), d.astype(np.float32), count)(x.astype(np.float32))
    assert type(single) is np.ndarray
    assert single.dtype == np.float64
    tensors = [torch.from_numpy(array).float() for array in (y, d, x)]
    found = RBFInterpolator(*tensors[:2], count)(tensors[2])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, single, rtol=1e-3, atol=1e-3)
    wide = RBFInterpolator(tensors[0], tensors[1].double(), count)(tensors[2])
    assert wide.dtype == torch.float64
    assert RBFInterpolator(y, d, count)(torch.from_numpy(x)).dtype == torch.float64
    whole = RBFInterpolator([[0], [1], [3]], [1, 2, 3], kernel="linear")([[2]])
    np.testing.assert_allclose(whole, [2.5])


@kernels
@ways
def test_no_query_gives_no_prediction(kernel, count):
    y, d, x = scattered()
    f = RBFInterpolator(y, np.stack([d, d], 1), count, kernel=kernel, epsilon=4.0)
    assert f(x[:0]).shape == (0, 2)
    assert f.derivative(x[:0]).shape == (0, 2, 2)


@pytest.mark.parametrize("degree", [-1, 0])
@ways
def test_a_degree_that_is_too_low_is_solved_as_by_scipy(degree, count):
    y, d, x = scattered()
    choices = {"kernel": "thin_plate_spline", "epsilon": 2.0, "smoothing": 0.3, "degree": degree, "neighbors": count}
    with pytest.warns(UserWarning, match="should not be below") if degree == 0 else np.errstate():
        ours = RBFInterpolator(y, d, **choices)
        theirs = scipy.interpolate.RBFInterpolator(y, d, **choices)
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-7, atol=1e-8)
    for call in (lambda: ours(x, return_std=True), lambda: RBFInterpolator(y, d, fade=True, **choices | {"degree": -1})):
        with pytest.raises(InputError, match="Leave `degree` at its default"):
            call()


def test_the_standard_deviation_is_that_of_kriging():
    y, d, x = scattered(count=30)
    mean, deviation = RBFInterpolator(y, d, kernel="cubic", smoothing=0.01)(x, return_std=True)
    half = (y.max(0) - y.min(0)).max() / 2
    scaled, at, ridge = y / half, x / half, 0.01 / half**3
    border = reference.polynomials(scaled, 1)
    saddle = reference.saddle_point(reference.cubic(reference.distances(scaled, scaled)) + ridge * np.eye(30), border)
    alpha = np.linalg.solve(saddle, np.append(d, np.zeros(3)))[:30]
    power = reference.power_function(at, scaled, profile=reference.cubic, ridge=ridge, trend=1)
    np.testing.assert_allclose(deviation, power * np.sqrt(d @ alpha / (30 - 3)), rtol=1e-6)
    np.testing.assert_array_equal(mean, RBFInterpolator(y, d, kernel="cubic", smoothing=0.01)(x))
    # The scale of a neighborhood of all sites but one is nearly that of all.
    near = RBFInterpolator(y, d, 29, kernel="cubic", smoothing=0.01)(x, return_std=True)[1]
    np.testing.assert_allclose(near, deviation, rtol=0.3)


@ways
def test_the_standard_deviation_has_the_unit_of_the_data_and_covers_errors(count):
    y, d, x = scattered(count=400)
    x = np.random.default_rng(1).random((500, 2))
    truth = np.sin(4 * x.sum(1)) + x[:, 0]
    noisy = d + 0.1 * np.random.default_rng(2).normal(size=400)
    f = RBFInterpolator(y, noisy, count and 60, 1e-2, "linear")
    mean, deviation = f(x, return_std=True)
    assert 0.5 < np.abs((mean - truth) / deviation).mean() < 1.5 or np.mean(np.abs(mean - truth) < 2 * deviation) > 0.9
    scaled = RBFInterpolator(y, 10 * noisy, count and 60, 1e-2, "linear")(x, return_std=True)[1]
    np.testing.assert_allclose(scaled, 10 * deviation, rtol=1e-8)
    both = RBFInterpolator(y, noisy + 1j * noisy, count and 60, 1e-2, "linear")(x, return_std=True)[1]
    np.testing.assert_allclose(both, np.sqrt(2) * deviation, rtol=1e-8)


@ways
def test_pickles_and_files_predict_the_same(count, tmp_path):
    y, d, x = scattered()
    values = np.stack([d, 1j * d], 1)
    f = RBFInterpolator(y, values, count, np.full(80, 1e-3), "multiquadric", 3.0, index=neighbors.ExactIndex())
    torchkrr.save(f, tmp_path / "f.krr")
    for again in (pickle.loads(pickle.dumps(f)), torchkrr.load(tmp_path / "f.krr")):
        np.testing.assert_array_equal(again(x), f(x))
        assert type(again(x)) is np.ndarray
        assert repr(again) == repr(f)
        np.testing.assert_array_equal(again.derivative(x), f.derivative(x))
    tensors = RBFInterpolator(torch.from_numpy(y), torch.from_numpy(d).requires_grad_(), count, fade=count is not None)
    torchkrr.save(tensors, tmp_path / "f.krr")
    again = torchkrr.load(tmp_path / "f.krr")
    torch.testing.assert_close(again(torch.from_numpy(x)), tensors(torch.from_numpy(x)).detach(), rtol=1e-9, atol=1e-9)
    assert again.fade is (count is not None)


def test_fading_makes_an_interpolant_of_neighbors_continuous():
    y, d, _ = scattered(count=300)

    def largest_step(f, count):
        line = np.linspace(0.2, 0.8, count)[:, None] * [1.0, 0.7]
        return np.abs(np.diff(f(line))).max()

    faded, plain = RBFInterpolator(y, d, 20, fade=True), RBFInterpolator(y, d, 20)
    assert largest_step(faded, 16001) < 0.6 * largest_step(faded, 8001)
    assert largest_step(plain, 16001) > 0.9 * largest_step(plain, 8001)
    np.testing.assert_allclose(faded(y), d, atol=1e-8)


def test_data_sites_in_a_file_are_read_block_by_block(tmp_path, monkeypatch):
    y, d, x = scattered(count=3000)
    np.save(tmp_path / "y.npy", y)
    mapped = np.load(tmp_path / "y.npy", mmap_mode="r")
    expected = RBFInterpolator(y, d, 20)(x)
    monkeypatch.setattr(rbf, "memory_size", lambda: 1000)
    f = RBFInterpolator(mapped, d, 20)
    assert f._layer.index.streams
    np.testing.assert_allclose(f(x), expected, rtol=1e-9, atol=1e-9)
    assert f._layer.centers.data_ptr() == mapped.ctypes.data  # no copy


@pytest.mark.parametrize(
    "index",
    [neighbors.ExactIndex(), neighbors.StreamedIndex(), neighbors.TreeIndex()],
    ids=lambda index: type(index).__name__,
)
def test_every_index_finds_the_same(index):
    y, d, x = scattered(count=2500)
    np.testing.assert_allclose(RBFInterpolator(y, d, 20, index=index)(x), RBFInterpolator(y, d, 20)(x), rtol=1e-9, atol=1e-9)


def test_repeated_sites_with_different_values_and_no_smoothing_are_named():
    y, d, x = scattered()
    y[70] = y[3]
    for count in (None, 20):
        with pytest.raises(np.linalg.LinAlgError, match=r"Rows 3 and 70 of `y` are one place, \[.*different values in `d`"):
            RBFInterpolator(y, d, count)
        smoothed = RBFInterpolator(y, d, count, smoothing=0.1)(x)
        np.testing.assert_allclose(smoothed, scipy.interpolate.RBFInterpolator(y, d, count, 0.1)(x), rtol=1e-8, atol=1e-8)
        one = np.where(np.arange(80) == 70, 0.1, 0.0)
        assert np.isfinite(RBFInterpolator(y, d, count, one)(x)).all()
    with pytest.raises(KernelRidgeError):
        RBFInterpolator(y, d)


@pytest.mark.filterwarnings("ignore::torchkrr.errors.RidgeRaisedWarning")
def test_repeated_sites_with_equal_values_are_interpolated():
    y, d, x = scattered()
    y, d = np.concatenate((y, y[:1])), np.concatenate((d, d[:1]))
    np.testing.assert_allclose(RBFInterpolator(y, d)(x), RBFInterpolator(y[:-1], d[:-1])(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(SingularError, match="cannot be solved in float64"):
        RBFInterpolator(y, d, on_singular="raise")


def test_an_ill_conditioned_system_is_warned_of():
    y = np.linspace(0, 1, 60)[:, None]
    with pytest.warns(RidgeRaisedWarning):
        f = RBFInterpolator(y, np.sin(y[:, 0]), kernel="gaussian", epsilon=0.5)
    np.testing.assert_allclose(f(y + 0.001), np.sin(y[:, 0] + 0.001), atol=1e-5)


@pytest.mark.parametrize("count", [None, 5])
def test_sites_on_a_line_are_what_scipy_calls_a_rank_error(count):
    y = np.linspace(0, 1, 12)[:, None] * [1.0, 2.0]
    with pytest.raises(np.linalg.LinAlgError, match="does not have full column rank"):
        RBFInterpolator(y, y[:, 0], count)(y)


def test_several_threads_interpolate_at_a_time():
    y, d, x = scattered(count=300)
    for count in (None, 20):
        f, results = RBFInterpolator(y, d, count), []
        threads = [threading.Thread(target=lambda f=f, out=results: out.append(f(x))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        for result in results:
            np.testing.assert_array_equal(result, f(x))


def test_a_prediction_does_not_depend_on_how_queries_are_chunked():
    y, d, _ = scattered(count=200)
    x = np.random.default_rng(1).random((3000, 2))
    for count in (None, 20):
        f = RBFInterpolator(y, d, count)
        np.testing.assert_allclose(f(x)[::50], np.concatenate([f(row[None]) for row in x[::50]]), rtol=1e-9, atol=1e-9)


def test_what_was_given_is_there_to_read():
    y, d, _ = scattered()
    f = RBFInterpolator(y, 1j * d, np.inf, kernel="CUBIC")
    np.testing.assert_array_equal(f.y, y)
    np.testing.assert_array_equal(f.d, 1j * d)
    assert (f.neighbors, f.kernel, f.epsilon, f.degree, f.smoothing) == (80, "cubic", 1.0, 1, 0.0)
    assert repr(f) == "RBFInterpolator(80 data sites in 2 dimensions, kernel='cubic', degree=1, neighbors=80)"
    assert torch.is_tensor(RBFInterpolator(torch.from_numpy(y), d).y)


def test_frankes_function_is_found():
    y, x = Halton(2, seed=0).random(400), Halton(2, seed=1).random(300)
    for choices in ({}, {"neighbors": 30}, {"neighbors": 30, "fade": True}):
        assert np.abs(RBFInterpolator(y, franke(y), **choices)(x) - franke(x)).max() < 0.03
