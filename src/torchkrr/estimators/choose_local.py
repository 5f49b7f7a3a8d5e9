"""Kernel, metric, ridge and number of neighbors for regressors on neighbors.

The metrics of a few kernels are learned on patches of near rows, in the closed form of leave-one-out; the best of them,
judged by leave-one-out from neighbors, is refined by gradient descent on that very loss, and what predicts best is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._progress import Progress
from ..kernels import Kernel
from ..tuning import Selection, learn_metric, select
from .members import Member
from .rows import Centers
from .scales import Problem, Scales, first_scale, learn_scales, try_around
from .wanted import Base, Wanted, base, plain_base

CANDIDATES = ("matern32", "exponential", "plain matern52")
NEIGHBORS = (10, 20, 50, 100, 200)  # more cost more than a prediction may
FIRST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FACTORS = (0.7, 1.0, 1.4)
FIRST_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
RIDGE_FACTORS = (0.1, 0.3, 1.0, 3.0)
LEAST_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
LEAST_ROWS = 50  # to learn a metric from
SAMPLES = 1000
SCREEN_ROWS = 400
RANDOM_STEPS, NEAR_STEPS = 40, 200
REFINE_STEPS, REFINE_SECONDS = 200, 15.0
SINGLE_RIDGE = 1e-6  # least ridge that is solved in float32


def choose_local(centers: Centers, wanted: Wanted) -> tuple[Member, ...]:
    """One member with a number of neighbors."""
    learn = wanted.metric in ("ard", "linear") or (wanted.metric == "auto" and len(centers.points) >= LEAST_ROWS)
    points, values = centers.points.float(), centers.values.float()
    if wanted.loss == "cross_entropy":
        values = values.clamp(0, 1)
        values = values / values.sum(1, keepdim=True)
    if isinstance(wanted.kernel, Kernel):
        factors = FACTORS if learn else (1.0,)
        best = _select(points, values, wanted.kernel, factors, _ridges(wanted, FIRST_RIDGES), wanted)
    else:
        names = CANDIDATES if wanted.kernel is None else (wanted.kernel,)
        steps = len(names) * ((RANDOM_STEPS + NEAR_STEPS) * learn + 1)
        with Progress("learning kernels", steps, shown=wanted.progress) as bar:
            found = [_learned(name, centers, points, values, wanted, learn, bar) for name in names]
        best = min(found, key=lambda choice: choice.score)
    if learn and wanted.kernel != "laplacian":  # a staircase has too many columns for a lengthscale each
        finer = _refined(points, values, best, wanted)
        best = finer if finer.score <= best.score or wanted.metric == "linear" else best
    count = best.num_neighbors if wanted.num_neighbors is None else wanted.num_neighbors
    single = wanted.ridge is None and best.ridge >= SINGLE_RIDGE
    return (Member(best.kernel, best.ridge, count, 1.0, single),)


@torch.no_grad()
def _learned(
    name: str, centers: Centers, points: Tensor, values: Tensor, wanted: Wanted, learn: bool, bar: Progress
) -> Selection:
    """One kernel with its lengthscales, ridge and number of neighbors."""
    chosen = _base(name, centers.points.double())
    embedded = chosen.transform(centers.points.double())
    generator = torch.Generator().manual_seed(wanted.seed)
    targets = centers.values - centers.values.mean(0)
    one = Problem(embedded, torch.zeros_like(chosen.groups), targets, centers.weights, chosen.profile())
    few = torch.randperm(len(embedded), generator=generator)[:SCREEN_ROWS]
    start = Scales(torch.tensor([first_scale(embedded)], dtype=torch.float64), LEAST_RIDGE)
    first = try_around(one.rows(few), start, FIRST_FACTORS, _ridges(wanted, FIRST_RIDGES)).scales
    alike = _select(
        points, values, chosen.kernel(first.logs[0].exp()), FACTORS, _ridges(wanted, _times(first.ridge)), wanted
    )
    if not learn or wanted.metric == "linear":
        bar.advance()
        return alike
    many = one._replace(groups=chosen.groups)
    scales = Scales(first.logs.expand(int(chosen.groups.max()) + 1).clone(), first.ridge)
    scales = learn_scales(many, scales, steps=RANDOM_STEPS, generator=generator, bar=bar)
    scales = learn_scales(many, scales, steps=NEAR_STEPS, generator=generator, bar=bar, near=True)
    kernel = chosen.kernel(scales.logs.exp())
    best = _select(points, values, kernel, FACTORS, _ridges(wanted, _times(scales.ridge)), wanted)
    bar.advance(note=f"{wanted.loss} {best.score:.4g}")
    return best if best.score <= alike.score or wanted.metric == "ard" else alike


def _refined(points: Tensor, values: Tensor, best: Selection, wanted: Wanted) -> Selection:
    learned = learn_metric(
        points,
        values,
        kernel=best.kernel,
        metric="linear" if wanted.metric == "linear" else "ard",
        ridge=max(best.ridge, LEAST_RIDGE) if wanted.ridge is None else wanted.ridge,
        learn_ridge=wanted.ridge is None,
        learning_rate=0.03,
        steps=REFINE_STEPS,
        max_seconds=REFINE_SECONDS,
        loss=wanted.loss,
        seed=wanted.seed,
        progress=wanted.progress,
    )
    return _select(points, values, learned.kernel, FACTORS, _ridges(wanted, _times(learned.ridge)), wanted)


def _select(
    points: Tensor, values: Tensor, kernel: Kernel, factors: tuple[float, ...], ridges: tuple[float, ...], wanted: Wanted
) -> Selection:
    return select(
        points,
        values,
        kernels=kernel,
        lengthscales=factors,
        ridges=ridges,
        num_neighbors=_counts(wanted.num_neighbors, len(points)),
        num_samples=SAMPLES,
        loss=wanted.loss,
        seed=wanted.seed,
    )


def _times(ridge: float) -> tuple[float, ...]:
    return tuple(factor * ridge for factor in RIDGE_FACTORS)


def _ridges(wanted: Wanted, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    return otherwise if wanted.ridge is None else (wanted.ridge,)


def _counts(wanted: int | None, rows: int) -> list[int]:
    """Those that other rows can fill, and all other rows if they are fewer than the most."""
    if wanted is not None:
        return [min(wanted, rows - 1)]
    return sorted({*(count for count in NEIGHBORS if count < rows), min(max(NEIGHBORS), max(1, rows - 1))})


def _base(name: str, points: Tensor) -> Base:
    return plain_base(name.removeprefix("plain "), points) if name.startswith("plain ") else base(name, points)
