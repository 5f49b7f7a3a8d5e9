"""Predictions from given neighborhoods: this library, plain torch and peers, each through its public interface.

All share one signature, one formula, the exponential kernel (Matern 1/2), and one number on the diagonal: `ridge` here,
`noise` there. Asking for a method whose package is absent raises `optional.NotInstalledError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from benchmarks import optional, plain
from torchkrr import functional as F
from torchkrr import kernels

# (query, centers, values, neighbor indices, lengthscale, ridge) to predictions
Solve = Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor]
OURS, TORCH_PATH, PLAIN = "torchkrr", "torchkrr, torch path", "plain torch"
GPYTORCH, GPYTORCH_ONE = "GPyTorch", "GPyTorch, one output"
MUYGPS, MUYGPS_NUMPY = "MuyGPyS torch", "MuyGPyS numpy"


class Method(NamedTuple):
    """A way to solve, if its package is there. Of several with one name the fastest counts."""

    name: str
    make: Callable[[], Solve]
    gradients: bool = True


def torchkrr(backend: Literal["auto", "fused", "torch"]) -> Solve:
    def solve(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, lengthscale: float, ridge: float) -> Tensor:
        kernel = kernels.Exponential(lengthscale)
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=ridge, backend=backend)

    return solve


def plain_torch(chunk: int) -> Solve:
    return partial(plain.local_kernel_ridge, chunk=chunk)


def gpytorch(chunk: int, outputs: int | None = None) -> Solve:
    """A batch of exact Gaussian processes, one for each query and output: GPyTorch has one target per batch element."""
    gp = optional.require("gpytorch")

    class Posterior(gp.models.ExactGP):  # type: ignore[name-defined]
        def __init__(self, points: Tensor, targets: Tensor, likelihood: Any, kernel: Any) -> None:
            super().__init__(points, targets, likelihood)
            self.mean, self.kernel = gp.means.ZeroMean(), kernel

        def forward(self, points: Tensor) -> Any:
            return gp.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    def solve(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, lengthscale: float, ridge: float) -> Tensor:
        kernel = gp.kernels.MaternKernel(nu=0.5)
        # By default the noise cannot be below 1e-4.
        likelihood = gp.likelihoods.GaussianLikelihood(noise_constraint=gp.constraints.Positive())
        kernel.lengthscale, likelihood.noise = lengthscale, ridge
        kernel.requires_grad_(False)
        likelihood.requires_grad_(False)
        settings = gp.settings
        parts = []
        for rows, points in zip(indices.split(chunk), query.split(chunk), strict=True):
            targets = values[rows][..., :outputs].movedim(-1, 0)  # (C, q, M)
            local = centers[rows].expand(len(targets), -1, -1, -1)  # (C, q, M, D)
            model = Posterior(local, targets, likelihood, kernel).eval()
            with settings.skip_posterior_variances(True), settings.detach_test_caches(False), settings.debug(False):
                mean = model(points[:, None].expand(len(targets), -1, -1, -1)).mean  # (C, q, 1)
            parts.append(mean.squeeze(-1).T)
        return torch.cat(parts)

    return solve


def muygps_model(muygps: Any, lengthscale: float, ridge: float) -> Any:
    number, deformation = muygps.hyperparameter.ScalarParam, muygps.deformation
    kernel = muygps.kernels.Matern(
        smoothness=number(0.5),
        deformation=deformation.Isotropy(metric=deformation.l2, length_scale=number(lengthscale)),
    )
    return muygps.gp.MuyGPS(kernel=kernel, noise=muygps.noise.HomoscedasticNoise(ridge))


def muygps(backend: Literal["torch", "numpy"], megabytes: int, bits: int = 32) -> Solve:
    """In chunks of so much memory: MuyGPyS holds all differences, (q, M, M, D)."""
    package = optional.muygpys(backend, bits)

    def solve(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, lengthscale: float, ridge: float) -> Tensor:
        model = muygps_model(package, lengthscale, ridge)
        (num_neighbors, features), outputs = (indices.shape[1], query.shape[1]), values.shape[1]
        if outputs == num_neighbors:
            # It tells outputs from neighbors by their number, and needs these to differ.
            values = torch.cat((values, torch.zeros_like(values[:, :1])), 1)
        chunk = max(1, 8 * megabytes * 2**20 // (bits * num_neighbors**2 * features))
        if backend == "numpy":
            query, centers, values, indices = (t.numpy() for t in (query, centers, values, indices))  # type: ignore[assignment]
        parts = []
        for start in range(0, len(query), chunk):
            rows, points = indices[start : start + chunk], query[start : start + chunk]
            every = torch.arange(len(points)) if backend == "torch" else range(len(points))
            cross, pairwise, targets = model.make_predict_tensors(every, rows, points, centers, values)
            parts.append(torch.as_tensor(model.posterior_mean(model.kernel(pairwise), model.kernel(cross), targets)))
        return torch.cat(parts)[:, :outputs]

    return solve


# Sizes of chunks tried before: at M = 100, 1 to 256 MB (MuyGPyS, D = 8, 32, 512) and 4 to 256 queries (GPyTorch, D = 32).
METHODS: dict[str, Method] = {
    OURS: Method(OURS, partial(torchkrr, "auto")),
    TORCH_PATH: Method(TORCH_PATH, partial(torchkrr, "torch")),
    **{f"{PLAIN}, chunks of {chunk}": Method(PLAIN, partial(plain_torch, chunk)) for chunk in (64, 256)},
    **{f"{GPYTORCH}, chunks of {chunk}": Method(GPYTORCH, partial(gpytorch, chunk)) for chunk in (64, 256)},
    **{f"{GPYTORCH_ONE}, chunks of {chunk}": Method(GPYTORCH_ONE, partial(gpytorch, chunk, 1)) for chunk in (64, 256)},
    **{f"{MUYGPS}, chunks of {size} MB": Method(MUYGPS, partial(muygps, "torch", size)) for size in (4, 16)},
    f"{MUYGPS_NUMPY}, chunks of 4 MB": Method(MUYGPS_NUMPY, partial(muygps, "numpy", 4), gradients=False),
}
NAMES = list(dict.fromkeys(method.name for method in METHODS.values()))


def available(only: set[str] | None = None) -> tuple[dict[str, Solve], dict[str, str]]:
    """The ways that can be used, and what the tables say of the others."""
    found, missing = {}, {}
    for way, method in METHODS.items():
        if only is not None and method.name not in only:
            continue
        try:
            found[way] = method.make()
        except optional.NotInstalledError as error:
            missing[method.name] = str(error)
    return found, missing


def fastest(times: dict[str, float]) -> dict[str, float]:
    """The least of the ways of each method."""
    return {name: min(values) for name, values in _by_name(times).items()}


def worst(errors: dict[str, float]) -> dict[str, float]:
    """The largest of the ways of each method."""
    return {name: max(values) for name, values in _by_name(errors).items()}


def _by_name(numbers: dict[str, float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for way, value in numbers.items():
        found.setdefault(METHODS[way].name, []).append(value)
    return found
