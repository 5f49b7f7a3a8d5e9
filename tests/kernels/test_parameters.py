"""Lengthscales fixed and learned, and kernels of one's own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.kernel_cases import KERNELS, close
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn, transforms
from torchkrr.errors import BackendError


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
    close(learned.lengthscale.detach(), [2.0])


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


def of_source(what, source):
    """A kernel with settings made from a tensor of the caller."""
    if what == "alpha":
        return kernels.RationalQuadratic(1.3, alpha=2 * source)
    if what == "lengthscale":
        return kernels.RationalQuadratic(torch.stack((source, source.square())), alpha=0.7)
    return kernels.RationalQuadratic(2 * source, alpha=3 * source)


@pytest.mark.parametrize("backend", ["auto", "torch", "fused"])
@pytest.mark.parametrize("what", ["alpha", "lengthscale", "both"])
@pytest.mark.parametrize("how", ["matrix", "dense", "local"])
def test_settings_that_require_grad_keep_their_graph(what, how, backend, small):
    query, centers, values = (tensor.detach() for tensor in small)
    source = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    choices = {"ridge": 1e-2, "backend": backend}
    indices = neighbors.nearest(query, centers, 5)

    def predict(source):
        kernel = of_source(what, source)
        if how == "matrix":
            return kernel(query, centers)
        if how == "dense":
            return F.kernel_ridge(query, centers, values, kernel=kernel, **choices)
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, **choices)

    if how != "matrix" and backend == "fused" and what != "lengthscale":
        with pytest.raises(BackendError, match="no gradient for what RationalQuadratic learns in its profile"):
            predict(source)
        return
    assert gradcheck(predict, (source,))
    assert gradgradcheck(predict, (source,))
    plain, with_graph = (
        torch.autograd.grad(predict(source).square().sum(), source, create_graph=create_graph)[0]
        for create_graph in (False, True)
    )
    close(with_graph.detach(), plain)


@pytest.mark.parametrize("local", [False, True], ids=["dense", "local"])
def test_gradient_of_the_lengthscale_with_a_graph_beside_a_learned_profile(local, small):
    query, centers, values = (tensor.detach() for tensor in small)
    kernel = kernels.RationalQuadratic(1.3, alpha=0.7, learn_alpha=True, learn_lengthscale=True).double()
    indices = neighbors.nearest(query, centers, 5)

    def gradients(create_graph):
        if local:
            found = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-2)
        else:
            found = F.kernel_ridge(query, centers, values, kernel=kernel, ridge=1e-2)
        return torch.autograd.grad(found.square().sum(), list(kernel.parameters()), create_graph=create_graph)

    for one, other in zip(gradients(True), gradients(False), strict=True):
        close(one.detach(), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("lengthscale", "shape"), [(1.5, (1,)), ([1.5, 0.7], (2,))], ids=["one", "each"])
def test_learned_settings_are_ordinary_parameters(lengthscale, shape, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        weight = transforms.Linear(torch.eye(2), learn=True)
        kernel = kernels.RationalQuadratic(lengthscale, learn_alpha=True, learn_lengthscale=True, input_transform=weight)
    finally:
        torch.set_default_dtype(before)
    assert kernel.log_lengthscale.shape == shape
    assert kernel.log_alpha.shape == (1,)
    assert {parameter.dtype for parameter in kernel.parameters()} == {dtype}
    assert {parameter.dtype for parameter in kernel.double().parameters()} == {torch.float64}
    kernel(torch.rand(3, 2), torch.rand(4, 2)).sum().backward()
    assert {parameter.dtype for parameter in kernel.half().parameters()} == {torch.float16}
    assert {parameter.grad.dtype for parameter in kernel.parameters()} == {torch.float16}


def test_fixed_settings_are_double_buffers_of_the_same_shape():
    kernel = kernels.RationalQuadratic(1.5, input_transform=transforms.Linear(torch.eye(2))).half()
    assert {name: buffer.shape for name, buffer in kernel.named_buffers()} == {
        "log_lengthscale": (1,),
        "log_alpha": (1,),
        "input_transform.weight": (2, 2),
    }
    assert {buffer.dtype for buffer in kernel.buffers()} == {torch.float64}
    assert kernel.profile(torch.tensor(0.5)).shape == ()


def learned_network():
    weight = transforms.Linear(torch.eye(3), learn=True)
    kernel = kernels.RationalQuadratic(1.3, alpha=0.7, learn_alpha=True, learn_lengthscale=True, input_transform=weight)
    data = torch.randn(20, 3), torch.randn(20, 2)
    head = nn.LocalKernelRidge(*data, 6, kernel=kernel, ridge=1e-2, learn_centers=True, learn_values=True)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), head)


def test_parameters_are_a_vector_and_a_vector_is_parameters():
    first, second, inputs = learned_network(), learned_network(), torch.randn(5, 4)
    vector = torch.nn.utils.parameters_to_vector(first.parameters())
    assert vector.dtype == torch.float32
    torch.nn.utils.vector_to_parameters(vector, second.parameters())
    close(second(inputs), first(inputs))
    assert {parameter.dtype for parameter in second.parameters()} == {torch.float32}


def test_a_fused_optimizer_does_what_the_plain_one_does():
    torch.manual_seed(0)
    first, inputs, targets = learned_network(), torch.randn(5, 4), torch.randn(5, 2)
    second = copy.deepcopy(first)
    for network, fused in ((first, True), (second, False)):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, fused=fused)
        for _ in range(3):
            optimizer.zero_grad()
            (network(inputs) - targets).square().mean().backward()
            optimizer.step()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_tensors_of_the_profile_by_name():
    class Mixture(kernels.Kernel):
        def __init__(self):
            super().__init__(input_transform=transforms.Linear(torch.eye(2), learn=True), learn_lengthscale=True)
            self.part = kernels.RationalQuadratic(learn_alpha=True)
            self.register_buffer("log_lengthscale_of_another", torch.zeros(1))

        def profile(self, distance):
            return self.part.profile(distance)

    kernel = Mixture()
    assert set(kernel.profile_tensors()) == {"log_lengthscale_of_another", "part.log_alpha", "part.log_lengthscale"}
    assert [id(tensor) for tensor in kernel.learned_in_profile()] == [id(kernel.part.log_alpha)]
    with torch.no_grad():
        assert not kernel.learned_in_profile()
    assert not kernels.Gaussian(learn_lengthscale=True).profile_tensors()


def test_learned_alpha_is_differentiable_and_positive():
    kernel = kernels.RationalQuadratic(alpha=0.7, learn_alpha=True, learn_lengthscale=True).double()
    assert {name for name, _ in kernel.named_parameters()} == {"log_alpha", "log_lengthscale"}
    a, b = torch.rand(3, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)

    def matrix(a, b, *parameters):
        return kernel(a, b)

    assert gradcheck(matrix, (a.requires_grad_(), b.requires_grad_(), *kernel.parameters()))
    optimizer = torch.optim.SGD([kernel.log_alpha], lr=50.0)
    kernel.alpha.log().backward()
    optimizer.step()
    assert kernel.alpha.item() > 0


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
    kernel = OWN[name]().double()
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
