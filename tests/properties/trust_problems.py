"""Problems on which rounding could go unnoticed, by family, and every way of asking the library for their answers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.properties.trust_truth import Answer, Cells, Radial, answer
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import RidgeRaisedWarning

KINDS = {  # what is asked of the library, and of which the true answer is an instance
    "local": "mean",
    "dense": "mean",
    "leave one out": "mean",
    "local weights": "weights",
    "dense weights": "weights",
    "power": "power",
    "path": "path",
    "gradient": "gradient",
}
KERNELS = (  # the worst conditioned twice
    "Exponential",
    "Gaussian",
    "Matern32",
    "RationalQuadratic",
    "Matern52",
    "Gaussian",
    "Wendland",
    "InverseMultiquadric",
)
DENSE = ("dense", "dense weights")
QUERIES = 8  # cells of one problem: few, so that a family has many problems
SIZES = {1: 2, 2: 2, 3: 3, 5: 7, 8: 10, 14: 12, 20: 14, 30: 15, 50: 22, 100: 10, 200: 2, 400: 1}  # M, and its share in 100
LARGEST = {"path": 50, "gradient": 100, "leave one out": 30}
RIDGES = (0.0, 1e-12, 1e-9, 1e-9, 1e-6, 1e-3)  # the default twice


# Points: `count` of them, about one apart or one wide.

Layout = Callable[[np.random.Generator, int], np.ndarray]


def _grid(dimension: int) -> Layout:
    def layout(rng: np.random.Generator, count: int) -> np.ndarray:
        side = int(np.ceil(count ** (1 / dimension) - 1e-9))
        axes = np.meshgrid(*[np.arange(float(side))] * dimension, indexing="ij")
        points = np.stack([axis.ravel() for axis in axes], 1)
        return points[:count] if rng.random() < 0.5 else rng.permutation(points)[:count]

    return layout


def _chebyshev(rng: np.random.Generator, count: int) -> np.ndarray:
    side = count if rng.random() < 0.7 else int(np.ceil(np.sqrt(count)))
    line = np.cos((2 * np.arange(side) + 1) * np.pi / (2 * side))
    return line[:, None] if side == count else np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)[:count]


def _features(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 2, 3, 5, 8, 16]))


def _uniform(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.random((count, _features(rng)))


def _normal(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, _features(rng)))


def _clusters(rng: np.random.Generator, count: int) -> np.ndarray:
    points = _normal(rng, count)
    middles = rng.normal(size=(int(rng.integers(1, 9)), points.shape[1]))
    return middles[rng.integers(len(middles), size=count)] + 10 ** rng.uniform(-4, -0.5) * points


def _duplicates(rng: np.random.Generator, count: int) -> np.ndarray:
    few = _normal(rng, max(1, count // int(rng.integers(2, 4))))
    return few[rng.integers(len(few), size=count)]


def _near_duplicates(rng: np.random.Generator, count: int) -> np.ndarray:
    points = _normal(rng, count)
    copies = points[rng.integers(count, size=count)]
    moved = copies + 10 ** rng.uniform(-7, -1, size=(count, 1)) * rng.normal(size=points.shape)
    return np.where(rng.random((count, 1)) < 0.3, moved, points)


def _any(rng: np.random.Generator, count: int) -> np.ndarray:
    return [_grid(1), _grid(2), _chebyshev, _uniform, _normal][rng.integers(5)](rng, count)


FAMILIES: dict[str, Layout] = {
    "grid 1-D": _grid(1),
    "grid 2-D": _grid(2),
    "grid 3-D": _grid(3),
    "Chebyshev": _chebyshev,
    "uniform": _uniform,
    "normal": _normal,
    "clusters": _clusters,
    "duplicates, conflicting": _duplicates,
    "duplicates, equal": _duplicates,
    "near-duplicates": _near_duplicates,
    "far queries": _any,
    "N = M": _any,
}


# Problems.


@dataclass(frozen=True)
class Problem:
    name: str
    kind: str
    kernel: kernels.Kernel
    radial: Radial
    query: Tensor
    centers: Tensor
    values: Tensor
    indices: Tensor  # (Q, M)
    ridge: float
    trend: str | None
    backend: str
    directions: Tensor  # (Q, C), for gradients

    def __len__(self) -> int:
        return len(self.query)

    def __str__(self) -> str:
        options = {k: v for k, v in self.radial._asdict().items() if k not in ("name", "lengthscale")}
        return (
            f"{self.name}: {self.kind}, {self.radial.name}({self.radial.lengthscale:.4g}, {options}), ridge={self.ridge:g}, "
            f"trend={self.trend}, {self.query.dtype}, {self.backend}, N={len(self.centers)}, M={self.indices.shape[1]}, "
            f"D={self.query.shape[1]}, C={self.values.shape[1]}"
        )

    def rows(self, rows: Any) -> Problem:
        """The same problem at some of its queries."""
        if self.kind == "leave one out":
            assert len(rows) == len(self), "centers are left out all in one call"
        return replace(self, query=self.query[rows], indices=self.indices[rows], directions=self.directions[rows])

    @functools.cached_property
    def cells(self) -> Cells:
        query, centers, values, directions = (
            t.double().numpy() for t in (self.query, self.centers, self.values, self.directions)
        )
        indices = self.indices.numpy()
        chosen = (query, centers[indices], values[indices], self.ridge, self.trend is not None, directions)
        return Cells(self.radial, *chosen, centers, indices)

    @functools.cached_property
    def truth(self) -> Answer:
        return answer(self.cells, KINDS[self.kind], np.random.default_rng(0))

    @functools.cached_property
    def singular(self) -> np.ndarray:
        """Which cells have no answer at all: ridge zero, and two members in one place."""
        if self.ridge > 0:
            return np.zeros(len(self), bool)
        return np.array([len(np.unique(x, axis=0)) < len(x) for x in self.cells.members])


def _kernel(rng: np.random.Generator, name: str, lengthscale: float, features: int) -> tuple[kernels.Kernel, Radial]:
    options: dict[str, Any] = {}
    if name == "Wendland":
        options = {"dimension": features, "smoothness": int(rng.integers(4))}
        lengthscale *= 4  # nothing is left of it at one lengthscale
    elif name == "RationalQuadratic":
        options = {"alpha": float(rng.choice([0.5, 1.0, 3.0]))}
    kernel: kernels.Kernel = getattr(kernels, name)(lengthscale, **options)
    if "alpha" in options:  # the logarithm is what is stored
        options["alpha"] = float(kernel.alpha)
    return kernel, Radial(name, float(kernel.lengthscale), **options)


def _queries(rng: np.random.Generator, centers: np.ndarray, count: int, far: bool) -> np.ndarray:
    """On a center, near one, between two, anywhere; or all far away."""
    low, high = centers.min(0), centers.max(0)
    if far:
        way = rng.normal(size=(count, centers.shape[1]))
        way *= np.linalg.norm(high - low) * 10 ** rng.uniform(0, 2, size=(count, 1)) / np.linalg.norm(way, axis=1)[:, None]
        return centers.mean(0) + way
    a, b = centers[rng.integers(len(centers), size=(2, count))]
    noise = rng.normal(size=a.shape)
    anywhere = low + (high - low) * rng.random(a.shape)
    ways = np.stack([a, a + 10 ** rng.uniform(-6, -1) * noise, (a + b) / 2, anywhere, anywhere])
    return ways[rng.integers(5, size=count), np.arange(count)]


def _values(rng: np.random.Generator, centers: np.ndarray, lengthscale: float, noisy: bool) -> np.ndarray:
    outputs = int(rng.integers(1, 4))
    if noisy:
        values = rng.normal(size=(len(centers), outputs))
    else:
        ways = rng.normal(size=(centers.shape[1], outputs)) / (lengthscale * 10 ** rng.uniform(0, 1))
        values = np.sin(centers @ ways + rng.random(outputs))
    return values * 10 ** rng.choice([0.0, rng.uniform(-4, 4)])


def draw(family: str, kind: str, number: int) -> Problem:
    """The same problem for the same number, everywhere."""
    rng = np.random.default_rng([list(FAMILIES).index(family), list(KINDS).index(kind), number])
    sizes = [size for size in SIZES if size <= LARGEST.get(kind, 400)]
    shares = np.array([SIZES[size] for size in sizes])
    members = int(rng.choice(sizes, p=shares / shares.sum()))
    whole = kind in DENSE or (family == "N = M" and kind != "leave one out")
    count = members if whole else members + 1 if kind == "leave one out" else min(2 * members + 10, max(500, members))
    name = KERNELS[number % len(KERNELS)]
    dtype = torch.float64 if rng.random() < 0.3 else torch.float32

    centers = FAMILIES[family](rng, count)
    # Copies of a point do not make the points denser.
    distinct, copy_of = np.unique(centers, axis=0, return_inverse=True)
    extent = float(np.ptp(centers, axis=0).max()) or 1.0
    spacing = extent / len(distinct) ** (1 / centers.shape[1])
    lengthscale = spacing * 10 ** rng.uniform(-0.2, 1.0 if name == "Gaussian" else 1.3)
    kernel, radial = _kernel(rng, name, lengthscale, centers.shape[1])
    values = _values(rng, centers, lengthscale, noisy=family == "duplicates, conflicting" or rng.random() < 0.5)
    if family == "duplicates, equal":
        values = values[np.unique(centers, axis=0, return_index=True)[1]][copy_of.ravel()]
    if rng.random() < 0.1:  # far from the origin, so that rounding of the points shows
        centers = centers + 10 * extent * rng.normal(size=centers.shape[1])

    queries = count if kind == "leave one out" else QUERIES if members <= 100 else QUERIES // 2
    query = (
        centers
        if kind == "leave one out"
        else _queries(rng, centers, queries, family == "far queries" or rng.random() < 0.1)
    )
    numbers = [
        torch.from_numpy(array).to(dtype) for array in (query, centers, values, rng.normal(size=(queries, values.shape[1])))
    ]
    apart = torch.cdist(numbers[0].double(), numbers[1].double(), compute_mode="donot_use_mm_for_euclid_dist")
    if kind == "leave one out":
        indices = torch.stack([torch.cat([torch.arange(i), torch.arange(i + 1, count)]) for i in range(count)])
    else:
        indices = apart.argsort(dim=1, stable=True)[:, :members]
    trend = "constant" if rng.random() < 0.2 else None
    takes_fused = kind not in DENSE or (kind == "dense" and trend is None and count <= 192)
    backend = "torch" if rng.random() < 0.5 else "fused" if takes_fused else "auto"
    ridge = RIDGES[rng.integers(len(RIDGES))]
    query, centers, values, directions = numbers
    return Problem(
        f"{family} {number}", kind, kernel, radial, query, centers, values, indices, ridge, trend, backend, directions
    )


# The library's answers.


class Outcome(NamedTuple):
    parts: list[np.ndarray]  # first axis the cells
    warned: bool


def ask(p: Problem) -> Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = _ask(p)
    unexpected = [w.message for w in caught if not issubclass(w.category, RidgeRaisedWarning)]
    assert not unexpected, unexpected
    return Outcome([part.detach().double().numpy() for part in parts], bool(caught))


def _ask(p: Problem) -> list[Tensor]:
    options: Any = {"kernel": p.kernel, "ridge": p.ridge, "trend": p.trend}
    local = {**options, "backend": p.backend}
    match p.kind:
        case "local":
            return [F.local_kernel_ridge(p.query, p.centers, p.values, p.indices, **local)]
        case "dense":
            return [F.kernel_ridge(p.query, p.centers, p.values, **local)]
        case "leave one out":
            return [F.leave_one_out(p.centers, p.values, **options)]
        case "local weights":
            return [F.local_cardinal_weights(p.query, p.centers, p.indices, **local)]
        case "dense weights":
            # The columns are centers; the truth has them in the order of the distance.
            return [F.cardinal_weights(p.query, p.centers, **options).gather(1, p.indices)]
        case "power":
            return [F.local_power_function(p.query, p.centers, p.indices, **local)]
        case "path":
            return list(F.local_path(p.query, p.centers, p.values, p.indices, **local))
    # Each cell gets members of its own, so that the rows of the gradient are the cell's alone.
    cells, members = p.indices.shape
    query = p.query.clone().requires_grad_()
    centers, values = (t[p.indices].flatten(0, 1).requires_grad_() for t in (p.centers, p.values))
    result = F.local_kernel_ridge(query, centers, values, torch.arange(cells * members).view(cells, members), **local)
    by_query, by_centers, by_values = torch.autograd.grad((result * p.directions).sum(), [query, centers, values])
    return [by_query, by_centers.view(cells, members, -1), by_values.view(cells, members, -1)]
