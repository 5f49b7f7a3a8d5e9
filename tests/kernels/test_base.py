"""First and second derivatives of kernels in whatever is learned: by autograd, by `torch.func`, against differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.kernel_cases import KERNELS, close
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jacrev, vjp, vmap

from torchkrr import kernels


class Power(kernels.Kernel):
    """Of one's own: a parameter in the profile, a slope by autograd."""

    def __init__(self, *arguments, learn_power=True, **choices):
        super().__init__(*arguments, **choices)
        power = torch.tensor(0.7, dtype=torch.float64)
        if learn_power:
            self.power = torch.nn.Parameter(power)
        else:
            self.register_buffer("power", power)

    def profile(self, distance):
        return (1 + distance.square()) ** -self.power.to(distance.dtype)


class Both(kernels.Kernel):
    """Its parameter is in the embedding and in the profile."""

    def __init__(self, *arguments, learn_power=True, **choices):
        super().__init__(*arguments, **choices)
        self.power = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64), requires_grad=learn_power)

    def embed(self, x):
        return super().embed(x) * self.power.to(x.dtype)

    def profile(self, distance):
        return torch.exp(-self.power.to(distance.dtype) * distance.square())


def rational(*arguments, learn_power=True, **choices):
    return kernels.RationalQuadratic(*arguments, alpha=0.7, learn_alpha=learn_power, **choices)


WITH_PROFILE = {"RationalQuadratic": rational, "of one's own": Power, "in both": Both}
MAKERS = {**{name: make for name, make in KERNELS.items() if name != "RationalQuadratic"}, **WITH_PROFILE}


def points():
    return torch.randn(3, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)


def made(name, *, lengthscale, profile=True):
    choices = {"learn_power": profile} if name in WITH_PROFILE else {}
    scale = [4.0, 3.0] if lengthscale == "each" else 4.0
    return MAKERS[name](scale, learn_lengthscale=lengthscale != "fixed", **choices).double()


def cases():
    for name in MAKERS:
        profiles = (False, True) if name in WITH_PROFILE else (False,)
        for lengthscale, profile, *sides in itertools.product(
            ("fixed", "one", "each"), profiles, (False, True), (False, True)
        ):
            if lengthscale != "fixed" or profile or any(sides):
                yield name, lengthscale, profile, sides


CASES = list(cases())


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize(("name", "lengthscale", "profile", "sides"), CASES)
def test_derivatives_are_those_of_differences(check, name, lengthscale, profile, sides):
    kernel = made(name, lengthscale=lengthscale, profile=profile)
    a, b = (side.requires_grad_(learned) for side, learned in zip(points(), sides, strict=True))
    inputs = [side for side in (a, b) if side.requires_grad]

    def matrix(*_):
        return kernel(a, b)

    inputs += [parameter for parameter in kernel.parameters() if parameter.requires_grad]
    assert check(matrix, inputs)


@pytest.mark.parametrize(("name", "lengthscale", "profile", "sides"), CASES)
def test_gradient_with_a_graph_is_the_gradient(name, lengthscale, profile, sides):
    kernel = made(name, lengthscale=lengthscale, profile=profile)
    a, b = (side.requires_grad_(learned) for side, learned in zip(points(), sides, strict=True))
    inputs = [tensor for tensor in (a, b, *kernel.parameters()) if tensor.requires_grad]
    without, with_graph = (
        torch.autograd.grad(kernel(a, b).square().sum(), inputs, create_graph=create_graph) for create_graph in (False, True)
    )
    for one, other in zip(with_graph, without, strict=True):
        close(one.detach(), other)


def prepared(name):
    """A number made from a kernel matrix, as a function of all that is learned, and a place to differentiate it."""
    kernel = made(name, lengthscale="each")
    names = [name for name, _ in kernel.named_parameters()]
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (*kernel.parameters(), *points())]

    def of(*leaves):
        return functional_call(kernel, dict(zip(names, leaves, strict=False)), leaves[-2:]).square().sum()

    return of, leaves


@pytest.mark.parametrize("name", MAKERS)
def test_functional_gradient_is_that_of_autograd(name):
    of, leaves = prepared(name)
    expected = torch.autograd.grad(of(*leaves), leaves)
    everything = tuple(range(len(leaves)))
    detached = [leaf.detach() for leaf in leaves]
    for found in (grad(of, everything)(*detached), vjp(of, *detached)[1](torch.ones((), dtype=torch.float64))):
        for one, other in zip(found, expected, strict=True):
            close(one, other)


@pytest.mark.parametrize("name", MAKERS)
def test_functional_second_derivative_is_that_of_autograd(name):
    of, leaves = prepared(name)
    everything = tuple(range(len(leaves)))
    detached = [leaf.detach() for leaf in leaves]
    expected = torch.autograd.functional.hessian(of, tuple(leaves))
    found = jacrev(grad(of, everything), everything)(*detached)
    for row, other_row in zip(found, expected, strict=True):
        for one, other in zip(row, other_row, strict=True):
            close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("features", [2, 3, 6], ids=lambda d: f"D{d}")
def test_vmap_is_a_loop(name, features):
    most = int(name[len("Wendland")]) if name.startswith("Wendland") else features
    if features > most:
        pytest.skip("it takes fewer features")
    kernel = made(name, lengthscale="one")
    a, b = torch.randn(5, 3, features, dtype=torch.float64), torch.randn(4, features, dtype=torch.float64)
    b[:3] = a[0]  # close pairs are computed in another way
    parameters = {key: torch.stack([p.detach() + 0.1 * i for i in range(5)]) for key, p in kernel.named_parameters()}

    def of(parameters, a, b):
        return functional_call(kernel, parameters, (a, b)).square().sum()

    for function in (of, grad(of), grad(of, 1), grad(of, 2)):
        found = vmap(function, (0, 0, None))(parameters, a, b)
        looped = [function({key: p[i] for key, p in parameters.items()}, a[i], b) for i in range(5)]
        if isinstance(found, dict):
            for key, one in found.items():
                close(one, torch.stack([other[key] for other in looped]))
        else:
            close(found, torch.stack(looped))


def test_vmap_takes_leading_dimensions_on_one_side():
    kernel = kernels.Gaussian()
    a, b = torch.randn(3, 5, 6), torch.randn(2, 4, 6)
    close(vmap(kernel, (1, None))(a, b), torch.stack([kernel(a[:, i], b) for i in range(5)]))
    close(vmap(kernel, (None, 1))(b, a), torch.stack([kernel(b, a[:, i]) for i in range(5)]))
