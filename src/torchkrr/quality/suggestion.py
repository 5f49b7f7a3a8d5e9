r"""Which rows to label next, before anybody has looked at them.

With $p(x)^2$ the squared power function of the rows that are known or chosen already, and $k_\perp$ what they leave over of
the kernel, a label for row $x$ lowers the mean of $p^2$ over all rows by the mean over $z$ of

$$ \frac{k_\perp(x, z)^2}{p(x)^2 + \lambda} . $$

The row with the largest gain comes next: a row in a crowd tells about many others. Without `density` the row with the
largest $p$ comes next, the farthest from what is known, which may be an odd one out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import is_classifier
from torch import Tensor

from .._checks import check_at_least_one, check_finite, check_points, check_same_features
from ..distances import squared_distances
from ..errors import InputError, NotFittedError
from ..estimators.base import KernelRidgeBase
from ..estimators.candidates import some_of, usual_map
from ..estimators.encoding import Array
from ..estimators.reading import densified, on_cpu
from ..functional import farthest_points
from ..functional.greedy import NewtonBasis
from ..kernels import Exponential, Kernel
from ..kernels.names import check_definite
from ..transforms import Compose, MeanDistance
from ..tuning.leave_one_out import shuffled_rows

MOST_KNOWN = 2000  # labeled rows whose power function is known; of more, those that are spread best
CROWD = 1000  # rows that a label is asked to tell about
RIDGE = 1e-2
ROOM = 64  # suggestions that there is room for at first


def suggest(
    labeled: Any,
    unlabeled: Any,
    n: int,
    *,
    kernel: Kernel | None = None,
    density: bool = True,
    weight: Literal["uncertainty"] | Any = None,
    seed: int = 0,
) -> Array:
    """The rows to label next, the most useful first.

    Args:
        labeled: features `(N, D)` of the rows that have labels, `None` where there are none yet; or a fitted estimator of
            this package, whose rows and kernel are taken.
        unlabeled: features `(Q, D)`.
        n: how many; all of them where there are fewer.
        kernel: `None` is that of the estimator, or `Exponential` at unit mean distance, on rows at unit length where there
            are more than 100 columns, on standardized columns else.
        density: prefer rows that tell about many others.
        weight: `(Q,)` how much each row matters; `"uncertainty"` asks the estimator how unsure it is of each.
        seed: of the rows that the others are told about.

    Shape:
        - output: `(n,)` int64, rows of `unlabeled`

    Example:
        >>> crowd, odd = np.random.default_rng(0).normal(size=(50, 2)), np.array([[30.0, 30.0]])
        >>> rows = np.concatenate((crowd, odd))
        >>> int(suggest(crowd[:1], rows, 1, density=False)[0])
        50
        >>> bool(suggest(crowd[:1], rows, 1)[0] < 50)
        True
    """
    check_at_least_one("n", n)
    stream = suggestions(labeled, unlabeled, kernel=kernel, density=density, weight=weight, seed=seed)
    found = [row for row, _ in zip(stream, range(n), strict=False)]
    return np.array(found, dtype=np.int64)


def suggestions(
    labeled: Any,
    unlabeled: Any,
    *,
    kernel: Kernel | None = None,
    density: bool = True,
    weight: Literal["uncertainty"] | Any = None,
    seed: int = 0,
) -> Iterator[int]:
    """The same one after the other, without an end but that of the rows; arguments as of `suggest`.

    Example:
        >>> import itertools
        >>> rows = np.random.default_rng(0).normal(size=(50, 2))
        >>> stream = suggestions(None, rows)
        >>> first, second = list(itertools.islice(stream, 5)), list(itertools.islice(stream, 5))
        >>> first + second == suggest(None, rows, 10).tolist()
        True
    """
    known, query, kernel, weights = _read(labeled, unlabeled, kernel, weight)
    return _stream(known, query, kernel, weights, density, seed)


@torch.no_grad()
def _stream(known: Tensor, query: Tensor, kernel: Kernel, weights: Tensor, density: bool, seed: int) -> Iterator[int]:
    start = len(known)
    newton = NewtonBasis(torch.cat((known, query)), kernel, start + ROOM)
    for row in range(start):
        newton.add(row)
    crowd = start + shuffled_rows(len(query), CROWD, seed, query.device)
    left = torch.empty(0)
    if density:  # k_perp between the crowd and the others
        left = kernel.of_squared(squared_distances(newton.embedded[crowd], query))
        left -= newton.columns[crowd, : newton.size] @ newton.columns[start:, : newton.size].T
    free = torch.ones(len(query), dtype=torch.bool)
    while bool(free.any()):
        power = newton.power_squared[start:].clamp_min(0)
        gains = left.square().mean(0) / (power + RIDGE) if density else power
        at = int((gains * weights).masked_fill(~free, -torch.inf).argmax())
        free[at] = False
        newton.reserve(ROOM)
        # A row that the others determine tells nothing new, but it has its turn.
        if newton.add(start + at) and density:
            column = newton.columns[:, newton.size - 1]
            left.addr_(column[crowd], column[start:], alpha=-1)
        yield at


def _read(labeled: Any, unlabeled: Any, kernel: Kernel | None, weight: Any) -> tuple[Tensor, Tensor, Kernel, Tensor]:
    """Embedded points of both, float32, the kernel, and the weights."""
    estimator = labeled if isinstance(labeled, KernelRidgeBase) else None
    if estimator is not None:
        if not hasattr(estimator, "predictor_"):
            raise NotFittedError("The estimator is not fitted. Call fit first, or give the features of the labeled rows.")
        known, query = estimator.predictor_.centers.points, estimator._query(unlabeled)
        kernel = estimator.kernel_ if kernel is None else kernel
    else:
        query = _points("unlabeled", unlabeled)
        known = query[:0] if labeled is None or not len(labeled) else _points("labeled", labeled)
        check_same_features("labeled", known, "unlabeled", query)
    if kernel is None:
        kernel = _usual_kernel(torch.cat((known, query)))
    check_definite(kernel)
    with torch.no_grad():
        known, query = kernel.embed(known).float(), kernel.embed(query).float()
    if len(known) > MOST_KNOWN:
        known = known[farthest_points(known, MOST_KNOWN)]
    if isinstance(weight, str) and weight == "uncertainty":
        if estimator is None:
            raise InputError("Uncertainty is that of an estimator. Give a fitted one as `labeled`, or numbers as `weight`.")
        return known, query, kernel, _uncertainty(estimator, unlabeled)
    if weight is None:
        return known, query, kernel, torch.ones(len(query))
    weights = torch.as_tensor(np.asarray(on_cpu(weight)), dtype=torch.float32)
    if weights.shape != (len(query),) or not bool((weights >= 0).all()):
        raise InputError(
            f"weight must have a number of at least 0 for each of {len(query)} rows, or be 'uncertainty'; got the shape "
            f"{tuple(weights.shape)}."
        )
    return known, query, kernel, weights


def _points(name: str, rows: Any) -> Tensor:
    points = torch.as_tensor(np.asarray(densified(on_cpu(rows), warn=False)), dtype=torch.float32)
    check_points(name, points)
    check_finite(name, points)
    return points


def _usual_kernel(points: Tensor) -> Kernel:
    few = some_of(points)
    return Exponential(input_transform=Compose(usual_map(few), MeanDistance()).fit(few))


def _uncertainty(estimator: Any, rows: Any) -> Tensor:
    """Of classes how far the best two are from each other, from the other end; of numbers the standard deviation."""
    if not is_classifier(estimator):
        deviations = np.asarray(estimator.predict(rows, return_std=True)[1]).reshape(len(rows), -1)
        return torch.from_numpy(deviations.mean(1)).float()
    two = torch.from_numpy(np.asarray(estimator.predict_proba(rows))).topk(2, dim=1).values
    return (1 - (two[:, 0] - two[:, 1])).float()
