"""Dtypes, state and precision of kernels."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.kernel_cases import KERNELS, PROFILES, close
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn, transforms


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
    assert all(parameter.grad.dtype == torch.float32 for parameter in kernel.parameters())


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


def rational(lengthscale, alpha, *, learned):
    return kernels.RationalQuadratic(lengthscale, alpha=alpha, learn_alpha=learned, learn_lengthscale=learned)


@pytest.mark.parametrize("lengthscale", [3.0, [3.0, 2.0]], ids=["one", "each"])
def test_state_of_a_fixed_kernel_goes_into_a_learned_one_and_back(lengthscale):
    each = lengthscale if isinstance(lengthscale, list) else [lengthscale]
    fixed, learned = rational(lengthscale, 0.7, learned=False), rational([1.0] * len(each), 1.0, learned=True)
    learned.load_state_dict(fixed.state_dict())
    assert {name for name, _ in learned.named_parameters()} == {"log_lengthscale", "log_alpha"}
    assert {parameter.dtype for parameter in learned.parameters()} == {torch.float32}
    close(learned.lengthscale.detach(), each, rtol=1e-6, atol=0)
    close(learned.alpha.detach(), [0.7], rtol=1e-6, atol=0)
    fixed = rational(1.0, 1.0, learned=False)
    fixed.load_state_dict(learned.state_dict())
    assert {buffer.dtype for buffer in fixed.buffers()} == {torch.float64}
    assert torch.equal(fixed.lengthscale, learned.lengthscale)
    assert torch.equal(fixed.alpha, learned.alpha)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prefix", ["", "kernel."], ids=["kernel", "layer"])
def test_state_of_the_first_release_has_numbers_without_dimension(learned, dtype, prefix):
    module = kernel = rational(1.0, 1.0, learned=learned)
    if prefix:
        module = nn.LocalKernelRidge(torch.rand(5, 2), torch.rand(5, 1), 3, kernel=kernel)
    state = module.state_dict()
    state[f"{prefix}log_lengthscale"] = torch.tensor(3.0, dtype=dtype).log()
    state[f"{prefix}log_alpha"] = torch.tensor(0.7, dtype=dtype).log()
    module.load_state_dict(state)
    assert state[f"{prefix}log_alpha"].ndim == 0  # the state of the caller is as it was
    close(kernel.lengthscale.detach(), [3.0], rtol=1e-6, atol=0)
    close(kernel.alpha.detach(), [0.7], rtol=1e-6, atol=0)


def test_a_loaded_alpha_has_no_graph_of_the_one_before():
    source = torch.tensor(0.5, requires_grad=True)
    kernel = kernels.RationalQuadratic(alpha=source)
    kernel.load_state_dict(kernels.RationalQuadratic(alpha=2.0).state_dict())
    assert not kernel.log_alpha.requires_grad


def test_a_learned_lengthscale_is_the_same_with_and_without_gradients():
    # Its logarithm is float32: the number that points are divided by must not depend on who takes the exponential.
    x = torch.rand(20, 2, dtype=torch.float64)
    kernel, values, query = rational(1.7, 0.7, learned=True), x[:, :1], x[:5] + 0.1
    indices = neighbors.nearest(query, x, 6)
    found = [F.local_kernel_ridge(query, x, values, indices, kernel=kernel, ridge=1e-2)]
    with torch.no_grad():
        found += [
            F.local_kernel_ridge(query, x, values, indices, kernel=kernel, ridge=1e-2, backend=backend)
            for backend in ("auto", "torch")
        ]
    for other in found[1:]:
        close(other, found[0].detach(), rtol=1e-11, atol=1e-12)


def test_a_kernel_shows_its_choices():
    assert repr(kernels.Exponential(2.0)) == "Exponential(lengthscale=2)"
    assert repr(kernels.Gaussian([1.0, 2.0], learn_lengthscale=True)) == "Gaussian(lengthscale=(2 features), learned)"
    assert repr(kernels.Wendland(dimension=3)) == "Wendland(lengthscale=1, dimension=3, smoothness=1)"
    assert repr(kernels.RationalQuadratic(alpha=0.5)) == "RationalQuadratic(lengthscale=1, alpha=0.5)"


def test_a_kernel_without_numbers_shows_that():
    assert repr(kernels.RationalQuadratic(2.0).to("meta")) == "RationalQuadratic(lengthscale=..., alpha=...)"


def test_default_kernel_is_exponential_on_standard_mean():
    x, new = torch.randn(30, 4), torch.randn(6, 4)
    embed = transforms.StandardMean().fit(x)
    expected = torch.exp(-torch.cdist(embed(new), embed(x)))
    close(kernels.default_kernel(x)(new, x), expected, rtol=1e-4, atol=1e-5)


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
