"""Kernel, metric, ridge and number of neighbors for regressors on neighbors: select, learn the metric, select around it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kernels import Kernel
from ..transforms import Compose, MeanDistance, Standardize, StandardMean
from ..tuning import Selection, learn_metric, select
from .members import Member
from .rows import Centers
from .wanted import PROFILES, Wanted, base

FIRST_NEIGHBORS = (5, 10, 20, 50, 100)
NEIGHBORS = (10, 20, 50, 100, 200, 400)
FACTORS = (0.7, 1.0, 1.4)
RIDGE_FACTORS = (0.1, 0.3, 1.0, 3.0)
LEAST_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
LEAST_ROWS = 50  # to learn a metric from
SAMPLES = 1000


def choose_local(centers: Centers, wanted: Wanted) -> tuple[Member, ...]:
    """One member with a number of neighbors; values of the centers are at zero mean and unit variance."""
    points, values = centers.points.float(), centers.values.float()
    if wanted.loss == "cross_entropy":
        values = values.clamp(0, 1)
        values = values / values.sum(1, keepdim=True)
    common: dict[str, Any] = {"loss": wanted.loss, "seed": wanted.seed, "progress": wanted.progress}
    learn = wanted.metric in ("ard", "linear") or (wanted.metric == "auto" and len(points) >= LEAST_ROWS)
    first = select(
        points,
        values,
        kernels=_kernels(wanted.kernel, points),
        lengthscales=(1.0,) if isinstance(wanted.kernel, Kernel) and not learn else None,
        ridges=None if wanted.ridge is None else (wanted.ridge,),
        num_neighbors=_counts(wanted.num_neighbors, FIRST_NEIGHBORS if learn else NEIGHBORS, len(points)),
        num_samples=SAMPLES,
        **common,
    )
    return (_member(_learned(points, values, first, wanted, common) if learn else first, wanted),)


def _learned(points: Tensor, values: Tensor, first: Selection, wanted: Wanted, common: dict[str, Any]) -> Selection:
    learned = learn_metric(
        points,
        values,
        kernel=first.kernel,
        metric="linear" if wanted.metric == "linear" else "ard",
        ridge=max(first.ridge, LEAST_RIDGE) if wanted.ridge is None else wanted.ridge,
        learn_ridge=wanted.ridge is None,
        **common,
    )
    final = select(
        points,
        values,
        kernels=learned.kernel,
        lengthscales=FACTORS,
        ridges=[factor * learned.ridge for factor in RIDGE_FACTORS] if wanted.ridge is None else (wanted.ridge,),
        num_neighbors=_counts(wanted.num_neighbors, NEIGHBORS, len(points)),
        num_samples=SAMPLES,
        **common,
    )
    return final if final.score <= first.score or wanted.metric != "auto" else first


def _member(choice: Selection, wanted: Wanted) -> Member:
    count = choice.num_neighbors if wanted.num_neighbors is None else wanted.num_neighbors
    return Member(choice.kernel, choice.ridge, count, 1.0)


def _counts(wanted: int | None, counts: tuple[int, ...], rows: int) -> list[int]:
    """Those that other rows can fill, and all other rows if they are fewer than the most."""
    if wanted is not None:
        return [min(wanted, rows - 1)]
    return sorted({*(count for count in counts if count < rows), min(max(counts), max(1, rows - 1))})


def _kernels(wanted: Kernel | str | None, points: Tensor) -> list[Kernel] | None:
    if wanted is None:
        return None
    if isinstance(wanted, Kernel):
        return [wanted]
    if wanted == "laplacian":
        chosen = base(wanted, points)
        return [chosen.profile(input_transform=Compose(chosen.transform, MeanDistance().fit(chosen.transform(points))))]
    transforms = [StandardMean(), Compose(Standardize(), MeanDistance())]
    return [PROFILES[wanted](input_transform=transform.fit(points)) for transform in transforms]
