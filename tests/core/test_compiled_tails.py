"""Constant and linear tails in the fused solver: the numbers, gradients and judgement of the torch path."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.kernel_cases import CONDITIONAL
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, native, neighbors, nn
from torchkrr.core import compiled, trust
from torchkrr.errors import BackendError, RidgeRaisedWarning, TrendWarning

pytestmark = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
MAKE = {name: make for name, (_, make) in CONDITIONAL.items()} | {
    name: getattr(kernels, name) for name in ("Exponential", "Gaussian", "InverseQuadratic")
}
CASES = [(name, trend) for name, make in MAKE.items() for trend in (0, 1) if make.order <= trend + 1]
CASES = [(name, trend) for name, trend in CASES if trend or MAKE[name].order]  # a constant on the others is no border
# Features, neighbors, outputs: below, at and above the sizes of registers and tiles.
SHAPES = [(1, 5, 1), (2, 8, 2), (2, 30, 3), (3, 33, 1), (8, 64, 17), (16, 100, 2)]
QUERIES = 19


def problem(features, outputs, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (QUERIES, features), (160, features), (160, outputs)
    return [torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]


def everything(backend, name, trend, shape, dtype):
    """Mean, power function, weights, and the gradients of a mixture of the first two."""
    features, members, outputs = shape
    query, centers, values = problem(features, outputs, dtype)
    rows = neighbors.nearest(query, centers, members)
    leaves = [x.requires_grad_() for x in (query, centers, values, torch.tensor(1e-2, dtype=dtype))]
    options = {"kernel": MAKE[name](1.3), "ridge": leaves[3], "trend": trend, "backend": backend}
    mean = F.local_kernel_ridge(*leaves[:3], rows, **options)
    power = F.local_power_function(*leaves[:2], rows, **options)
    weights = F.local_cardinal_weights(*leaves[:2], rows, **options)
    mixed = torch.cos(torch.arange(mean.numel(), dtype=dtype)).view_as(mean)
    loss = (mean * mixed).sum() + (power * torch.linspace(0.5, 1.5, QUERIES, dtype=dtype)).sum()
    gradients = torch.autograd.grad(loss, leaves)
    names = ("mean", "power", "weights", "query", "centers", "values", "ridge")
    return dict(zip(names, (mean.detach(), power.detach(), weights.detach(), *gradients), strict=True))


@pytest.mark.parametrize(("name", "trend"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 5e-3)])
def test_same_as_torch(name, trend, dtype, tolerance):
    for shape in SHAPES:
        ours, theirs = (everything(backend, name, trend, shape, dtype) for backend in ("fused", "torch"))
        for what, expected in theirs.items():
            scale = max(1e-3, float(expected.abs().max()))
            message = f"{what} of {shape}"
            torch.testing.assert_close(
                ours[what], expected, rtol=0, atol=tolerance * scale, msg=lambda m, n=message: f"{n}: {m}"
            )


@pytest.mark.parametrize("build", ["baseline", "avx2", "avx512"])
def test_every_build_is_the_same(build, monkeypatch):
    if build not in native.INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",)):
        pytest.skip("this processor does not have these instructions")
    found = native.opened(build, next(iter(native.FOLDER.glob(f"fused_{build}.*"))))
    monkeypatch.setattr(native, "library", lambda: found)
    for name, trend in CASES:
        ours, theirs = (everything(backend, name, trend, (3, 33, 2), torch.float64) for backend in ("fused", "torch"))
        for what, expected in theirs.items():
            torch.testing.assert_close(
                ours[what], expected, rtol=1e-7, atol=1e-7, msg=lambda m, n=f"{name} {what}": f"{n}: {m}"
            )


@pytest.mark.parametrize(("name", "trend"), CASES)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives(name, trend, check):
    query, centers, values = (x.requires_grad_() for x in problem(2, 2, torch.float64))
    with torch.no_grad():
        rows = neighbors.nearest(query[:3], centers, 12)
        used, rows = rows.unique(return_inverse=True)
    leaves = [x.detach().clone().requires_grad_() for x in (query[:3], centers[used], values[used])]
    leaves.append(torch.tensor(0.1, dtype=torch.float64, requires_grad=True))

    def predict(query, centers, values, ridge):
        options = {"kernel": MAKE[name](2.0), "ridge": ridge, "trend": trend, "backend": "fused"}
        mean = F.local_kernel_ridge(query, centers, values, rows, **options)
        return mean, F.local_power_function(query, centers, rows, **options)

    assert check(predict, leaves, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("which", range(4))
def test_gradient_of_one_input_alone(which):
    expected = everything("torch", "ThinPlateSpline", 1, (3, 20, 2), torch.float64)
    query, centers, values = problem(3, 2, torch.float64)
    rows = neighbors.nearest(query, centers, 20)
    leaves = [query, centers, values, torch.tensor(1e-2, dtype=torch.float64)]
    leaves[which].requires_grad_()
    options = {"kernel": MAKE["ThinPlateSpline"](1.3), "ridge": leaves[3], "trend": 1, "backend": "fused"}
    mean = F.local_kernel_ridge(*leaves[:3], rows, **options)
    power = F.local_power_function(*leaves[:2], rows, **options)
    mixed = torch.cos(torch.arange(mean.numel(), dtype=torch.float64)).view_as(mean)
    loss = (mean * mixed).sum() + (power * torch.linspace(0.5, 1.5, QUERIES, dtype=torch.float64)).sum()
    (found,) = torch.autograd.grad(loss, leaves[which])
    torch.testing.assert_close(found, list(expected.values())[3 + which], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "trend"), CASES)
def test_queries_with_the_same_neighbors_share_a_factor(name, trend, monkeypatch):
    _, centers, values = problem(3, 2, torch.float64)
    query = centers[:5].repeat_interleave(40, 0) + 0.01 * torch.randn(200, 3, dtype=torch.float64)
    rows = neighbors.nearest(centers[:5], centers, 25).repeat_interleave(40, 0)
    rows = torch.stack([row[torch.randperm(25)] for row in rows])
    options = {"kernel": MAKE[name](1.3), "ridge": 1e-3, "trend": trend}
    for function, arguments in (
        (F.local_kernel_ridge, (query, centers, values, rows)),
        (F.local_cardinal_weights, (query, centers, rows)),
        (F.local_power_function, (query, centers, rows)),
    ):
        expected = function(*arguments, backend="torch", **options)
        for worth in (1.0, 1e30):
            monkeypatch.setattr(compiled, "WORTHWHILE", worth)
            torch.testing.assert_close(function(*arguments, backend="fused", **options), expected, rtol=1e-6, atol=1e-6)


def test_a_layer_with_kept_factors_predicts_the_same():
    query, centers, values = problem(2, 2, torch.float64)
    options = {"kernel": kernels.ThinPlateSpline(), "trend": 1, "ridge": 1e-3}
    layer = nn.LocalKernelRidge(centers, values, 20, keep_factors=100, **options)
    expected = nn.LocalKernelRidge(centers, values, 20, backend="torch", **options)(query)
    for _ in range(2):
        torch.testing.assert_close(layer(query), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cells_that_do_not_determine_the_tail_are_left_to_torch(dtype):
    line = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0])
    cloud = torch.randn(60, 2, dtype=torch.float64) + 10
    centers = torch.cat((line, cloud)).to(dtype)
    values, rows = torch.sin(centers[:, :1]), neighbors.nearest(centers, centers, 9)
    found = {}
    for backend in ("fused", "torch"):
        options = {"kernel": kernels.ThinPlateSpline(), "trend": "linear", "backend": backend, "ridge": 1e-6}
        with pytest.warns(TrendWarning, match="^12 sets of centers"):
            found[backend] = F.local_kernel_ridge(centers + 0.01, centers, values, rows, **options)
    torch.testing.assert_close(found["fused"], found["torch"], rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.local_kernel_ridge(
            centers[12:], centers, values, rows[12:], kernel=kernels.ThinPlateSpline(), trend=1, backend="fused"
        )


def test_singular_cells_are_raised_as_by_torch():
    _, centers, values = problem(2, 1, torch.float64)
    centers = torch.cat((centers[:30], centers[:1]))
    rows = neighbors.nearest(centers, centers, 12)
    for backend in ("fused", "torch"):
        options = {"kernel": kernels.Cubic(), "trend": 1, "ridge": 0.0, "backend": backend}
        with pytest.warns(RidgeRaisedWarning):
            found = F.local_kernel_ridge(centers, centers, values[:31], rows, **options)
        torch.testing.assert_close(found[[0, 30]], values[[0, 30]].mean(0, keepdim=True).expand(2, 1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_what_is_solved_again_does_not_depend_on_the_scale(backend, monkeypatch):
    """Of the points, in powers of two: all numbers are the same but for their exponents."""
    centers, query = torch.rand(150, 2), torch.rand(200, 2)
    near = centers[centers[:, 0] < 0.4] + 1e-3  # some cells have close pairs, whose values differ
    centers = torch.cat((centers, near))
    values, rows, counts, found = torch.randn(len(centers), 1), neighbors.nearest(query, centers, 30), [], []
    monkeypatch.setattr(trust, "solved_again", counts.append)
    for scale in (1.0, 2.0**-12, 2.0**12):
        options = {"kernel": kernels.Cubic(), "trend": 1, "ridge": 0.0, "backend": backend}
        found.append(F.local_kernel_ridge(scale * query, scale * centers, values, rows, **options))
    assert len(counts) == 3
    assert 0 < counts[0] == counts[1] == counts[2] < 200
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("features", "trend", "message"), [(3, 2, "a constant and a linear one"), (17, 1, "in at most 16 features")]
)
def test_what_it_does_not_solve_is_named(features, trend, message):
    query, centers, values = problem(features, 1, torch.float64)
    rows = neighbors.nearest(query, centers, 40)
    with pytest.raises(BackendError, match=message):
        F.local_kernel_ridge(query, centers, values, rows, kernel=kernels.Exponential(), trend=trend, backend="fused")
