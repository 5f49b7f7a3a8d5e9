"""Choose the kernel, its lengthscale, the ridge and the number of neighbors by local leave-one-out."""

from __future__ import annotations

import copy
import math
import numbers
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice, check_count, check_positive
from .._progress import Progress
from .._state import register_setting
from ..core.options import Trend
from ..errors import InputError, RidgeRaisedWarning
from ..functional.local import local_path
from ..kernels import Exponential, Gaussian, Kernel, Matern32, Matern52, check_kernel
from ..neighbors import nearest
from ..transforms import Compose, MeanDistance, Standardize, StandardMean
from .leave_one_out import check_data, shuffled_rows
from .scores import Loss, best_temperature, check_loss, in_given_units, score, unit_of
from .selection import Selection, Trial

LENGTHSCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FIRST_LENGTHSCALES = (1.0, 4.0)
FIRST_RIDGES = (1e-4, 1e-2)
RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
MOST_NEIGHBORS = 200
# A first round on few rows and neighbors leaves these many for the second, and the best of all goes on to more neighbors.
SCREEN_ROWS = 256
SCREEN_NEIGHBORS = 100
FINALISTS = 6
FINAL_NEIGHBORS = 200
EXTENSIONS = 3


class _Candidate(NamedTuple):
    base: int  # which of the kernels given
    factor: float
    ridge: float


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
        progress: show a line on standard error.

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
    rows = shuffled_rows(len(centers), num_samples, seed, centers.device)
    few = rows[:SCREEN_ROWS]
    screen_counts = _up_to(counts, SCREEN_NEIGHBORS)
    judge = _Judge(centers.detach(), values.detach(), _kernels(kernels), rows, trend, loss, delta)
    with torch.no_grad(), warnings.catch_warnings(), Progress("selecting", 0, shown=progress) as bar:
        # Candidates far too smooth for the data are tried too; their singular cells say nothing about the final choice.
        warnings.simplefilter("ignore", RidgeRaisedWarning)

        def run(candidates: list[_Candidate], on: Tensor, counts: list[int]) -> dict[_Candidate, Trial]:
            bar.total += len(candidates)
            found: dict[_Candidate, Trial] = {}
            for candidate in candidates:
                found[candidate] = judge.trial(candidate, on, counts)
                bar.advance(note=f"{loss} {min(trial.loss for trial in found.values()):.4g}")
            return found

        if kernels is None:
            judge.bases = judge.default_kernels(few, screen_counts)
        grid = [
            _Candidate(base, factor, ridge) for base in range(len(judge.bases)) for factor in factors for ridge in ridges
        ]
        trials = run(grid, few, screen_counts)
        for _ in range(EXTENSIONS if lengthscales is None else 0):
            trials |= run(_beyond_the_grid(trials, ridges), few, screen_counts)
        final_counts = _up_to(counts, FINAL_NEIGHBORS)
        final = run(_finalists(trials), rows, final_counts)
        winner = min(final, key=lambda candidate: final[candidate].loss)
        if final[winner].num_neighbors == final_counts[-1] < counts[-1]:  # more neighbors may be better still
            final[winner] = judge.trial(winner, rows, counts)
        best = final[winner]
        if not math.isfinite(best.loss):
            raise InputError("No trial has a finite loss. Look at the values: they may be too large for their dtype.")
        temperature = judge.temperature(winner, rows, best.num_neighbors) if loss == "cross_entropy" else None
    table = sorted(final.values(), key=lambda t: t.loss) + sorted(trials.values(), key=lambda t: t.loss)
    return Selection(
        kernel=scaled(judge.bases[winner.base], math.log(winner.factor)),
        num_neighbors=best.num_neighbors,
        ridge=best.ridge,
        trend=trend,
        loss=loss,
        score=best.loss,
        temperature=temperature,
        table=tuple(table),
    )


def scaled(kernel: Kernel, log_factor: float | Tensor) -> Kernel:
    """A copy of the kernel, fixed, with its lengthscale times `exp(log_factor)`: a number, or one per embedded feature."""
    changed = copy.deepcopy(kernel).requires_grad_(False)
    scale = changed.log_lengthscale.detach().double() + log_factor
    del changed.log_lengthscale  # which may be a Parameter, or of another shape
    register_setting(changed, "log_lengthscale", scale, learn=False)
    return changed


class _Judge:
    """Leave-one-out losses of candidates; neighbors are searched once for kernels that share their metric."""

    def __init__(
        self, centers: Tensor, values: Tensor, bases: list[Kernel], rows: Tensor, trend: Trend, loss: Loss, delta: float
    ) -> None:
        self.unit = unit_of(values, loss)
        self.centers, self.values, self.bases, self.rows = centers, values / self.unit, bases, rows
        self.trend, self.loss, self.delta = trend, loss, delta / self.unit
        self._found: list[tuple[Kernel, Tensor]] = []

    def trial(self, candidate: _Candidate, rows: Tensor, counts: list[int]) -> Trial:
        start = time.perf_counter()
        means, variances = self._path(candidate, rows, counts)
        losses = score(self.loss, means, variances, self.values[rows], delta=self.delta)  # (n, counts)
        losses = in_given_units(losses.double(), self.loss, self.unit)
        curve = losses.mean(0).nan_to_num(math.inf, math.inf, math.inf).tolist()
        at = curve.index(min(curve))
        return Trial(
            kernel=_name(self.bases, candidate.base),
            lengthscale=candidate.factor,
            ridge=candidate.ridge,
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
        for transform in transforms:
            transform.fit(self.centers)
        self.bases = [Exponential(input_transform=transform) for transform in transforms]
        losses = []
        for base in range(len(transforms)):
            trials = [_Candidate(base, factor, ridge) for factor in FIRST_LENGTHSCALES for ridge in FIRST_RIDGES]
            losses.append(min(self.trial(candidate, rows, counts).loss for candidate in trials))
        chosen = transforms[losses.index(min(losses))]
        return [profile(input_transform=chosen) for profile in (Exponential, Matern32, Matern52, Gaussian)]

    def temperature(self, candidate: _Candidate, rows: Tensor, count: int) -> float:
        means, _ = self._path(candidate, rows, [count])
        return float(best_temperature(means, self.values[rows].unsqueeze(1)))

    def _path(self, candidate: _Candidate, rows: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Means `(n, counts, C)` and variances `(n, counts)` in units of the scale, ridge included."""
        base = self.bases[candidate.base]
        indices = self._neighbors(base, counts[-1])[: len(rows), : counts[-1]]
        kernel = scaled(base, math.log(candidate.factor))
        found = local_path(
            self.centers[rows], self.centers, self.values, indices, kernel=kernel, ridge=candidate.ridge, trend=self.trend
        )
        columns = torch.tensor(counts, device=rows.device) - 1
        return found.means[:, columns], found.powers[:, columns].square() + candidate.ridge

    def _neighbors(self, kernel: Kernel, count: int) -> Tensor:
        for other, found in self._found:
            if found.shape[1] >= count and _same_metric(kernel, other):
                return found
        found = nearest(self.centers[self.rows], self.centers, count, kernel=kernel, exclude=self.rows)
        self._found.append((kernel, found))
        return found


def _same_metric(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels order neighbors alike for certain: one transform, lengthscales in one proportion."""
    if a.input_transform is not b.input_transform:
        return False
    difference = a.log_lengthscale.detach().double() - b.log_lengthscale.detach().double()
    return bool((difference == difference[0]).all())


def _kernels(kernels: Kernel | Sequence[Kernel] | None) -> list[Kernel]:
    if kernels is None:
        return []
    found = [kernels] if isinstance(kernels, Kernel) else list(kernels)
    if not found:
        raise InputError("kernels is empty. Give at least one kernel, or None for the default four.")
    for kernel in found:
        check_kernel(kernel)
    return found


def _grid(name: str, given: Sequence[float] | None, default: tuple[float, ...], *, zero: bool = False) -> tuple[float, ...]:
    if given is None:
        return default
    grid = tuple(sorted({float(value) for value in given}))
    if not grid or not all(math.isfinite(value) and (value > 0 or (zero and value == 0)) for value in grid):
        sign = "non-negative" if zero else "positive"
        raise InputError(f"{name} must be {sign} finite numbers, at least one, got {list(given)}.")
    return grid


def _neighbor_grid(given: int | Sequence[int] | None, most: int) -> list[int]:
    if given is None:
        steps = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 140, MOST_NEIGHBORS)
        return [step for step in steps if step <= most]
    counts = [given] if isinstance(given, numbers.Integral) else list(given)  # type: ignore[arg-type]
    if not counts:
        raise InputError("num_neighbors is empty. Give at least one number, or None.")
    for count in counts:
        check_count("num_neighbors", count, most, what="the number of other rows")
    return sorted({int(count) for count in counts})


def _up_to(counts: list[int], most: int) -> list[int]:
    return [count for count in counts if count <= most] or counts[:1]


def _beyond_the_grid(trials: dict[_Candidate, Trial], ridges: tuple[float, ...]) -> list[_Candidate]:
    """Lengthscales past the end of the grid, for kernels that did best at that end."""
    extra = []
    for base in sorted({candidate.base for candidate in trials}):
        own = {candidate: trial for candidate, trial in trials.items() if candidate.base == base}
        best = min(own, key=lambda candidate: own[candidate].loss)
        smallest, largest = min(c.factor for c in own), max(c.factor for c in own)
        if best.factor == largest:
            extra += [_Candidate(base, 2 * largest, ridge) for ridge in ridges]
        elif best.factor == smallest:
            extra += [_Candidate(base, smallest / 2, ridge) for ridge in ridges]
    return extra


def _finalists(trials: dict[_Candidate, Trial]) -> list[_Candidate]:
    ranked = sorted(trials, key=lambda candidate: trials[candidate].loss)
    best_of_each = {candidate.base: candidate for candidate in reversed(ranked)}
    return list(dict.fromkeys(ranked[:FINALISTS] + list(best_of_each.values())))


def _name(bases: list[Kernel], base: int) -> str:
    """The class of a kernel, with a number where several are of one class."""
    name = type(bases[base]).__name__
    alike = [i for i, kernel in enumerate(bases) if type(kernel).__name__ == name]
    return name if len(alike) == 1 else f"{name} {alike.index(base) + 1}"
