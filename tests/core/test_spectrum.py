"""Leave-one-out for many ridges from one eigendecomposition, beside the dense function and refits."""

import numpy as np
import pytest
import torch
from tests import reference

from torchkrr import functional
from torchkrr.core.spectrum import KernelSpectrum
from torchkrr.kernels import Exponential, Gaussian, Matern52

RIDGES = (1e-3, 0.1, 5.0)


def draw(count=40):
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    values = torch.stack((x[:, 0].sin(), x[:, 1] - 7), dim=1)
    return x, values, 0.3 + torch.rand(count, generator=generator, dtype=torch.float64) * 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize(
    "kernel", [Exponential(0.7), Gaussian(0.5), Matern52(1.5)], ids=lambda kernel: type(kernel).__name__
)
def test_residuals_are_those_of_the_dense_function_and_of_refits(kernel, trend, weighted):
    x, values, weights = draw()
    weights = weights if weighted else torch.ones_like(weights)
    with torch.no_grad():
        found = KernelSpectrum(kernel(x, x), weights, trend=trend).leave_one_out(values, RIDGES)
    assert found.shape == (40, 3, 2)
    for at, ridge in enumerate(RIDGES):
        choices = {"ridge": ridge / weights, "trend": "constant" if trend else None}
        dense = functional.leave_one_out(x, values, kernel=kernel, **choices)
        torch.testing.assert_close(values - found[:, at], dense, rtol=1e-8, atol=1e-8)
        rows, profile = np.arange(0, 40, 9), reference.PROFILES[type(kernel).__name__]
        choices["ridge"] = choices["ridge"].numpy()
        points = kernel.embed(x).numpy()
        refits = reference.leave_one_out(points, values.numpy(), profile=profile, rows=rows, **choices)
        np.testing.assert_allclose((values - found[:, at]).numpy()[rows], refits, atol=1e-7)


def test_a_ridge_that_float64_cannot_resolve_is_told():
    x = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    smooth = KernelSpectrum(Gaussian(2.0)(x, x), torch.ones(60, dtype=torch.float64))
    assert not smooth.resolves(1e-14)
    assert smooth.resolves(1e-6)
    rough = KernelSpectrum(Exponential(0.01)(x, x), torch.ones(60, dtype=torch.float64))
    assert rough.resolves(0.0)
    # A weight divides the ridge of its row.
    weights = torch.ones(60, dtype=torch.float64)
    weights[7] = 1e9
    assert not KernelSpectrum(Gaussian(2.0)(x, x), weights).resolves(1e-6)


def test_copies_of_a_row_predict_each_other():
    x, values, _ = draw(20)
    twice, twice_values = torch.cat((x, x[:1])), torch.cat((values, values[:1]))
    found = KernelSpectrum(Exponential()(twice, twice), torch.ones(21, dtype=torch.float64)).leave_one_out(
        twice_values, [1e-8]
    )
    assert float(found[[0, 20]].abs().max()) < 1e-6
    assert float(found[1:20].abs().max()) > 0.1
