"""`normalize="cell"`: distances relative to the root mean square distance of the neighborhood to its query."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from tests import reference
from torch.autograd import gradcheck, gradgradcheck

import torchkrr
from torchkrr import functional as F
from torchkrr import kernels, neighbors

TRENDS_AND_FADES = list(itertools.product([None, "constant"], [False, True]))
KERNELS = {
    "exponential": lambda: kernels.Exponential(1.3, learn_lengthscale=True).double(),
    "gaussian": lambda: kernels.Gaussian(1.3, learn_lengthscale=True).double(),
    "rational_quadratic": lambda: kernels.RationalQuadratic(
        1.3, alpha=0.7, learn_alpha=True, learn_lengthscale=True
    ).double(),
}


def by_hand(function, query, centers, *arguments, fade, **choices):
    """The reference, query by query, on points divided by the size of the neighborhood."""
    *values, indices = (argument.detach().numpy() for argument in arguments)
    rows = []
    for z, row in zip(query.detach().numpy(), indices, strict=True):
        x = centers.detach().numpy()
        members = x[row[:-1] if fade else row]
        size = np.sqrt(((members - z) ** 2).sum(-1).mean())
        rows.append(function(z[None] / size, x / size, *values, row[None], fade=fade, **choices)[0])
    return torch.tensor(np.stack(rows))


@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
def test_every_function_against_the_reference(small, trend, fade):
    query, centers, values, _, indices = small
    # The lengthscale scales the distances and their root mean square alike, so it cancels.
    ours = {"kernel": kernels.Exponential(1.3), "ridge": 1e-3, "trend": trend, "fade": fade, "normalize": "cell"}
    theirs = {"profile": lambda d: np.exp(-d), "ridge": 1e-3, "trend": trend, "fade": fade}
    for name, arguments in {
        "local_kernel_ridge": (values, indices),
        "local_cardinal_weights": (indices,),
        "local_power_function": (indices,),
    }.items():
        expected = by_hand(getattr(reference, name), query, centers, *arguments, **theirs)
        torch.testing.assert_close(getattr(F, name)(query, centers, *arguments, **ours).detach(), expected)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_the_prediction(small, name, trend, fade, check):
    query, centers, values, ridge, indices = small
    kernel = KERNELS[name]()

    def predict(query, centers, values, ridge, *parameters):
        choices = {"kernel": kernel, "ridge": ridge, "trend": trend, "fade": fade, "normalize": "cell"}
        return F.local_kernel_ridge(query, centers, values, indices, **choices)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
@pytest.mark.parametrize("function", [F.local_power_function, F.local_cardinal_weights])
def test_gradients_of_power_function_and_weights(small, function, trend, fade, check):
    query, centers, _, ridge, indices = small
    kernel = KERNELS["exponential"]()

    def evaluate(query, centers, ridge, *parameters):
        return function(query, centers, indices, kernel=kernel, ridge=ridge, trend=trend, fade=fade, normalize="cell")

    assert check(evaluate, (query, centers, ridge, *kernel.parameters()))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_of_the_features_does_not_matter(scale, dtype):
    query, centers, values = torch.randn(9, 3, dtype=dtype), torch.randn(80, 3, dtype=dtype), torch.randn(80, 2, dtype=dtype)
    indices = neighbors.nearest(query, centers, 12)

    def predict(factor, normalize):
        choices = {"kernel": kernels.Matern32(2.0), "ridge": 1e-4, "normalize": normalize}
        return F.local_kernel_ridge(query * factor, centers * factor, values, indices, **choices)

    torch.testing.assert_close(predict(scale, "cell"), predict(1.0, "cell"), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(predict(scale, None), predict(1.0, None), rtol=1e-3, atol=1e-4)


def test_dense_and_thin_regions_have_the_same_error_indicator():
    """Two copies of one configuration, one a hundred times smaller: the normalized indicator does not tell them apart."""
    points = torch.randn(20, 2, dtype=torch.float64)
    centers = torch.cat((points, 100 + points / 100))
    query = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    query = torch.cat((query, 100 + query / 100))
    indices = neighbors.nearest(query, centers, 10)
    normalized = F.local_power_function(query, centers, indices, kernel=kernels.Exponential(), normalize="cell")
    plain = F.local_power_function(query, centers, indices, kernel=kernels.Exponential())
    torch.testing.assert_close(normalized[0], normalized[1], rtol=1e-6, atol=0)
    assert plain[1] < plain[0] / 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
def test_finite_where_all_neighbors_lie_on_the_query(dtype, trend, fade):
    centers = torch.cat((torch.zeros(6, 2, dtype=dtype), torch.randn(4, 2, dtype=dtype))).requires_grad_()
    query = torch.zeros(1, 2, dtype=dtype, requires_grad=True)
    values = torch.arange(10, dtype=dtype)[:, None].requires_grad_()
    indices = torch.arange(6)[None]
    with contextlib.nullcontext() if fade else pytest.warns(torchkrr.errors.RidgeRaisedWarning):
        result = F.local_kernel_ridge(
            query,
            centers,
            values,
            indices,
            kernel=kernels.Exponential(),
            ridge=0.0,
            trend=trend,
            fade=fade,
            normalize="cell",
        )
    result.sum().backward()
    for tensor in (result, query.grad, centers.grad, values.grad):
        assert bool(torch.isfinite(tensor).all())


def test_the_layer_passes_it_on_and_shows_it():
    centers, values, query = torch.randn(60, 3), torch.randn(60, 2), torch.randn(5, 3)
    layer = torchkrr.nn.LocalKernelRidge(centers, values, 10, normalize="cell", fade=True)
    indices = neighbors.nearest(query, centers, 11, kernel=layer.kernel)
    choices = {"kernel": layer.kernel, "fade": True, "normalize": "cell"}
    torch.testing.assert_close(layer(query), F.local_kernel_ridge(query, centers, values, indices, **choices))
    assert "normalize='cell'" in repr(layer)


def test_bad_choices():
    query, centers, values = torch.randn(2, 3), torch.randn(9, 3), torch.randn(9, 1)
    indices = neighbors.nearest(query, centers, 4)
    with pytest.raises(torchkrr.errors.InputError, match="normalize must be one of None, 'cell', got 'all'"):
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernels.Exponential(), normalize="all")
    with pytest.raises(torchkrr.errors.InputError, match="normalize must be one of None, 'cell', got True"):
        torchkrr.nn.LocalKernelRidge(centers, values, 4, normalize=True)
    with pytest.raises(torchkrr.errors.InputError, match="local_path cannot normalize"):
        F.local_path(query, centers, values, indices, kernel=kernels.Exponential(), normalize="cell")
