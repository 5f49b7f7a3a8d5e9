"""Scales against loops, intervals against counts."""

import math

import pytest
import torch

import torchkrr
from torchkrr import kernels, tuning
from torchkrr.errors import InputError, InputTypeError

CHOICES = {"kernel": kernels.Exponential(0.5), "ridge": 0.05, "trend": "constant"}


def noisy(count, seed=0, *, uneven=False):
    """A wave with noise; `uneven` noise is ten times larger on the right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    size = torch.where(x > 0.5, 1.0, 0.1) if uneven else torch.tensor(0.2)
    return x, torch.sin(6 * x) + size * torch.randn(count, 1, generator=generator, dtype=torch.float64)


def covered(interval, y):
    return float(((interval.lower <= y) & (y <= interval.upper)).double().mean())


def test_global_scale_and_scores_by_hand():
    x, y = noisy(60)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 10, **CHOICES)
    found = tuning.calibrate(layer, scale="global")
    left_out = tuning.local_leave_one_out(x, y, 10, **CHOICES)
    squares = variances = 0.0
    for mean, power, value in zip(left_out.means[:, 0], left_out.powers, y[:, 0], strict=True):
        squares += float(mean - value) ** 2
        variances += float(power) ** 2 + 0.05
    scale = math.sqrt(squares / variances)
    assert float(found.scale) == pytest.approx(scale)
    scores = sorted(
        abs(float(m - v)) / (scale * math.sqrt(float(p) ** 2 + 0.05))
        for m, p, v in zip(left_out.means[:, 0], left_out.powers, y[:, 0], strict=True)
    )
    torch.testing.assert_close(found.scores[:, 0], torch.tensor(scores, dtype=torch.float64))
    # The smallest number of standard deviations that holds ceil(61 * 0.9) = 55 of 60 residuals.
    assert float(found.quantile(0.9)) == pytest.approx(scores[54])
    z = torch.rand(7, 1, dtype=torch.float64)
    torch.testing.assert_close(found.std(z), scale * layer.power_function(z)[:, None])
    half = scores[54] * scale * (layer.power_function(z).square() + 0.05).sqrt()[:, None]
    interval = found.interval(z)
    torch.testing.assert_close(interval.upper - interval.mean, half)
    torch.testing.assert_close(interval.mean - interval.lower, half)


def test_cell_scale_by_hand():
    x, y = noisy(60, uneven=True)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 10, **CHOICES)
    found = tuning.calibrate(layer, scale="cell")
    left_out = tuning.local_leave_one_out(x, y, 10, **CHOICES)
    residual, spread = (left_out.means - y).abs()[:, 0], (left_out.powers.square() + 0.05).sqrt()
    z = torch.rand(7, 1, dtype=torch.float64)
    for row, indices in zip(found.std(z, observation=True), layer.neighbors(z), strict=True):
        top = sum(float(residual[j]) for j in indices) + 3 * float(residual.mean())
        bottom = sum(float(spread[j]) for j in indices) + 3 * float(spread.mean())
        expected = math.sqrt(math.pi / 2) * top / bottom
        position = int((found.std(z, observation=True) == row).nonzero()[0, 0])
        power = float(layer.power_function(z)[position])
        assert float(row) == pytest.approx(expected * math.sqrt(power**2 + 0.05))


def test_a_row_takes_no_part_in_its_own_scale():
    x, y = noisy(60)
    wild = y.clone()
    wild[5] += 1e3
    before, after = (tuning.local_leave_one_out(x, v, 10, **CHOICES) for v in (y, wild))
    assert not bool((before.neighbor_indices[5] == 5).any())
    layer = torchkrr.nn.LocalKernelRidge(x, wild, 10, **CHOICES)
    scores = tuning.calibrate(layer, scale="cell").scores
    residual = float((after.means[5] - wild[5]).abs())
    assert float(scores.max()) > 5  # were it part of its scale, it could not stand out so
    assert residual > 900


def test_scale_is_that_of_a_gaussian_process():
    """Values drawn from the process itself, times three."""
    x = torch.rand(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = kernels.Exponential(0.5)
    gram = kernel(x, x) + 0.05 * torch.eye(400, dtype=torch.float64)
    draws = torch.randn(400, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = 3 * torch.linalg.cholesky(gram) @ draws
    layer = torchkrr.nn.LocalKernelRidge(x, y, 30, kernel=kernel, ridge=0.05)
    for scale in ("global", "cell"):
        found = tuning.calibrate(layer, scale=scale)
        z = torch.linspace(0.05, 0.95, 50, dtype=torch.float64)[:, None]
        size = found.std(z, observation=True) / (layer.power_function(z).square() + 0.05).sqrt()[:, None]
        assert float(size.mean()) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("scale", ["global", "cell"])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_jackknife_coverage(scale, coverage):
    shares = []
    for seed in range(10):
        x, y = noisy(400, seed, uneven=True)
        layer = torchkrr.nn.LocalKernelRidge(x, y, 20, **CHOICES)
        fresh = noisy(500, 100 + seed, uneven=True)
        shares.append(covered(tuning.calibrate(layer, scale=scale).interval(fresh[0], coverage), fresh[1]))
    assert sum(shares) / 10 == pytest.approx(coverage, abs=0.03)


def test_split_conformal_keeps_its_promise_for_a_bad_kernel():
    shares = []
    for seed in range(40):
        x, y = noisy(60, seed)
        held = noisy(39, 1000 + seed)  # ceil(40 * 0.9) = 36
        layer = torchkrr.nn.LocalKernelRidge(x, y, 5, kernel=kernels.Gaussian(5.0), ridge=1e-3)
        found = tuning.calibrate(layer, *held, scale="global")
        fresh = noisy(200, 2000 + seed)
        shares.append(covered(found.interval(fresh[0], 0.9), fresh[1]))
    # Coverage is 36 / 40 exactly, on average; the mean of 40 draws of it has a standard error of about 0.008.
    assert 0.87 < sum(shares) / 40 < 0.93


def test_cells_make_intervals_narrow_where_there_is_little_noise():
    x, y = noisy(800, uneven=True)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 20, **CHOICES)
    z = torch.tensor([[0.25], [0.75]], dtype=torch.float64)
    widths = {s: (i := tuning.calibrate(layer, scale=s).interval(z)).upper - i.lower for s in ("global", "cell")}
    assert widths["cell"][1] > 4 * widths["cell"][0]
    assert widths["global"][1] < 1.5 * widths["global"][0]


def test_too_few_residuals_give_infinite_limits():
    x, y = noisy(30)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 5, **CHOICES)
    interval = tuning.calibrate(layer, *noisy(5, 1)).interval(x[:2], 0.9)
    assert bool(torch.isinf(interval.upper).all())


def test_several_outputs_have_their_own_scale():
    x, y = noisy(200)
    layer = torchkrr.nn.LocalKernelRidge(x, torch.cat((y, 10 * y), 1), 20, **CHOICES)
    interval = tuning.calibrate(layer).interval(x[:3] + 0.01)
    width = interval.upper - interval.lower
    torch.testing.assert_close(width[:, 1], 10 * width[:, 0])


def test_duplicates_without_ridge_give_finite_intervals():
    x, y = noisy(50)
    layer = torchkrr.nn.LocalKernelRidge(torch.cat((x, x)), torch.cat((y, y)), 10, kernel=kernels.Exponential(), ridge=1e-6)
    interval = tuning.calibrate(layer).interval(torch.rand(5, 1, dtype=torch.float64))
    assert bool(torch.isfinite(interval.lower).all())


def test_bad_input():
    x, y = noisy(40)
    layer = torchkrr.nn.LocalKernelRidge(x, y, 5, **CHOICES)
    found = tuning.calibrate(layer)
    for wrong in (90, 0.0, -0.5, torch.tensor(0.9)):
        with pytest.raises(InputError, match=r"coverage must be a number between 0 and 1, such as 0\.9, got "):
            found.interval(x, wrong)
        with pytest.raises(InputError, match=r"coverage must be a number between 0 and 1, such as 0\.9, got "):
            found.quantile(wrong)
    with pytest.raises(InputError, match="Give query and values together"):
        tuning.calibrate(layer, x)
    with pytest.raises(InputError, match="scale must be one of 'global', 'cell', got 'local'"):
        tuning.calibrate(layer, scale="local")
    with pytest.raises(InputTypeError, match=r"layer must be a torchkrr\.nn\.LocalKernelRidge, got Linear"):
        tuning.calibrate(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("scale", ["global", "cell"])
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.append(layer.centers[:1] + 0.1, layer.values[:1]),
        lambda layer: layer.remove(torch.tensor([3])),
        lambda layer: layer.values.mul_(100),
        lambda layer: layer.centers[:1].add_(0.1),
        lambda layer: setattr(layer, "ridge", 0.5),
        lambda layer: layer.kernel.log_lengthscale.add_(1.0),
    ],
)
def test_a_layer_that_changed_must_be_calibrated_again(change, scale):
    x, y = noisy(40)
    layer = torchkrr.nn.LocalKernelRidge(x.clone(), y.clone(), 5, **{**CHOICES, "kernel": kernels.Exponential(0.5)})
    found = tuning.calibrate(layer, scale=scale)
    found.interval(x)
    change(layer)
    with pytest.raises(InputError, match=r"The layer has changed since it was calibrated\. Calibrate it again"):
        found.interval(x)
    assert tuning.calibrate(layer, scale=scale).interval(x).lower.shape == x.shape


@pytest.mark.parametrize("scale", ["global", "cell"])
def test_residuals_that_are_all_zero(scale):
    """One output is zero throughout, as for a class without examples."""
    x, y = noisy(60)
    layer = torchkrr.nn.LocalKernelRidge(x, torch.cat((y, 0 * y), 1), 10, **CHOICES)
    found = tuning.calibrate(layer, scale=scale)
    assert bool((found.interval(x).lower[:, 1] == 0).all())
    assert bool(torch.isinf(found.interval(x, 0.999).upper).all())
    held = noisy(200, 5)
    fresh = torch.cat(
        (held[1], 100 * torch.randn(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))), 1
    )
    interval = tuning.calibrate(layer, held[0], fresh, scale=scale).interval(held[0])
    assert 0.89 < covered(interval, fresh) < 0.92


def test_a_learned_ridge_is_no_cause_for_a_warning():
    x, y = noisy(60)
    ridge = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    found = tuning.calibrate(torchkrr.nn.LocalKernelRidge(x, y, 10, **{**CHOICES, "ridge": ridge}))
    expected = tuning.calibrate(torchkrr.nn.LocalKernelRidge(x, y, 10, **CHOICES))
    torch.testing.assert_close(found.std(x[:5]).detach(), expected.std(x[:5]))


def test_half_precision_is_calibrated_in_full():
    x, y = noisy(80)
    layer = torchkrr.nn.LocalKernelRidge(x.half(), (1000 * y).half(), 10, kernel=kernels.Exponential(0.5), ridge=0.05)
    for scale in ("global", "cell"):
        interval = tuning.calibrate(layer, scale=scale).interval(x.half())
        assert interval.lower.dtype == torch.float16
        assert bool(torch.isfinite(interval.upper).all())
        assert bool((interval.lower < interval.upper).all())
