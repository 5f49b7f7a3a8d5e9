"""Ridge regression on features beside scikit-learn's, and leave-one-out beside refits."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from torchkrr.core import least_squares
from torchkrr.core.least_squares import RidgeSpectrum


def draw(count, features, outputs=2):
    generator = torch.Generator().manual_seed(count + features)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64) + 3
    y = x[:, :outputs].sin() + 0.1 * torch.randn(count, outputs, generator=generator, dtype=torch.float64)
    return x, y, torch.rand(count, generator=generator, dtype=torch.float64) * 2


def oracle(x, y, weights, ridge):
    return Ridge(alpha=ridge, solver="cholesky").fit(x.numpy(), y.numpy(), sample_weight=weights.numpy())


@pytest.mark.parametrize("shape", [(40, 5), (12, 30)])
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 100.0])
def test_the_fit_is_that_of_scikit_learn(shape, ridge):
    x, y, weights = draw(*shape)
    fit, expected = RidgeSpectrum(x, y, weights).solve(ridge), oracle(x, y, weights, ridge)
    query = torch.randn(7, shape[1], dtype=torch.float64)
    np.testing.assert_allclose(fit.predict(query).numpy(), expected.predict(query.numpy()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(40, 5), (12, 30)])
def test_left_out_residuals_are_those_of_refits(shape):
    x, y, weights = draw(*shape)
    left_out = RidgeSpectrum(x, y, weights).leave_one_out(0.7, most_leverage=1.0)
    for row in range(0, len(x), 5):
        others = torch.arange(len(x)) != row
        without = oracle(x[others], y[others], weights[others], 0.7)
        expected = y[row].numpy() - without.predict(x[row : row + 1].numpy())[0]
        np.testing.assert_allclose(left_out[row].numpy(), expected, rtol=1e-8, atol=1e-9)


def test_a_weight_of_two_is_a_row_given_twice_and_of_zero_a_row_left_out():
    x, y, _ = draw(30, 4)
    weights = torch.ones(30, dtype=torch.float64)
    weights[3], weights[8] = 2.0, 0.0
    rows = torch.tensor([row for row in range(30) if row != 8] + [3])
    one, other = RidgeSpectrum(x, y, weights).solve(0.3), RidgeSpectrum(x[rows], y[rows]).solve(0.3)
    torch.testing.assert_close(one.coefficients, other.coefficients)
    torch.testing.assert_close(one.intercept, other.intercept)


def test_leverage_is_capped():
    x, y, _ = draw(20, 3)
    x[0] = 1e6
    spectrum = RidgeSpectrum(x, y)
    residuals, leverages = spectrum.residuals(1e-6)
    assert leverages[0] > 0.99
    torch.testing.assert_close(spectrum.leave_one_out(1e-6)[0], 2 * residuals[0])


def test_blocks_of_features_made_as_they_are_used_change_nothing(monkeypatch):
    x, y, weights = draw(50, 6)
    whole = RidgeSpectrum(x, y, weights)
    monkeypatch.setattr(least_squares, "BLOCK", 7)
    blocks = RidgeSpectrum(lambda rows: x[rows], y, weights)
    torch.testing.assert_close(blocks.solve(0.1).coefficients, whole.solve(0.1).coefficients)
    torch.testing.assert_close(blocks.leave_one_out(0.1), whole.leave_one_out(0.1))


def test_directions_in_which_nothing_varies_count_for_nothing():
    x, y, _ = draw(30, 3)
    wide = torch.cat([x, x[:, :1], torch.ones(30, 1, dtype=torch.float64)], dim=1)
    fit = RidgeSpectrum(wide, y).solve(0.0)
    torch.testing.assert_close(fit.predict(wide), RidgeSpectrum(x, y).solve(0.0).predict(x))


def test_the_inverse_root_drops_what_is_rounding():
    x = draw(30, 4)[0]
    x = torch.cat((x, x[:7])).double()
    gram = x @ x.T
    root = least_squares.inverse_root(gram)
    # Features of the points themselves have the inner products of the matrix.
    torch.testing.assert_close(gram @ root @ (gram @ root).T, gram, rtol=1e-9, atol=1e-9)
    assert (root.abs().sum(0) > 0).sum() == 4


def test_the_inverse_is_that_of_the_moments():
    x, y, weights = draw(40, 5)
    centered = x - (weights @ x) / weights.sum()
    expected = torch.linalg.inv(centered.T @ (weights[:, None] * centered) + 0.3 * torch.eye(5, dtype=x.dtype))
    torch.testing.assert_close(RidgeSpectrum(x, y, weights).inverse(0.3), expected)
