"""Choose the kernel, its lengthscale, the ridge and the number of neighbors by local leave-one-out."""

from __future__ import annotations

import copy
import math
import numbers
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from .._checks import check_at_least_one, check_choice, check_count, check_positive
from .._extras import import_extra
from .._state import register_setting
from ..core.options import Trend
from ..core.temperature import best_temperature
from ..errors import InputError, RidgeRaisedWarning
from ..functional.left_out import check_data
from ..functional.local import local_path
from ..kernels import Exponential, Gaussian, Kernel, Matern32, Matern52
from ..kernels.names import check_definite
from ..neighbors import nearest
from ..nn import LocalKernelRidge
from ..transforms import Compose, MeanDistance, Standardize, StandardMean
from .leave_one_out import shuffled_rows
from .metric import Metric, learn_metric
from .scores import Loss, check_loss, in_given_units, score, unit_of

LENGTHSCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FIRST_LENGTHSCALES = (1.0, 4.0)
FIRST_RIDGES = (1e-4, 1e-2)
RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
NUM_NEIGHBORS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 140, 200)
# A first round on few rows and neighbors leaves these many for the second, and the best of all goes on to more neighbors.
SCREEN_ROWS = 256
SCREEN_NEIGHBORS = 100
FINALISTS = 6
FINAL_NEIGHBORS = 200
EXTENSIONS = 3
SHOWN_ROWS = 12
# Of `tune`: the grids before and after the metric is learned, and how it is learned.
TUNED_LENGTHSCALES = (0.7, 1.0, 1.4)
TUNED_RIDGES = (0.1, 0.3, 1.0, 3.0)  # times the learned one
TUNED_NEIGHBORS = (10, 20, 50, 100, 200, 400)
FIRST_NEIGHBORS = (5, 10, 20, 50, 100)
LEAST_RIDGE = 1e-4  # to start from: a smaller one hardly has a gradient
SHARE_OF_LEARNING = 0.6
FEWEST_ROWS = 10  # fewer are not enough to learn a metric
Candidate = tuple[str, float, float]  # the name of the kernel, the factor on its lengthscale, the ridge


@dataclass(frozen=True)
class Trial:
    """One kernel with one ridge, at its best number of neighbors."""

    kernel: str
    lengthscale: float  # factor on the lengthscale of the original kernel
    ridge: float
    num_neighbors: int
    loss: float  # mean leave-one-out loss
    standard_error: float  # of that mean
    num_samples: int  # rows left out, one at a time
    curve: tuple[tuple[int, float], ...]  # (num_neighbors, loss)
    seconds: float


@dataclass(frozen=True, eq=False)
class Selection:
    """The choice with the least leave-one-out loss, and every trial: finalists first, then those of the first round.

    `layer(centers, values)` builds a `LocalKernelRidge` with it, and `arguments` are the keyword arguments for that.
    """

    kernel: Kernel
    num_neighbors: int
    ridge: float
    trend: Trend
    loss: Loss
    score: float
    temperature: float | None  # with cross_entropy: probabilities are softmax(prediction / temperature)
    table: tuple[Trial, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"num_neighbors": self.num_neighbors, "kernel": self.kernel, "ridge": self.ridge, "trend": self.trend}

    def layer(self, centers: Tensor, values: Tensor, **changes: Any) -> LocalKernelRidge:
        """A layer with the choice; keyword arguments of `LocalKernelRidge` change or add to it."""
        fitting = {"num_neighbors": min(self.num_neighbors, len(centers))}
        return LocalKernelRidge(centers, values, **{**self.arguments, **fitting, **changes})

    def __str__(self) -> str:
        lines = [f"{'kernel':<20} {'lengthscale':>11} {'ridge':>8} {'neighbors':>9} {self.loss:>14} {'s.e.':>9} {'rows':>5}"]
        lines += [
            f"{t.kernel:<20} {t.lengthscale:>11.3g} {t.ridge:>8.1e} {t.num_neighbors:>9} {t.loss:>14.5g} "
            f"{t.standard_error:>9.2g} {t.num_samples:>5}"
            for t in self.table[:SHOWN_ROWS]
        ]
        more = len(self.table) - SHOWN_ROWS
        return "\n".join(lines + ([f"... and {more} more trials"] if more > 0 else []))

    def plot(self) -> Any:
        """A matplotlib figure: the loss against the number of neighbors, the lengthscale and the ridge, for each kernel."""
        pyplot = import_extra("matplotlib.pyplot", "A plot", extra="plot")
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
        final = max(trial.num_samples for trial in self.table)
        for number, name in enumerate(sorted({trial.kernel for trial in self.table})):
            trials = [trial for trial in self.table if trial.kernel == name]
            style = {"color": f"C{number}", "marker": "o", "markersize": 3.5, "linewidth": 1.4}
            best = next((trial for trial in trials if trial.num_samples == final), trials[0])
            axes[0].plot(*zip(*best.curve, strict=True), label=name, **style)
            # Trials on fewer rows are another sample, so they are not mixed with the finalists.
            fewest = min(trial.num_samples for trial in trials)
            screened = sorted((trial for trial in trials if trial.num_samples == fewest), key=lambda trial: -trial.loss)
            for axis, field in ((axes[1], "lengthscale"), (axes[2], "ridge")):
                least = {getattr(trial, field): trial.loss for trial in screened}  # over everything else
                axis.plot(*zip(*sorted(least.items()), strict=True), **style)
        axes[0].scatter([self.num_neighbors], [self.score], s=90, facecolors="none", edgecolors="black", zorder=3)
        for axis, label in zip(axes, ("neighbors M", "lengthscale factor", "ridge"), strict=True):
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        if all(trial.loss > 0 for trial in self.table):
            axes[0].set_yscale("log")
        axes[0].set_ylabel(f"leave-one-out {self.loss.replace('_', ' ')}")
        axes[0].legend(frameon=False, fontsize=8)
        return figure


def select(
    centers: Tensor,
    values: Tensor,
    *,
    kernels: Kernel | Sequence[Kernel] | None = None,
    lengthscales: Sequence[float] | None = None,
    ridges: Sequence[float] | None = None,
    num_neighbors: int | Sequence[int] | None = None,
    trend: Trend = "constant",
    loss: Loss = "mse",
    delta: float = 1.0,
    num_samples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    r"""Pick kernel profile, lengthscale, ridge and number of neighbors by local leave-one-out.

    Rows are left out one at a time and predicted from their nearest other rows; the choice with the least mean loss wins.
    All numbers of neighbors come from one factorization (`torchkrr.functional.local_path`). The whole grid is screened on a
    few rows; the best few, and the best of each kernel, are judged on `num_samples`. More than 200 neighbors are tried with
    the winner only, if it asks for them. Where the best lengthscale of a kernel lies at the end of the default grid, the
    grid is extended there.

    Args:
        centers, values: the data; for classification one-hot labels with `loss="cross_entropy"`.
        kernels: one or several to choose from, used with their own input transform; `None` is the exponential, two Matern
            and the Gaussian kernels on `StandardMean` or on standardized features at unit mean distance, whichever suits
            the exponential kernel better.
        lengthscales: factors to try on the lengthscale of each kernel.
        ridges: ridges to try.
        num_neighbors: one number or several to choose from; `None` tries up to 200.
        trend: `"constant"` or `None`, for every trial.
        loss: `"mse"`, `"cross_entropy"`, `"log_score"` or `"huber"` (see `torchkrr.tuning.scores`).
        delta: where `huber` turns from square to linear, in the units of the values.
        num_samples: rows to leave out.
        seed: which rows.
        progress: show a progress bar.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`

    Example:
        >>> x = torch.rand(100, 2)
        >>> y = torch.sin(5 * x[:, :1]) + x[:, 1:]
        >>> choice = torchkrr.select(x, y, num_samples=30)
        >>> layer = choice.layer(x, y)
        >>> bool((layer(x[:5] + 0.01) - y[:5]).abs().max() < 0.2)
        True
    """
    check_data(centers, values)
    check_loss(loss, values)
    check_choice("trend", trend, (None, "constant"))
    check_positive("delta", delta)
    check_at_least_one("num_samples", num_samples)
    factors = _grid("lengthscales", lengthscales, LENGTHSCALES)
    ridges = _grid("ridges", ridges, RIDGES, zero=True)
    counts = _neighbor_grid(num_neighbors, len(centers) - 1)
    screen_counts, final_counts = _up_to(counts, SCREEN_NEIGHBORS), _up_to(counts, FINAL_NEIGHBORS)
    rows = shuffled_rows(len(centers), num_samples, seed, centers.device)
    few = rows[:SCREEN_ROWS]
    bases = {} if kernels is None else _named(kernels)
    judge = _Judge(centers.detach(), values.detach(), rows, trend, loss, delta)
    with torch.no_grad(), warnings.catch_warnings(), tqdm(total=0, desc="selecting", disable=not progress) as bar:
        # Candidates far too smooth for the data are tried too; their singular cells say nothing about the final choice.
        warnings.simplefilter("ignore", RidgeRaisedWarning)
        if not bases:
            bases = _named(judge.default_kernels(few, screen_counts))

        def run(candidates: list[Candidate], rows: Tensor, counts: list[int]) -> list[Trial]:
            bar.total = (bar.total or 0) + len(candidates)
            results: list[Trial] = []
            for name, factor, ridge in candidates:
                results.append(judge.trial(name, bases[name], factor, ridge, rows, counts))
                bar.set_postfix_str(f"{loss} {min(trial.loss for trial in results):.4g}", refresh=False)
                bar.update()
            return results

        screened = run(
            [(name, factor, ridge) for name in bases for factor in factors for ridge in ridges], few, screen_counts
        )
        for _ in range(EXTENSIONS if lengthscales is None else 0):
            screened += run(_beyond_the_grid(screened, ridges), few, screen_counts)
        final = run(_finalists(screened), rows, final_counts)
        best = min(final, key=lambda trial: trial.loss)
        if best.num_neighbors == final_counts[-1] < counts[-1]:  # more neighbors may be better still
            place = final.index(best)
            best = final[place] = judge.trial(best.kernel, bases[best.kernel], best.lengthscale, best.ridge, rows, counts)
        if not math.isfinite(best.loss):
            raise InputError("No trial has a finite loss. Look at the values: they may be too large for their dtype.")
        base = bases[best.kernel]
        temperature = judge.temperature(base, best) if loss == "cross_entropy" else None
    table = sorted(final, key=lambda trial: trial.loss) + sorted(screened, key=lambda trial: trial.loss)
    kernel = scaled(base, math.log(best.lengthscale))
    return Selection(kernel, best.num_neighbors, best.ridge, trend, loss, best.loss, temperature, tuple(table))


def tune(
    centers: Tensor,
    values: Tensor,
    *,
    metric: Metric = "ard",
    rank: int | None = None,
    trend: Trend = "constant",
    loss: Loss = "mse",
    delta: float = 1.0,
    max_seconds: float | None = None,
    num_samples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    """Select a kernel, learn its metric, and select the ridge, the lengthscale and the number of neighbors for it.

    Equivalent to `select`, then `learn_metric` from its kernel, then `select` around what was learned. If the learned
    metric is no better than none, the first selection is returned. Both are judged on rows that the metric was learned
    from, so with few rows and many features the score is too good: hold out some rows to judge it.

    Args:
        centers, values: the data; for classification one-hot labels with `loss="cross_entropy"`.
        metric, rank: see `torchkrr.learn_metric`.
        trend, loss, delta, num_samples, seed: see `torchkrr.select`.
        max_seconds: rough time limit; learning the metric takes what the first `select` leaves of it.
        progress: show progress bars.

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
    learned = learn_metric(
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
        lengthscales=TUNED_LENGTHSCALES,
        ridges=[factor * learned.ridge for factor in TUNED_RIDGES],
        num_neighbors=_below(TUNED_NEIGHBORS, len(centers)),
        num_samples=num_samples,
        **common,  # type: ignore[arg-type]
    )
    return final if final.score <= first.score else first


def scaled(kernel: Kernel, log_factor: float | Tensor) -> Kernel:
    """A copy of the kernel, fixed, with its lengthscale times `exp(log_factor)`: a number, or one per embedded feature."""
    changed = copy.deepcopy(kernel).requires_grad_(False)
    scale = changed.log_lengthscale.detach().double() + log_factor
    del changed.log_lengthscale  # which may be a Parameter, or of another shape
    register_setting(changed, "log_lengthscale", scale, learn=False)
    return changed


class _Judge:
    """Leave-one-out losses of candidates; neighbors are searched once for kernels that share their metric."""

    def __init__(self, centers: Tensor, values: Tensor, rows: Tensor, trend: Trend, loss: Loss, delta: float) -> None:
        self.unit = unit_of(values, loss)
        self.centers, self.values, self.rows = centers, values / self.unit, rows
        self.trend, self.loss, self.delta = trend, loss, delta / self.unit
        self._searched: list[tuple[Kernel, Tensor]] = []

    def trial(self, name: str, base: Kernel, factor: float, ridge: float, rows: Tensor, counts: list[int]) -> Trial:
        """The number of neighbors with the least loss, for `base` with its lengthscale times `factor`."""
        start = time.perf_counter()
        means, variances = self._path(base, factor, ridge, rows, counts)
        losses = score(self.loss, means, variances, self.values[rows], delta=self.delta)  # (n, counts)
        losses = in_given_units(losses.double(), self.loss, self.unit)
        curve = losses.mean(0).nan_to_num(math.inf, math.inf, math.inf).tolist()
        at = curve.index(min(curve))
        return Trial(
            kernel=name,
            lengthscale=factor,
            ridge=ridge,
            num_neighbors=counts[at],
            loss=curve[at],
            standard_error=float(losses[:, at].std(correction=0)) / math.sqrt(len(rows)),
            num_samples=len(rows),
            curve=tuple(zip(counts, curve, strict=True)),
            seconds=time.perf_counter() - start,
        )

    def default_kernels(self, rows: Tensor, counts: list[int]) -> list[Kernel]:
        """The four profiles, on the normalizing map that suits the first of them better."""
        transforms = [StandardMean(), Compose(Standardize(), MeanDistance())]
        losses = []
        for transform in transforms:
            kernel = Exponential(input_transform=transform.fit(self.centers))
            settings = [(factor, ridge) for factor in FIRST_LENGTHSCALES for ridge in FIRST_RIDGES]
            losses.append(min(self.trial("", kernel, *setting, rows, counts).loss for setting in settings))
        chosen = transforms[losses.index(min(losses))]
        return [profile(input_transform=chosen) for profile in (Exponential, Matern32, Matern52, Gaussian)]

    def temperature(self, base: Kernel, trial: Trial) -> float:
        means, _ = self._path(base, trial.lengthscale, trial.ridge, self.rows, [trial.num_neighbors])
        return float(best_temperature(means, self.values[self.rows].unsqueeze(1)))

    def _path(self, base: Kernel, factor: float, ridge: float, rows: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Means `(n, counts, C)` and variances `(n, counts)` in units of the scale, ridge included."""
        indices = self._neighbors(base, counts[-1])[: len(rows), : counts[-1]]
        kernel = scaled(base, math.log(factor))
        path = local_path(
            self.centers[rows], self.centers, self.values, indices, kernel=kernel, ridge=ridge, trend=self.trend
        )
        columns = torch.tensor(counts, device=rows.device) - 1
        return path.means[:, columns], path.powers[:, columns].square() + ridge

    def _neighbors(self, kernel: Kernel, count: int) -> Tensor:
        for other, indices in self._searched:
            if indices.shape[1] >= count and _same_metric(kernel, other):
                return indices
        indices = nearest(self.centers[self.rows], self.centers, count, kernel=kernel, exclude=self.rows)
        self._searched.append((kernel, indices))
        return indices


def _same_metric(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels order neighbors alike for certain: one transform, lengthscales in one proportion."""
    if a.input_transform is not b.input_transform:
        return False
    difference = a.log_lengthscale.detach().double() - b.log_lengthscale.detach().double()
    return bool((difference == difference[0]).all())


def _named(kernels: Kernel | Sequence[Kernel]) -> dict[str, Kernel]:
    """Kernels by the name of their class, with a number where several are of one class."""
    kernels = [kernels] if isinstance(kernels, Kernel) else list(kernels)
    if not kernels:
        raise InputError("kernels is empty. Give at least one kernel, or None for the default four.")
    for kernel in kernels:
        check_definite(kernel)
    names = [type(kernel).__name__ for kernel in kernels]
    numbered = [f"{name} {names[: place + 1].count(name)}" for place, name in enumerate(names)]
    unique = [name if names.count(name) == 1 else number for name, number in zip(names, numbered, strict=True)]
    return dict(zip(unique, kernels, strict=True))


def _grid(
    name: str, requested: Sequence[float] | None, default: tuple[float, ...], *, zero: bool = False
) -> tuple[float, ...]:
    if requested is None:
        return default
    grid = tuple(sorted({float(value) for value in requested}))
    if not grid or not all(math.isfinite(value) and (value > 0 or (zero and value == 0)) for value in grid):
        sign = "non-negative" if zero else "positive"
        raise InputError(f"{name} must be {sign} finite numbers, at least one, got {list(requested)}.")
    return grid


def _neighbor_grid(requested: int | Sequence[int] | None, most: int) -> list[int]:
    if requested is None:
        return [count for count in NUM_NEIGHBORS if count <= most]
    counts = [requested] if isinstance(requested, numbers.Integral) else list(requested)  # type: ignore[arg-type]
    if not counts:
        raise InputError("num_neighbors is empty. Give at least one number, or None.")
    for count in counts:
        check_count("num_neighbors", count, most, what="the number of other rows")
    return sorted({int(count) for count in counts})


def _up_to(counts: list[int], most: int) -> list[int]:
    return [count for count in counts if count <= most] or counts[:1]


def _below(counts: tuple[int, ...], rows: int) -> list[int]:
    """The counts that other rows can fill, and all other rows if they are fewer than the largest."""
    return sorted({*(count for count in counts if count < rows), min(max(counts), max(1, rows - 1))})


def _beyond_the_grid(trials: list[Trial], ridges: tuple[float, ...]) -> list[Candidate]:
    """Lengthscales past the end of the grid, for kernels that did best at that end."""
    extra = []
    for name in dict.fromkeys(trial.kernel for trial in trials):
        own = [trial for trial in trials if trial.kernel == name]
        best = min(own, key=lambda trial: trial.loss).lengthscale
        factors = [trial.lengthscale for trial in own]
        if best == max(factors):
            extra += [(name, 2 * best, ridge) for ridge in ridges]
        elif best == min(factors):
            extra += [(name, best / 2, ridge) for ridge in ridges]
    return extra


def _finalists(trials: list[Trial]) -> list[Candidate]:
    ranked = sorted(trials, key=lambda trial: trial.loss)
    best_of_each = {trial.kernel: trial for trial in reversed(ranked)}
    candidates = [(trial.kernel, trial.lengthscale, trial.ridge) for trial in (*ranked[:FINALISTS], *best_of_each.values())]
    return list(dict.fromkeys(candidates))
