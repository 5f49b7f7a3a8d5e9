"""Ten thousand hard float32 problems: no crash, no NaN, no silence, no needless warning.

Near-duplicates, exact duplicates with conflicting values, tight clusters, constant features, lines and grids, scales from
1e-6 to 1e6, M = N, N = 1, every kernel, with and without trend and fade. Each problem is solved in float32 and in
float64 from the same float32 numbers, and by the independent loop of `reference`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests import reference
from torch import Tensor

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import RidgeRaisedWarning

BLOCKS, PER_BLOCK = 20, 500
LONGEST_PATH, MOST_LEFT_OUT = 10, 10  # what the loop repeats for every row; it would take most of the time
EPSILON = float(np.finfo(np.float64).eps)

# Float32 against float64, relative to the largest value in the cell.
SILENT_ERROR = 0.05

# A loop has meaning where its own rounding error is small: its weights are off by A^-1 (Delta k - Delta A w), its
# predictions, relative to the values, by about eps (1 + |w|) / lambda_min times a power of M. Rows where this is below
# LOOP_TRUSTED are compared, with a tolerance that leaves room for that power.
LOOP_TRUSTED, LOOP_TOLERANCE = 1e-8, 1e-5

# No squared pivot is below the smallest eigenvalue, so a cell with eps |w| / lambda_min under the threshold of the library,
# 1e-3, is resolved by its own rule whatever the order of the centers: a warning about it would be needless.
SURELY_RESOLVED = 5e-4


@dataclass(frozen=True)
class HardProblem:
    """Float32 tensors, and the same in float64 with the lengthscale divided out for the loop."""

    seed: int
    layout: str
    query: Tensor
    centers: Tensor
    values: Tensor
    indices: Tensor  # (Q, M), or (Q, M + 1) with fade
    kernel: kernels.Kernel
    kernel_name: str
    profile: reference.Profile
    lengthscale: float
    ridge: float
    trend: str | None
    fade: bool

    def embedded(self, points: Tensor) -> np.ndarray:
        return points.double().numpy() / self.lengthscale

    @functools.cached_property
    def distinct(self) -> bool:
        return len(np.unique(self.centers.numpy(), axis=0)) == len(self.centers)

    def __str__(self) -> str:
        (queries, columns), (centers, features) = self.indices.shape, self.centers.shape
        return (
            f"seed {self.seed}: {self.layout}, {self.kernel_name}({self.lengthscale:.3g}), ridge={self.ridge:g}, "
            f"trend={self.trend}, fade={self.fade}, Q={queries}, N={centers}, D={features}, columns={columns}"
        )


# Drawing problems.


def _clusters(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    middles = rng.normal(size=(rng.integers(1, 5), centers.shape[1]))
    return middles[rng.integers(len(middles), size=len(centers))] + 10 ** rng.uniform(-6, 0) * centers


def _near_duplicates(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    copies = centers[rng.integers(len(centers), size=len(centers))]
    moved = copies + 10 ** rng.uniform(-7, -1, size=(len(centers), 1)) * rng.normal(size=centers.shape)
    return np.where(rng.random((len(centers), 1)) < 0.5, moved, centers)


def _duplicates(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    return centers[rng.integers(max(1, len(centers) // 2), size=len(centers))]


def _constant_features(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    return np.where(rng.random(centers.shape[1]) < 0.5, centers, rng.normal())


def _line(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    return rng.normal(size=centers.shape[1]) * rng.normal(size=(len(centers), 1)) + rng.normal(size=centers.shape[1])


def _grid(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    return np.round(centers * rng.integers(1, 4)) / 2


def _uneven_features(rng: np.random.Generator, centers: np.ndarray) -> np.ndarray:
    return centers * 10 ** rng.uniform(-6, 0, size=centers.shape[1])


LAYOUTS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "random": lambda rng, centers: centers,
    "clusters": _clusters,
    "near-duplicates": _near_duplicates,
    "duplicates": _duplicates,
    "constant features": _constant_features,
    "line": _line,
    "grid": _grid,
    "uneven features": _uneven_features,
}


def _queries(rng: np.random.Generator, centers: np.ndarray, count: int) -> np.ndarray:
    """On a center, near one, between two, anywhere, or far away."""
    rows = []
    for _ in range(count):
        a, b = centers[rng.integers(len(centers), size=2)]
        noise = rng.normal(size=centers.shape[1])
        rows.append([a, a + 10 ** rng.uniform(-6, -1) * noise, (a + b) / 2, noise, 10 * noise][rng.integers(5)])
    return np.stack(rows)


def _kernel(rng: np.random.Generator, features: int, lengthscale: float) -> tuple[str, kernels.Kernel, reference.Profile]:
    others = [name for name in reference.PROFILES if name != "Exponential"]
    name = "Exponential" if rng.random() < 0.6 else others[rng.integers(len(others))]
    options: dict[str, Any] = {}
    if name == "Wendland":
        options = {"dimension": features, "smoothness": int(rng.integers(4))}
    elif name == "RationalQuadratic":
        options = {"alpha": float(rng.choice([0.5, 1.0, 3.0]))}
    kernel: kernels.Kernel = getattr(kernels, name)(lengthscale, **options)
    return name, kernel, functools.partial(reference.PROFILES[name], **options)


def draw(seed: int) -> HardProblem:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([1, 2, rng.integers(1, 12), rng.integers(1, 61)], p=[0.05, 0.05, 0.6, 0.3]))
    features = int(rng.choice([1, 2, 3, 5, 8, 16]))
    layout = list(LAYOUTS)[rng.integers(len(LAYOUTS))]
    centers = LAYOUTS[layout](rng, rng.normal(size=(count, features)))
    query = _queries(rng, centers, int(rng.integers(1, 7)))
    values = rng.normal(size=(count, int(rng.integers(1, 4)))) * 10 ** rng.choice([0.0, rng.uniform(-6, 6)])

    scale = 10 ** rng.choice([0.0, rng.uniform(-6, 6)])
    offset = rng.choice([0.0, 1.0, 30.0], p=[0.7, 0.2, 0.1]) * rng.normal(size=features)
    # Half of the time the kernel knows the scale, half of the time the data are far too large or too small for it.
    lengthscale = float(rng.choice([1.0, scale * 10 ** rng.uniform(-1, 1)]))
    name, kernel, profile = _kernel(rng, features, lengthscale)
    query, centers, values = (
        torch.from_numpy(array.astype(np.float32))
        for array in (scale * (query + offset), scale * (centers + offset), values)
    )

    neighbors = count if rng.random() < 0.3 else int(rng.integers(1, count + 1))
    fade = count > 1 and rng.random() < 0.2
    columns = min(neighbors + 1, count) if fade else neighbors
    embedded = query.double().numpy() / lengthscale, centers.double().numpy() / lengthscale
    indices = reference.nearest(*embedded, columns)
    return HardProblem(
        seed,
        layout,
        query,
        centers,
        values,
        torch.from_numpy(indices),
        kernel,
        name,
        profile,
        lengthscale,
        ridge=float(rng.choice([1e-9, 0.0, 1e-12, 1e-6, 1e-2], p=[0.7, 0.1, 0.05, 0.1, 0.05])),
        trend="constant" if rng.random() < 0.25 else None,
        fade=fade and _ring_is_resolved(*embedded, indices),
    )


def _ring_is_resolved(query: np.ndarray, centers: np.ndarray, indices: np.ndarray) -> bool:
    """Whether float32 knows the width of the ring in which neighbors fade.

    The taper of a neighbor at the inner radius jumps from 1 to 0 as the width of the ring goes to zero, so a ring that is
    there in float64 and not in float32 poses two different problems.
    """
    to_columns = np.sqrt(((centers[indices] - query[:, None]) ** 2).sum(-1))  # (Q, M + 1)
    inner = to_columns[:, math.ceil(3 * (indices.shape[1] - 1) / 4) - 1]
    size = max(np.abs(query).max(), np.abs(centers).max())
    return bool((to_columns[:, -1] - inner > 1e3 * np.finfo(np.float32).eps * size).all())


# Solving one problem in three ways.


class Outcome(NamedTuple):
    result: np.ndarray
    warned: bool


def run(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*arguments, **options)
    unexpected = [w.message for w in caught if not issubclass(w.category, RidgeRaisedWarning)]
    assert not unexpected, unexpected
    assert len(caught) <= 1, "one warning per call, however many cells"
    return Outcome(result.double().numpy(), bool(caught))


class Check(NamedTuple):
    """One library function on one problem: how to call it in either dtype and by loop, and the scale of its errors."""

    name: str
    ours: Callable[[torch.dtype], Outcome]
    loop: Callable[[np.ndarray], np.ndarray]  # the given rows of the result
    cells: Callable[[], list[Cell]]  # the systems its rows depend on, in order
    scale: np.ndarray  # broadcasts against the result


class Cell(NamedTuple):
    """How well conditioned the system of one row is."""

    smallest_eigenvalue: float
    weight_norm: float

    @property
    def rounding(self) -> float:
        return EPSILON * (1 + self.weight_norm) / max(self.smallest_eigenvalue, 1e-300)


def cell(p: HardProblem, point: np.ndarray, members: np.ndarray, radius: float | None = None) -> Cell:
    to_members = reference.distances(members, point[None])[:, 0]
    faded = np.ones(len(members)) if radius is None else reference.taper(to_members, radius)
    gram = p.profile(reference.distances(members, members)) + p.ridge * np.eye(len(members))
    # The tapered form is bounded where 1/s^2 is not, and it is what the library factors.
    matrix = faded[:, None] * gram * faded + np.diag(1 - faded**2)
    smallest = float(np.linalg.eigvalsh(matrix)[0])
    if smallest < 1e-14:  # not distinguishable from zero, nor solvable
        return Cell(0.0, np.inf)
    inner, direction = np.linalg.solve(matrix, np.stack([faded * p.profile(to_members), faded], 1)).T
    norm = float(np.linalg.norm(inner))
    total = float(faded @ direction)
    if p.trend and total > 0:
        norm = max(norm, float(np.linalg.norm(inner + direction * (1 - faded @ inner) / total)))
    return Cell(smallest, norm)


def local_cells(p: HardProblem, columns: int | None = None) -> list[Cell]:
    query, centers = p.embedded(p.query), p.embedded(p.centers)
    rows = p.indices.numpy()[:, :columns]
    if not p.fade:
        return [cell(p, z, centers[row]) for z, row in zip(query, rows, strict=True)]
    radii = np.sqrt(((centers[rows[:, -1]] - query) ** 2).sum(-1))
    return [cell(p, z, centers[row[:-1]], radius) for z, row, radius in zip(query, rows, radii, strict=True)]


def dense_cells(p: HardProblem) -> list[Cell]:
    return [cell(p, z, p.embedded(p.centers)) for z in p.embedded(p.query)]


def left_out_cells(p: HardProblem) -> list[Cell]:
    centers = p.embedded(p.centers)
    whole = cell(p, centers[0], centers).smallest_eigenvalue
    rows = range(min(len(centers), MOST_LEFT_OUT))
    left = [cell(p, centers[i], np.delete(centers, i, axis=0)) for i in rows]
    # The closed form inverts the whole matrix, so that is what must be well conditioned.
    return [c._replace(smallest_eigenvalue=min(whole, c.smallest_eigenvalue)) for c in left]


def checks(p: HardProblem) -> Iterator[Check]:
    z, x, y = p.embedded(p.query), p.embedded(p.centers), p.values.double().numpy()
    indices = p.indices.numpy()
    largest = np.abs(y[indices]).max((1, 2))[:, None]  # (Q, 1)
    options = {"kernel": p.kernel, "ridge": p.ridge, "trend": p.trend}
    plain = {"profile": p.profile, "ridge": p.ridge, "trend": p.trend}
    one = np.ones((1, 1))
    cells = functools.cache(lambda: local_cells(p))

    def ours(function: Callable[..., Any], *tensors: Tensor, **more: Any) -> Callable[[torch.dtype], Outcome]:
        def call(dtype: torch.dtype) -> Outcome:
            cast = (t.to(dtype) if t.is_floating_point() else t for t in tensors)
            return run(function, *cast, **options, **more)

        return call

    yield Check(
        "local_kernel_ridge",
        ours(F.local_kernel_ridge, p.query, p.centers, p.values, p.indices, fade=p.fade),
        lambda rows: reference.local_kernel_ridge(z[rows], x, y, indices[rows], **plain, fade=p.fade),
        cells,
        largest,
    )
    # One other function per problem, in turn: the rule is the same for all.
    which = p.seed % 6
    if which == 0:
        yield Check(
            "local_cardinal_weights",
            ours(F.local_cardinal_weights, p.query, p.centers, p.indices, fade=p.fade),
            lambda rows: reference.local_cardinal_weights(z[rows], x, indices[rows], **plain, fade=p.fade),
            cells,
            one,
        )
    if which == 1:
        yield Check(
            "local_power_function, squared",
            ours(lambda *a, **k: F.local_power_function(*a, **k).square(), p.query, p.centers, p.indices, fade=p.fade),
            lambda rows: reference.local_power_function(z[rows], x, indices[rows], **plain, fade=p.fade) ** 2,
            cells,
            one[0],
        )
    if which == 2 and not p.fade:
        yield Check(
            "local_path",
            ours(lambda *a, **k: F.local_path(*a, **k).means, p.query, p.centers, p.values, p.indices[:, :LONGEST_PATH]),
            lambda rows: reference.local_path(z[rows], x, y, indices[rows, :LONGEST_PATH], **plain)[0],
            lambda: local_cells(p, LONGEST_PATH),
            largest[:, None],
        )
    if which == 3:
        yield Check(
            "kernel_ridge",
            ours(F.kernel_ridge, p.query, p.centers, p.values),
            lambda rows: reference.kernel_ridge(z[rows], x, y, **plain),
            lambda: dense_cells(p),
            np.abs(y).max() * one,
        )
    if which == 4:
        yield Check(
            "power_function, squared",
            ours(lambda *a, **k: F.power_function(*a, **k).square(), p.query, p.centers),
            lambda rows: reference.power_function(z[rows], x, **plain) ** 2,
            lambda: dense_cells(p),
            one[0],
        )
    if which == 5 and len(x) > 1:
        yield Check(
            "leave_one_out",
            ours(F.leave_one_out, p.centers, p.values),
            lambda rows: reference.leave_one_out(x, y, **plain, rows=rows),
            lambda: left_out_cells(p),
            np.abs(y).max() * one,
        )


def complaints(p: HardProblem, check: Check) -> Iterator[str]:
    single, double = check.ours(torch.float32), check.ours(torch.float64)
    for dtype, outcome in (("float32", single), ("float64", double)):
        if not np.isfinite(outcome.result).all():
            yield f"{dtype} result is not finite"
            return
    if not single.warned:
        error = float((np.abs(single.result - double.result) / check.scale).max())
        if error > SILENT_ERROR:
            yield f"silent error of {error:.3g} in float32"
    warned = single.warned or double.warned
    if warned and p.kernel_name == "Exponential" and p.distinct and p.ridge >= 1e-9:
        yield "ridge raised for the exponential kernel on distinct points"
    rounding = np.array([c.rounding for c in check.cells()])
    if warned and len(rounding) == len(double.result) and rounding.max() < SURELY_RESOLVED:
        yield f"ridge raised where float64 resolves every cell (rounding {rounding.max():.1e})"
    trusted = (rounding <= LOOP_TRUSTED).nonzero()[0]
    if not double.warned and len(trusted):
        scale = np.broadcast_to(check.scale, double.result.shape)[trusted]
        error = float((np.abs(double.result[trusted] - check.loop(trusted)) / scale).max())
        if error > LOOP_TOLERANCE:
            yield f"float64 is off the loop by {error:.3g} (rounding {rounding[trusted].max():.1e})"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_hard_float32_problems_are_solved_or_reported(block):
    found = []
    for seed in range(block * PER_BLOCK, (block + 1) * PER_BLOCK):
        p = draw(seed)
        for check in checks(p):
            found += [f"{check.name}: {text}\n    {p}" for text in complaints(p, check)]
    assert not found, f"{len(found)} of {PER_BLOCK} problems:\n" + "\n".join(found[:10])
