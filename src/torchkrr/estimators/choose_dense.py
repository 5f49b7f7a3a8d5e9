"""Kernels for regressors on all rows: candidates learned one by one, then mixed as leave-one-out asks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from .._progress import Progress
from ..kernels import Kernel
from ..tuning.select import scaled
from .members import Member
from .rows import Centers
from .scales import Path, Problem, Scales, first_scale, learn_scales, try_around
from .wanted import FACTORS, FIRST_FACTORS, LEAST_ROWS, Wanted, base

CANDIDATES = ("matern32", "laplacian", "gaussian")
SCREEN_ROWS = 300
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
RIDGE_FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0)
STEPS = 100
ROWS_PER_FEATURE = 3
LEAST_SHARE = 0.05
MOST_ROWS = 2000  # to choose from; more than that say no more about a few numbers
DEFAULT_RIDGE = 1e-2


class _Candidate(NamedTuple):
    kernel: Kernel
    path: Path


def choose_dense(centers: Centers, wanted: Wanted) -> tuple[Member, ...]:
    """Members on all centers; values of the centers are at zero mean and unit variance."""
    if len(centers.points) < 3:
        kernel = wanted.kernel if isinstance(wanted.kernel, Kernel) else _first_kernel(centers.points, wanted)
        ridge = DEFAULT_RIDGE if wanted.ridge is None else wanted.ridge
        return (Member(kernel, ridge, None, 1.0),)
    generator = torch.Generator().manual_seed(wanted.seed)
    if len(centers.points) > MOST_ROWS:
        some = torch.randperm(len(centers.points), generator=generator)[:MOST_ROWS].sort().values
        centers = centers.some(some)
    learn = wanted.metric == "ard" or (wanted.metric == "auto" and _enough(centers.points))
    names: tuple[str | Kernel, ...] = CANDIDATES if wanted.kernel is None else (wanted.kernel,)
    with Progress("learning kernels", len(names) * (STEPS * learn + 1), shown=wanted.progress) as bar, torch.no_grad():
        found = [_candidate(name, centers, wanted, learn, generator, bar) for name in names]
    return _mixture(found, centers)


def _enough(points: Tensor) -> bool:
    return len(points) >= max(LEAST_ROWS, ROWS_PER_FEATURE * points.shape[1])


def _first_kernel(points: Tensor, wanted: Wanted) -> Kernel:
    chosen = base(wanted.kernel if isinstance(wanted.kernel, str) else "matern32", points)
    return chosen.kernel(torch.tensor(math.exp(first_scale(chosen.transform(points.double())))))


def _candidate(
    name: str | Kernel, centers: Centers, wanted: Wanted, learn: bool, generator: torch.Generator, bar: Progress
) -> _Candidate:
    """One kernel, with the lengthscales and the ridge that suit it."""
    given = isinstance(name, Kernel)
    points = centers.points.double()
    if isinstance(name, Kernel):
        embedded, profile = name.embed(points), name
        groups = torch.arange(embedded.shape[1])
    else:
        chosen = base(name, points)
        embedded, profile, groups = chosen.transform(points), chosen.profile(), chosen.groups
    one = Problem(embedded, torch.zeros_like(groups), centers.values, centers.weights, profile)
    if given and not learn:
        start = Scales(torch.zeros(1, dtype=torch.float64), DEFAULT_RIDGE)
        path = try_around(one, start, (1.0,), wanted.ridges(RIDGES))
    else:
        start = Scales(torch.tensor([0.0 if given else first_scale(embedded)], dtype=torch.float64), DEFAULT_RIDGE)
        path = try_around(_some(one, generator), start, FIRST_FACTORS, wanted.ridges(RIDGES))
        if learn:
            many = one._replace(groups=groups)
            first = Scales(path.scales.logs.expand(int(groups.max()) + 1).clone(), path.scales.ridge)
            around = learn_scales(many, first, steps=STEPS, generator=generator, bar=bar)
            path = try_around(many, around, FACTORS, wanted.ridges([f * around.ridge for f in RIDGE_FACTORS]))
        else:
            path = try_around(one, path.scales, FACTORS, wanted.ridges([f * path.scales.ridge for f in RIDGE_FACTORS]))
    bar.advance()
    logs = path.scales.logs[0] if len(path.scales.logs) == 1 else path.scales.logs
    return _Candidate(scaled(name, logs) if isinstance(name, Kernel) else chosen.kernel(logs.exp()), path)


def _some(problem: Problem, generator: torch.Generator) -> Problem:
    """A few of the rows, for a first look."""
    if len(problem.embedded) <= SCREEN_ROWS:
        return problem
    return problem.rows(torch.randperm(len(problem.embedded), generator=generator)[:SCREEN_ROWS])


def _mixture(found: list[_Candidate], centers: Centers) -> tuple[Member, ...]:
    """The candidates in the shares, none negative, that fit the values best when every row is left out."""
    root = centers.weights.sqrt().unsqueeze(1)
    columns = torch.stack([(root * candidate.path.left_out).flatten() for candidate in found], dim=1)
    shares, _ = nnls(columns.numpy(), (root * centers.values).flatten().numpy())
    best = min(range(len(found)), key=lambda at: found[at].path.loss)
    if not np.isfinite(shares).all() or shares.sum() <= 0:
        shares = np.eye(len(found))[best]
    shares = shares / shares.sum()
    shares[shares < LEAST_SHARE] = 0.0
    shares = shares / shares.sum()
    order = sorted((at for at in range(len(found)) if shares[at] > 0), key=lambda at: -shares[at])
    return tuple(Member(found[at].kernel, found[at].path.scales.ridge, None, float(shares[at])) for at in order)
