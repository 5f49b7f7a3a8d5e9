"""Kernel, metric, ridge and number of neighbors for regressors on neighbors.

The metrics of a few kernels are learned on patches of near rows, in the closed form of leave-one-out; the best of them,
judged by leave-one-out from neighbors, is refined by gradient descent on that very loss, and what predicts best is taken.
Columns that turn out not to count are left out, since they cost as much as the others in every search.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._progress import Progress
from ..kernels import Kernel
from ..transforms import Compose, Transform
from ..tuning import Selection, learn_metric, select
from .embeddings import Columns
from .members import Member
from .rows import Centers
from .scales import Problem, Scales, first_scale, learn_scales, try_around
from .wanted import FACTORS, FIRST_FACTORS, LEAST_ROWS, Base, Wanted, base, plain_base

CANDIDATES = ("matern32", "exponential", "plain matern52")
NEIGHBORS = (10, 20, 50, 100, 200)  # more cost more than a prediction may
FIRST_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
RIDGE_FACTORS = (0.1, 0.3, 1.0, 3.0)
FIRST_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
NEARLY = 0.01  # of the loss: what fewer neighbors or columns may cost
SAMPLES = 1000
SCREEN_ROWS = 400
RANDOM_STEPS, NEAR_STEPS = 40, 200
REFINE_STEPS, REFINE_SECONDS = 200, 15.0
NEGLIGIBLE = (0.01, 0.001, 0.0001)  # shares of the mean squared distance that are tried to do without, largest first
SEARCHED_IN_SINGLE = 1e-6  # least ridge whose neighbors are searched in float32


class _Choice(NamedTuple):
    """What was selected on features that are mapped already: the map costs too much to repeat in every trial."""

    selection: Selection
    transform: Transform | None
    mapped: Tensor  # (N, E)

    @property
    def score(self) -> float:
        return self.selection.score

    def kernel(self) -> Kernel:
        """With the map in it."""
        kernel = self.selection.kernel
        if self.transform is not None:
            parts = [] if kernel.input_transform is None else [kernel.input_transform]
            kernel.input_transform = Compose(self.transform, *parts) if parts else self.transform
        return kernel


def choose_local(centers: Centers, wanted: Wanted) -> tuple[Member, ...]:
    """One member with a number of neighbors."""
    learn = wanted.metric in ("ard", "linear") or (wanted.metric == "auto" and len(centers.points) >= LEAST_ROWS)
    values = centers.values.float()
    if values.shape[1] == 1:  # a single class is told from no other
        wanted = wanted._replace(loss="mse")
    if wanted.loss == "cross_entropy":
        values = values.clamp(0, 1)
        values = values / values.sum(1, keepdim=True)
    if isinstance(wanted.kernel, Kernel):
        points, factors = centers.points.float(), FACTORS if learn else (1.0,)
        found = _select(points, values, wanted.kernel, factors, wanted.ridges(FIRST_RIDGES), wanted)
        best = _Choice(found, None, points)
    else:
        names = CANDIDATES if wanted.kernel is None else (wanted.kernel,)
        steps = len(names) * ((RANDOM_STEPS + NEAR_STEPS) * learn + 1)
        with Progress("learning kernels", steps, shown=wanted.progress) as bar:
            best = min((_learned(name, centers, values, wanted, learn, bar) for name in names), key=lambda c: c.score)
    if learn and wanted.kernel != "laplacian":  # a staircase has too many columns for a lengthscale each
        finer = _refined(values, best, wanted)
        best = finer if finer.score <= best.score or wanted.metric == "linear" else best
    best = _without_idle_columns(values, best, wanted)
    count = _fewest(best.selection) if wanted.num_neighbors is None else wanted.num_neighbors
    ridge = best.selection.ridge
    return (Member(best.kernel(), ridge, count, 1.0, wanted.ridge is None and ridge >= SEARCHED_IN_SINGLE),)


@torch.no_grad()
def _learned(name: str, centers: Centers, values: Tensor, wanted: Wanted, learn: bool, bar: Progress) -> _Choice:
    """One kernel with its lengthscales, ridge and number of neighbors."""
    chosen = _base(name, centers.points.double())
    embedded = chosen.transform(centers.points.double())
    mapped = embedded.float()
    generator = torch.Generator().manual_seed(wanted.seed)
    targets = centers.values - centers.values.mean(0)
    one = Problem(embedded, torch.zeros_like(chosen.groups), targets, centers.weights, chosen.profile())
    few = torch.randperm(len(embedded), generator=generator)[:SCREEN_ROWS]
    start = Scales(torch.tensor([first_scale(embedded)], dtype=torch.float64), FIRST_RIDGE)
    first = try_around(one.rows(few), start, FIRST_FACTORS, wanted.ridges(FIRST_RIDGES)).scales
    kernel = chosen.profile(first.logs[0].exp())
    alike = _select(mapped, values, kernel, FACTORS, wanted.ridges(_times(first.ridge)), wanted)
    if not learn or wanted.metric == "linear":
        bar.advance()
        return _Choice(alike, chosen.transform, mapped)
    many = one._replace(groups=chosen.groups)
    scales = Scales(first.logs.expand(int(chosen.groups.max()) + 1).clone(), first.ridge)
    scales = learn_scales(many, scales, steps=RANDOM_STEPS, generator=generator, bar=bar)
    scales = learn_scales(many, scales, steps=NEAR_STEPS, generator=generator, bar=bar, near=True)
    kernel = chosen.profile(scales.logs.exp()[chosen.groups])
    best = _select(mapped, values, kernel, FACTORS, wanted.ridges(_times(scales.ridge)), wanted)
    bar.advance(note=f"{wanted.loss} {best.score:.4g}")
    return _Choice(best if best.score <= alike.score or wanted.metric == "ard" else alike, chosen.transform, mapped)


def _refined(values: Tensor, best: _Choice, wanted: Wanted) -> _Choice:
    ridge = best.selection.ridge
    learned = learn_metric(
        best.mapped,
        values,
        kernel=best.selection.kernel,
        metric="linear" if wanted.metric == "linear" else "ard",
        ridge=max(ridge, FIRST_RIDGE) if wanted.ridge is None else wanted.ridge,
        learn_ridge=wanted.ridge is None,
        learning_rate=0.03,
        steps=REFINE_STEPS,
        max_seconds=REFINE_SECONDS,
        loss=wanted.loss,
        seed=wanted.seed,
        progress=wanted.progress,
    )
    ridges = wanted.ridges(_times(learned.ridge))
    return best._replace(selection=_select(best.mapped, values, learned.kernel, FACTORS, ridges, wanted))


@torch.no_grad()
def _without_idle_columns(values: Tensor, best: _Choice, wanted: Wanted) -> _Choice:
    """Without the most columns that together make next to nothing of a distance, if the loss is hardly larger then."""
    kernel = best.selection.kernel
    scales = kernel.lengthscale
    if isinstance(wanted.kernel, Kernel) or kernel.input_transform is not None or len(scales) == 1:
        return best
    parts = best.mapped.var(0, correction=0) / scales.to(best.mapped).square()
    ordered, order = (parts / parts.sum()).sort()
    together = ordered.cumsum(0)
    for limit in NEGLIGIBLE:
        kept = torch.ones(len(order), dtype=torch.bool)
        kept[order[together < limit]] = False
        if bool(kept.all()):
            break
        fewer, profile = best.mapped[:, kept], type(kernel)(scales[kept])
        found = _select(fewer, values, profile, (1.0,), (best.selection.ridge,), wanted)
        if found.score <= best.score + NEARLY * abs(best.score):
            parts_of = [] if best.transform is None else [best.transform]
            return _Choice(found, Compose(*parts_of, Columns.keeping(kept)), fewer)
    return best


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


def _fewest(choice: Selection) -> int:
    """The least number of neighbors that is nearly as good as the best: time grows with its square at least."""
    best = choice.table[0]
    return min(count for count, loss in best.curve if loss <= best.loss + NEARLY * abs(best.loss))


def _times(ridge: float) -> tuple[float, ...]:
    return tuple(factor * ridge for factor in RIDGE_FACTORS)


def _counts(wanted: int | None, rows: int) -> list[int]:
    """Those that other rows can fill, and all other rows if they are fewer than the most."""
    if wanted is not None:
        return [min(wanted, rows - 1)]
    return sorted({*(count for count in NEIGHBORS if count < rows), min(max(NEIGHBORS), max(1, rows - 1))})


def _base(name: str, points: Tensor) -> Base:
    return plain_base(name.removeprefix("plain "), points) if name.startswith("plain ") else base(name, points)
