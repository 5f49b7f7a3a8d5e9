"""A dense problem that is factored once and kept."""

import pytest
import torch

from torchkrr import functional
from torchkrr.core.dense import DenseRegressor
from torchkrr.core.options import SolveOptions
from torchkrr.errors import RidgeRaisedWarning, SolveError
from torchkrr.kernels import Gaussian, Matern32

CENTERS = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
VALUES = torch.sin(5 * CENTERS)
QUERY = torch.rand(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("ridge", [0.1, 0.1 * torch.arange(1, 41)], ids=["one", "each"])
def test_it_says_what_the_functions_say(trend, ridge):
    choices = {"kernel": Matern32(0.5), "ridge": ridge, "trend": trend}
    kept = DenseRegressor(CENTERS, VALUES, SolveOptions(**choices))
    mean, power = kept.predict_with_power(QUERY)
    torch.testing.assert_close(mean, functional.kernel_ridge(QUERY, CENTERS, VALUES, **choices))
    torch.testing.assert_close(kept.predict(QUERY), mean)
    torch.testing.assert_close(power.sqrt(), functional.power_function(QUERY, CENTERS, **choices))
    torch.testing.assert_close(kept.weights(QUERY), functional.cardinal_weights(QUERY, CENTERS, **choices))
    inverse = kept.inverse()
    left_out = VALUES - kept.coefficients / inverse.diagonal().unsqueeze(1)
    torch.testing.assert_close(left_out, functional.leave_one_out(CENTERS, VALUES, **choices))
    torch.testing.assert_close(kept.inverse(15), inverse[25:, 25:])


def test_a_singular_system_gets_a_larger_ridge_with_a_warning_or_is_an_error():
    options = SolveOptions(Gaussian(10.0), 0.0, "constant")
    with pytest.warns(RidgeRaisedWarning, match="larger ridge"):
        kept = DenseRegressor(CENTERS, VALUES, options)
    raised = float(kept.problem.ridge)
    assert 0 < raised < 1e-8
    expected = functional.kernel_ridge(QUERY, CENTERS, VALUES, kernel=Gaussian(10.0), ridge=raised, trend="constant")
    torch.testing.assert_close(kept.predict(QUERY), expected, atol=1e-3, rtol=0)
    with pytest.raises(SolveError, match="cannot be solved in float64"):
        DenseRegressor(CENTERS, VALUES, options.but(on_singular="raise"))
