"""From centers and values to predictions, search included: this library and its peers, each through its public interface.

A pipeline takes a `Problem` and gives a function from queries to predictions; building what it needs is part of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from benchmarks import methods, optional
from torchkrr import kernels, nn

Predict = Callable[[Tensor], Tensor]
OURS, OURS_GAUSSIAN, OURS_AUTO = "torchkrr, exponential", "torchkrr, Gaussian", "torchkrr, exponential, auto index"
SCIPY, MUYGPS, MUYGPS_DEFAULT, MUYGPS_NUMPY = (
    "scipy RBFInterpolator",
    "MuyGPyS torch",
    "MuyGPyS torch, default",
    "MuyGPyS numpy",
)
KNN, FLAT = "scikit-learn KNeighbors", "faiss flat, search alone"


class Problem(NamedTuple):
    """A smooth function, seen with noise at random places."""

    query: Tensor  # (Q, D)
    centers: Tensor  # (N, D)
    values: Tensor  # (N, C), with noise
    truth: Tensor  # (Q, C), without
    num_neighbors: int
    lengthscale: float
    ridge: float  # the variance of the noise, over that of the function

    def kernel(self, formula: str) -> kernels.Kernel:
        return kernels.Gaussian(self.lengthscale) if formula == "Gaussian" else kernels.Exponential(self.lengthscale)


def make_problem(num_queries: int, num_centers: int, features: int, num_neighbors: int, outputs: int = 10) -> Problem:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    waves, slopes = (torch.nn.functional.normalize(normal(features, outputs), dim=0) for _ in range(2))

    def function(points: Tensor) -> Tensor:
        return torch.sin(0.8 * points @ waves) + torch.tanh(0.8 * points @ slopes)

    query, centers = normal(num_queries, features), normal(num_centers, features)
    noise = 0.1 * normal(num_centers, outputs)
    lengthscale = float(torch.pdist(centers[:500]).mean())
    return Problem(query, centers, function(centers) + noise, function(query), num_neighbors, lengthscale, 1e-2)


def torchkrr(problem: Problem, formula: str = "exponential", index: Literal["auto"] | None = None) -> Predict:
    return nn.LocalKernelRidge(
        problem.centers,
        problem.values,
        problem.num_neighbors,
        kernel=problem.kernel(formula),
        ridge=problem.ridge,
        index=index,
    )


def scipy(problem: Problem) -> Predict:
    interpolate = optional.require("scipy.interpolate")
    model = interpolate.RBFInterpolator(
        problem.centers.numpy(),
        problem.values.numpy(),
        neighbors=problem.num_neighbors,
        kernel="gaussian",  # exp(-(epsilon r)^2)
        epsilon=0.5**0.5 / problem.lengthscale,
        smoothing=problem.ridge,
        degree=-1,
    )
    return lambda query: torch.from_numpy(model(query.numpy()))


def muygps(problem: Problem, backend: Literal["torch", "numpy"], megabytes: int, bits: int = 32) -> Predict:
    package = optional.muygpys(backend, bits)
    solve = methods.muygps(backend, megabytes, bits)
    dtype = torch.float64 if bits == 64 else torch.float32
    centers, values = problem.centers.to(dtype), problem.values.to(dtype)
    index = package.neighbors.NN_Wrapper(_array(centers, backend), problem.num_neighbors, nn_method="exact")

    def predict(query: Tensor) -> Tensor:
        query = query.to(dtype)
        indices, _ = index.get_nns(_array(query, backend))
        return solve(query, centers, values, torch.as_tensor(indices), problem.lengthscale, problem.ridge)

    return predict


def _array(tensor: Tensor, backend: str) -> Any:
    return tensor if backend == "torch" else tensor.numpy()


def knn(problem: Problem) -> Predict:
    neighbors = optional.require("sklearn.neighbors")
    model = neighbors.KNeighborsRegressor(problem.num_neighbors, weights="distance", n_jobs=-1)
    model.fit(problem.centers.numpy(), problem.values.numpy())
    return lambda query: torch.from_numpy(model.predict(query.numpy()))


def flat(problem: Problem) -> Predict:
    index = optional.require("faiss").IndexFlatL2(problem.centers.shape[1])
    index.add(problem.centers.numpy())
    return lambda query: torch.from_numpy(index.search(query.numpy(), problem.num_neighbors)[0])


PIPELINES: dict[str, Callable[[Problem], Predict]] = {
    OURS: torchkrr,
    OURS_GAUSSIAN: partial(torchkrr, formula="Gaussian"),
    OURS_AUTO: partial(torchkrr, index="auto"),
    SCIPY: scipy,
    MUYGPS: partial(muygps, backend="torch", megabytes=16),
    # As it comes: float64, and as many queries at once as have their differences in 1 GB.
    MUYGPS_DEFAULT: partial(muygps, backend="torch", megabytes=1024, bits=64),
    MUYGPS_NUMPY: partial(muygps, backend="numpy", megabytes=4),
    KNN: knn,
    FLAT: flat,
}
# Whose predictions are to be the same, up to rounding, as those of our layer in float64 with this kernel.
FORMULAS = {
    OURS: "exponential",
    OURS_GAUSSIAN: "Gaussian",
    OURS_AUTO: "exponential",
    SCIPY: "Gaussian",
    MUYGPS: "exponential",
    MUYGPS_DEFAULT: "exponential",
    MUYGPS_NUMPY: "exponential",
}


def available(problem: Problem, names: tuple[str, ...]) -> tuple[dict[str, Callable[[], Predict]], dict[str, str]]:
    """Pipelines that can be built, and what the tables say of the others."""
    found: dict[str, Callable[[], Predict]] = {}
    missing = {}
    for name in names:
        build = partial(PIPELINES[name], problem._replace(centers=problem.centers[:200], values=problem.values[:200]))
        try:
            build()
        except optional.NotInstalledError as error:
            missing[name] = str(error)
        else:
            found[name] = partial(PIPELINES[name], problem)
    return found, missing
