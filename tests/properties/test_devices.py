"""What accelerators run: no number is looked at on the way, and the results are those of the CPU."""

import pytest
import torch

from torchkrr import kernels
from torchkrr.core import cells
from torchkrr.core.cells import LocalProblem
from torchkrr.core.local import solve_embedded
from torchkrr.core.options import SolveOptions

SHAPES = {"mean": (6, 2), "weights": (6, 9), "path": (6, 9, 2), "coefficients": (6, 10, 2)}


def problem(device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    query, centers, values = (torch.randn(*size, generator=generator, dtype=dtype) for size in ((6, 3), (40, 3), (40, 2)))
    centers[1] = centers[0] + (1e-5 if dtype == torch.float64 else 1e-2)  # a pair that inner products resolve badly
    query[0] = 30  # far outside
    indices = torch.stack([torch.randperm(40, generator=generator)[:9] for _ in range(6)])
    indices[:, :2] = torch.tensor([0, 1])
    ridge = torch.tensor(1e-3, dtype=dtype)
    return [tensor.to(device) for tensor in (query, centers, values, ridge, indices)]


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kind", SHAPES)
def test_solving_needs_no_numbers(kind, trend):
    # On the meta device there are none: any look at one is an error.
    options = SolveOptions(kernels.Matern32(1.5).to("meta"), trend=trend, backend="torch", kind=kind)
    with torch.no_grad():
        first, power_squared, resolved = solve_embedded(LocalProblem(*problem("meta")), options)
    assert first.shape == SHAPES[kind]
    assert (power_squared.device.type, resolved.device.type) == ("meta", "meta")


@pytest.mark.parametrize("fade", [False, True])
def test_gradients_need_no_numbers(fade):
    query, centers, values, ridge, indices = problem("meta")
    leaves = [tensor.requires_grad_() for tensor in (query, centers, values, ridge)]
    options = SolveOptions(kernels.Matern32(1.5).to("meta"), trend="constant", fade=fade, backend="torch")
    found = solve_embedded(LocalProblem(*leaves, indices), options)
    gradients = torch.autograd.grad(found.first.sum() + found.power_squared.sum(), leaves)
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_accelerators_run_gives_the_same(kind, dtype, monkeypatch):
    results = []
    for host in (True, False):
        if not host:
            monkeypatch.setattr(cells, "is_host", lambda tensor: False)
        query, centers, values, ridge, indices = problem(dtype=dtype)
        leaves = [tensor.requires_grad_() for tensor in (query, centers, values, ridge)]
        options = SolveOptions(kernels.Matern32(1.5), trend="constant", backend="torch", kind=kind)
        found = solve_embedded(LocalProblem(*leaves, indices), options)
        loss = found.first.square().sum() + found.power_squared.sum()
        results.append(
            (found.first, found.power_squared, *torch.autograd.grad(loss, leaves, materialize_grads=True, allow_unused=True))
        )
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    for host, device in zip(*results, strict=True):
        scale = float(host.detach().abs().max())
        torch.testing.assert_close(device, host, rtol=0, atol=tolerance * scale)
