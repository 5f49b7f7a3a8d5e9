"""Everything chosen from a table in one call."""

from __future__ import annotations

import time

from torch import Tensor

from .._checks import check_positive
from ..core.options import Trend
from .learned import LearnedMetric
from .metric import Metric, learn_metric
from .scores import Loss
from .select import select
from .selection import Selection

LENGTHSCALES = (0.7, 1.0, 1.4)
RIDGES = (0.1, 0.3, 1.0, 3.0)  # times the learned one
FIRST_NEIGHBORS = (5, 10, 20, 50, 100)
NEIGHBORS = (10, 20, 50, 100, 200, 400)
LEAST_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
SHARE_OF_LEARNING = 0.6
FEWEST_ROWS = 10  # with fewer there is nothing to learn a metric from


def tune(
    centers: Tensor,
    values: Tensor,
    *,
    metric: Metric = "ard",
    rank: int | None = None,
    trend: Trend = "constant",
    loss: Loss = "mse",
    delta: float = 1.0,
    num_samples: int = 1000,
    max_seconds: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    """Select a kernel, learn its metric, and select the ridge, the lengthscale and the number of neighbors for it.

    Equivalent to `select`, then `learn_metric` from its kernel, then `select` around what was learned. If the learned
    metric is no better than none, the first selection is returned. Both are judged on rows that the metric was learned
    from, so with few rows and many features the score is too good: keep some rows apart to judge it.

    Args:
        centers, values: the data; for classification one-hot labels with `loss="cross_entropy"`.
        metric, rank: see `torchkrr.learn_metric`.
        trend, loss, delta, num_samples, seed: see `torchkrr.select`.
        max_seconds: roughly how long it may take; the metric is then learned in what `select` leaves of it.
        progress: show what is going on, on standard error.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`

    Example:
        >>> x = torch.rand(60, 2)
        >>> y = torch.sin(3 * x[:, :1])  # the other feature is noise
        >>> layer = torchkrr.tune(x, y, num_samples=20).layer(x, y)
        >>> bool((layer(x[:9] + 0.005) - y[:9]).abs().max() < 0.3)
        True
    """
    if max_seconds is not None:
        check_positive("max_seconds", max_seconds)
    common = {"trend": trend, "loss": loss, "delta": delta, "seed": seed, "progress": progress}
    start = time.monotonic()
    few = _below(FIRST_NEIGHBORS, len(centers))
    first = select(centers, values, num_samples=num_samples, num_neighbors=few, **common)  # type: ignore[arg-type]
    if len(centers) < FEWEST_ROWS:
        return first
    left = None if max_seconds is None else max(1.0, SHARE_OF_LEARNING * (max_seconds - (time.monotonic() - start)))
    learned: LearnedMetric = learn_metric(
        centers,
        values,
        kernel=first.kernel,
        metric=metric,
        rank=rank,
        ridge=max(first.ridge, LEAST_RIDGE),
        max_seconds=left,
        **common,  # type: ignore[arg-type]
    )
    final = select(
        centers,
        values,
        kernels=learned.kernel,
        lengthscales=LENGTHSCALES,
        ridges=[factor * learned.ridge for factor in RIDGES],
        num_neighbors=_below(NEIGHBORS, len(centers)),
        num_samples=num_samples,
        **common,  # type: ignore[arg-type]
    )
    return final if final.score <= first.score else first


def _below(counts: tuple[int, ...], rows: int) -> list[int]:
    """Those that other rows can fill, and all other rows if they are fewer than the most."""
    return sorted({*(count for count in counts if count < rows), min(max(counts), max(1, rows - 1))})
