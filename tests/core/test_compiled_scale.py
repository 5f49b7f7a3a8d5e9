"""A fixed lengthscale is divided by inside the fused solver: no copy of the centers, and the numbers of the torch path."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr import native as native
from torchkrr.errors import InputError, RidgeRaisedWarning, SolveError
from torchkrr.transforms import Standardize

pytestmark = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
SHAPES = [(1, 1), (7, 5), (33, 17), (100, 70)]  # neighbors, features
LENGTHSCALES = ["one", "per feature"]


def problem(neighbors: int, features: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)

    def randn(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    indices = torch.stack([torch.randperm(160, generator=generator)[:neighbors] for _ in range(21)])
    return randn(21, features), randn(160, features), randn(160, 3), indices


def lengthscale(which: str, features: int):
    around = 2 * features**0.5
    return around if which == "one" else around * torch.linspace(0.5, 1.5, features, dtype=torch.float64)


def everything(backend: str, arguments, kernel: kernels.Kernel, **choices):
    query, centers, values, indices = arguments
    choices = {"kernel": kernel, "ridge": 1e-2, "backend": backend, **choices}
    mean = F.local_kernel_ridge(query, centers, values, indices, **choices)
    power = F.local_power_function(query, centers, indices, **choices)
    slopes = torch.linspace(0.5, 1.5, len(query), dtype=query.dtype)
    loss = (mean * torch.cos(torch.arange(mean.numel(), dtype=mean.dtype)).view_as(mean)).sum() + (power * slopes).sum()
    gradients = torch.autograd.grad(loss, (query, centers, values))
    with torch.no_grad():  # weights and paths have their own gradient, in torch
        weights = F.local_cardinal_weights(query, centers, indices, **choices)
        path = F.local_path(query, centers, values, indices, **choices)
        plain = F.local_kernel_ridge(query, centers, values, indices, **choices)
    return (mean, power, *gradients, weights, *path, plain)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("which", LENGTHSCALES)
@pytest.mark.parametrize("kernel", [kernels.Exponential, kernels.Matern52, kernels.InverseMultiquadric])
def test_same_as_torch(kernel, which, trend):
    for neighbors, features in SHAPES:
        arguments = problem(neighbors, features)
        chosen = kernel(lengthscale(which, features))
        ours, theirs = (everything(backend, arguments, chosen, trend=trend) for backend in ("fused", "torch"))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("which", LENGTHSCALES)
def test_float32_is_as_exact_as_torch(which):
    chosen = kernels.Exponential(lengthscale(which, 70))
    exact = everything("torch", problem(100, 70), chosen)
    ours, theirs = (everything(backend, problem(100, 70, torch.float32), chosen) for backend in ("fused", "torch"))
    for found, other, expected in zip(ours, theirs, exact, strict=True):
        error, usual = ((part - expected).square().mean().sqrt() for part in (found, other))
        assert error <= 3 * usual + 1e-6 * max(1.0, float(expected.detach().abs().max()))


@pytest.mark.parametrize("which", LENGTHSCALES)
def test_nothing_is_embedded(which, monkeypatch):
    query, centers, values, indices = problem(20, 4, torch.float32)
    kernel = kernels.Exponential(lengthscale(which, 4))

    def embed(self, x):
        raise AssertionError(f"embedded {tuple(x.shape)}")

    monkeypatch.setattr(kernels.Kernel, "embed", embed)
    for count in (1, 21):  # fewer members than centers, and more
        mean = F.local_kernel_ridge(query[:count], centers, values, indices[:count], kernel=kernel, ridge=1e-3)
        assert all(part.isfinite().all() for part in torch.autograd.grad(mean.sum(), (query, centers, values)))


def test_what_is_more_than_a_fixed_lengthscale_is_embedded():
    query, centers, values, indices = problem(20, 4)
    learned = kernels.Exponential(4.0, learn_lengthscale=True)
    mean = F.local_kernel_ridge(query, centers, values, indices, kernel=learned, ridge=1e-3)
    assert float(torch.autograd.grad(mean.sum(), learned.log_lengthscale)[0]) != 0
    moved = kernels.Exponential(4.0, input_transform=Standardize().fit(3 * centers.detach() + 1))
    plain = F.local_kernel_ridge(query, centers, values, indices, kernel=kernels.Exponential(4.0), ridge=1e-3)
    ours, theirs = (
        F.local_kernel_ridge(query, centers, values, indices, kernel=moved, ridge=1e-3, backend=backend)
        for backend in ("fused", "torch")
    )
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, plain)


@pytest.mark.parametrize("which", LENGTHSCALES)
def test_both_derivatives_against_finite_differences(small, which):
    query, centers, values, ridge, indices = small
    kernel = kernels.Matern52(lengthscale(which, 2))

    def predict(query, centers, values, ridge):
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=ridge, backend="fused")

    assert gradcheck(predict, (query, centers, values, ridge))
    assert gradgradcheck(predict, (query, centers, values, ridge))


def test_the_gradient_does_not_see_a_later_lengthscale():
    query, centers, values, indices = problem(20, 4)
    kernel = kernels.Exponential(4.0)
    expected = everything("fused", (query, centers, values, indices), kernel)[2]
    mean = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-2)
    power = F.local_power_function(query, centers, indices, kernel=kernel, ridge=1e-2)
    kernel.log_lengthscale.fill_(9.0)
    slopes = torch.linspace(0.5, 1.5, len(query), dtype=query.dtype)
    loss = (mean * torch.cos(torch.arange(mean.numel(), dtype=mean.dtype)).view_as(mean)).sum() + (power * slopes).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, query)[0], expected)


def test_queries_that_share_their_neighbors():
    query, centers, values, indices = problem(100, 17)
    shared = indices[:3].repeat(7, 1)  # seven queries for each of three neighborhoods
    kernel = kernels.Exponential(lengthscale("per feature", 17))
    with torch.no_grad():
        ours, theirs = (
            F.local_kernel_ridge(query, centers, values, shared, kernel=kernel, ridge=1e-3, backend=backend)
            for backend in ("fused", "torch")
        )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("count", [2, 21])
def test_unresolved_cells_are_solved_in_float64_and_then_with_a_larger_ridge(count):
    query, centers, values, indices = problem(20, 4, torch.float32)
    with torch.no_grad():
        centers[indices[1, 1]] = centers[indices[1, 0]]  # a repeated center: singular whatever the precision
    indices[0] = indices[0, :1]  # one center, so many times
    kernel = kernels.Exponential(lengthscale("per feature", 4))

    def solve(backend: str):
        choices = {"kernel": kernel, "ridge": 0.0, "backend": backend}
        with pytest.warns(RidgeRaisedWarning) as warned:
            mean = F.local_kernel_ridge(query[:count], centers, values, indices[:count], **choices)
        return mean, *torch.autograd.grad(mean.sum(), (query, centers, values)), str(warned[0].message)

    *ours, said = solve("fused")
    *theirs, expected = solve("torch")
    assert said == expected
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    with pytest.raises(SolveError, match="The first is query 0"):
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=0.0, on_singular="raise")


def test_gaussian_cells_beyond_float32_get_the_float64_answer():
    query, centers, values, indices = problem(30, 2, torch.float32)
    kernel = kernels.Gaussian([3.0, 5.0])
    with torch.no_grad():
        ours = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=1e-8)
        exact = F.local_kernel_ridge(
            query.double(), centers.double(), values.double(), indices, kernel=kernel, ridge=1e-8, backend="torch"
        )
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("count", [1, 21])
def test_a_member_that_is_no_number_is_an_error(bad, count):
    query = torch.zeros(21, 2)
    centers = torch.rand(40, 2) + 0.1
    centers[3, 0] = bad
    # Its inner products with the others are infinite and of one sign: to the factorization it is a center far away.
    indices = torch.arange(20).repeat(21, 1)
    for signs in (1.0, -1.0):
        query[:, 0] = 0.0 if signs > 0 else 2.0
        with pytest.raises(InputError, match="centers must be finite"):
            F.local_kernel_ridge(query[:count], centers, torch.rand(40, 1), indices[:count], kernel=kernels.Exponential())


def test_a_library_of_another_interface_is_not_used(monkeypatch):
    found = native.library()
    assert found is not None
    assert native.opened(found.instruction_set, found.path) is not None
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    assert native.opened(found.instruction_set, found.path) is None
