"""Choose kernels and prior for classes: many candidates, judged by the calibrated log loss of rows that are left out.

A few hundred rows screen every kernel, lengthscale and ridge, with and without the prior, in closed form from one
eigendecomposition a kernel matrix. The best go on to more rows, and are mixed in the shares that lower the loss. Where rows
are too many for one factorization, the best are tried again on the nearest rows of each query, with every number of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.dense import factored, inverse_of, project_trend, with_trend
from ..core.local import solve_local
from ..core.options import SolveOptions
from ..core.spectrum import KernelSpectrum
from ..distances import squared_distances
from ..kernels import Exponential, Gaussian, Kernel, Matern32, Matern52
from ..neighbors import ExactIndex
from ..transforms import Compose, Linear, Standardize, Transform, UnitNorm
from ..tuning.calibration import SCREENED, doubt_of, slope_losses, smoothed, surprise
from ..tuning.leave_one_out import shuffled_rows
from ..tuning.select import scaled
from .encoding import Centers, Concatenate, RankTransform, Staircase
from .lengthscales import first_log
from .predictor import MOST_DENSE, Member
from .prior import FittedRidge, Hat

WIDE = 100  # columns: more are features of a network or a sentence, which count together
FITTED_ROWS = 4000  # that maps are fitted on
NARROW_FAMILIES = ("matern32", "gaussian", "plain gaussian", "laplacian")
WIDE_FAMILIES = ("unit exponential", "unit matern32", "plain exponential", "plain matern32")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the root mean square distance
RIDGES = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
RIDGE_FACTORS = (0.3, 1.0, 3.0)
SCREEN_ROWS, PER_CLASS, MOST_ROWS = 300, 6, 1200
FINALISTS = 6
MEMBERS = 3
MIXED = 12  # steps of the mixing: shares are multiples of one in so many
LOCAL_ROWS, LOCAL_FINALISTS, LOCAL_FACTORS = 1000, 3, (0.5, 1.0)
NEIGHBORS = (20, 50, 100, 200)
NEARLY = 0.005  # of the loss: what fewer neighbors may cost
PRINCIPAL = 256  # directions that are searched and solved in, where leave-one-out loses nothing
COMPARED_ROWS = 20_000
PATHS_AT_ONCE = 250
MAPPED_AT_ONCE = 8192


class Family(NamedTuple):
    """A kernel up to its lengthscale."""

    name: str
    profile: Kernel
    transform: Transform | None
    factors: tuple[float, ...] = FACTORS

    def kernel(self, log: Tensor, rotation: Tensor | None = None) -> Kernel:
        kernel = scaled(self.profile, log)
        maps = [*([] if self.transform is None else [self.transform]), *([] if rotation is None else [Linear(rotation)])]
        if maps:
            kernel.input_transform = maps[0] if len(maps) == 1 else Compose(*maps)
        return kernel

    def mapped(self, points: Tensor, rotation: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        parts = []
        for part in points.split(MAPPED_AT_ONCE):
            own = self.profile.embed(part.to(dtype)) if self.transform is None else self.transform(part.to(dtype))
            parts.append(own if rotation is None else own @ rotation.to(dtype).T)
        return torch.cat(parts)


class Candidate(NamedTuple):
    """A kernel and a ridge, with or without the prior, and what they predict for rows that are left out."""

    family: Family
    log: Tensor  # (1,): of the lengthscale
    ridge: float
    prior: bool
    scores: Tensor  # (n, C)
    loss: float


class Judge:
    """Calibrated log loss of left-out scores."""

    def __init__(self, targets: Tensor, weights: Tensor, multilabel: bool) -> None:
        self.targets = smoothed(targets.double(), doubt_of(weights), multilabel)
        self.weights, self.multilabel = weights, multilabel

    def losses(self, scores: Tensor, rows: Tensor) -> Tensor:
        """`(n, K, C)` to `(K,)`."""
        found = slope_losses(scores, self.targets[rows], self.weights[rows], SCREENED, multilabel=self.multilabel)
        return found.amin(1)

    def per_row(self, scores: Tensor, rows: Tensor) -> Tensor:
        """`(n, C)` to `(n,)`, at the one slope that is best for all."""
        targets, weights = self.targets[rows], self.weights[rows]
        found = slope_losses(scores.unsqueeze(1), targets, weights, SCREENED, multilabel=self.multilabel)[0]
        slope = SCREENED[int(found.argmin())]
        return surprise(slope * scores, targets, self.multilabel)


Tried = dict[str, float]  # loss of left-out rows


class Choice(NamedTuple):
    members: tuple[Member, ...]
    prior: bool
    tried: Tried


def families(points: Tensor, kernel: Kernel | str | None) -> list[Family]:
    """The kernels to try, their maps fitted; a kernel of the caller's own as it is."""
    if isinstance(kernel, Kernel):
        return [Family("own", kernel, None, (1.0,))]
    few = points[shuffled_rows(len(points), FITTED_ROWS, 0, points.device)].double()
    if kernel is not None:
        return [family_named(kernel if few.shape[1] <= WIDE else f"unit {kernel}", few)]
    return [family_named(name, few) for name in (NARROW_FAMILIES if few.shape[1] <= WIDE else WIDE_FAMILIES)]


PROFILES: dict[str, type[Kernel]] = {
    "exponential": Exponential,
    "matern32": Matern32,
    "matern52": Matern52,
    "gaussian": Gaussian,
    "laplacian": Gaussian,  # on a staircase
}


def family_named(name: str, points: Tensor) -> Family:
    """Narrow ones see each feature as it is and by its rank; "plain" ones as it is alone; "unit" ones at unit length."""
    kind, _, profile = name.rpartition(" ")
    if profile == "laplacian":
        transform: Transform = Compose(Standardize(), Staircase())
    elif kind == "unit":
        transform = UnitNorm()
    else:
        transform = Standardize() if kind == "plain" else Concatenate(Standardize(), RankTransform())
    return Family(name, PROFILES[profile](), transform.fit(points))


@torch.no_grad()
def choose_for_classes(
    centers: Centers,
    kernel: Kernel | str | None,
    ridge: float | None,
    num_neighbors: int | None,
    prior: FittedRidge | None,
    judge: Judge,
    *,
    prior_optional: bool,
    seed: int,
) -> Choice:
    """Members, and whether the prior is worth its place."""
    count, classes = centers.values.shape
    order = shuffled_rows(count, MOST_ROWS, seed, centers.points.device)
    few = order[: max(SCREEN_ROWS, min(PER_CLASS * classes, 2 * SCREEN_ROWS))]
    found = families(centers.points, kernel)
    priors = (False, True) if prior is not None and prior_optional else (prior is not None,)
    screened = [
        candidate
        for family in found
        for candidate in _screen(family, centers, few, prior, priors, judge, RIDGES if ridge is None else (ridge,))
    ]
    ranked = sorted(screened, key=lambda candidate: candidate.loss)
    finalists = _best_of_each(ranked, FINALISTS)
    final = [
        candidate for finalist in finalists for candidate in _refit(finalist, centers, order, prior, priors, judge, ridge)
    ]
    local = (num_neighbors is not None and num_neighbors < count) or count > MOST_DENSE
    if local:
        return _choose_local(sorted(final, key=lambda c: c.loss), centers, num_neighbors, prior, priors, judge, ridge, seed)
    mixes, tried = [], _tried(final, prior)
    for use in priors:
        own = [candidate for candidate in final if candidate.prior == use]
        alone = _offset(centers.values, prior, use, order) if use else None
        mixes.append((*_mix(own, alone, judge, order), own, use))
        if alone is not None:
            tried["the prior alone"] = float(judge.losses(alone.unsqueeze(1), order))
    loss, shares, own, use = min(mixes, key=lambda mix: mix[0])
    chosen = sorted((at for at in range(len(own)) if shares[at] > 0), key=lambda at: -shares[at])
    if not chosen:  # the prior alone; a kernel still says how far a row is from the others
        chosen = [min(range(len(own)), key=lambda at: own[at].loss)]
    members = tuple(Member(own[at].family.kernel(own[at].log), own[at].ridge, None, shares[at]) for at in chosen)
    if len(members) > 1 or shares[chosen[0]] != 1:
        tried["the mixture"] = loss
    return Choice(members, use, tried)


def _tried(candidates: Sequence[Candidate], prior: FittedRidge | None) -> Tried:
    """The best loss of each kernel, with and without the prior."""
    best: Tried = {}
    for candidate in candidates:
        name = candidate.family.name + (f" + {prior.prior.name}" if candidate.prior and prior is not None else "")
        best[name] = min(candidate.loss, best.get(name, float("inf")))
    return best


def _screen(
    family: Family,
    centers: Centers,
    rows: Tensor,
    prior: FittedRidge | None,
    priors: Sequence[bool],
    judge: Judge,
    ridges: Sequence[float],
) -> list[Candidate]:
    """Every lengthscale and ridge on some rows."""
    mapped, values, weights = family.mapped(centers.points[rows]), centers.values[rows], centers.weights[rows]
    # What the prior leaves over is taken as it is: how it depends on a row that is left out counts in the next round.
    hat = None if prior is None else prior.hat(rows)
    pairs = [(values, torch.zeros_like(values)) if not use else _with_prior(values, hat) for use in priors]
    known, offsets = (torch.stack(column, dim=1) for column in zip(*pairs, strict=True))  # (n, P, C)
    distances = squared_distances(mapped, mapped).sqrt()
    start = first_log(mapped) if family.transform is not None else torch.zeros(1, dtype=torch.float64)
    logs, scores = [start + math.log(factor) for factor in family.factors], []
    for log in logs:
        spectrum = KernelSpectrum(family.profile.profile(distances * torch.exp(-log)), weights)
        left_out = spectrum.leave_one_out(known.flatten(1), ridges).unflatten(2, known.shape[1:])  # (n, R, P, C)
        scores.append((offsets + known).unsqueeze(1) - left_out)
    table = torch.stack(scores, dim=1).nan_to_num(0.0)  # (n, L, R, P, C)
    losses = judge.losses(table.flatten(1, 3), rows).view(table.shape[1:4])
    return [
        Candidate(family, logs[i], ridges[j], use, table[:, i, j, k], float(losses[i, j, k]))
        for i, j in itertools.product(range(len(logs)), range(len(ridges)))
        for k, use in enumerate(priors)
    ]


def _with_prior(values: Tensor, hat: Hat | None) -> tuple[Tensor, Tensor]:
    """What the kernel predicts of some rows, and what the prior alone predicts of them without themselves."""
    assert hat is not None
    return hat.targets(), values - hat.left_out()


def _left_out(inverse: Tensor, values: Tensor, hat: Hat | None, priors: Sequence[bool]) -> list[Tensor]:
    """Predictions `(n, C)` of left-out rows, without and with the prior."""
    found = []
    for use in priors:
        if use:
            assert hat is not None
            residuals = hat.of_sum(inverse)
        else:
            residuals = (inverse @ values) / inverse.diagonal().unsqueeze(1)
        found.append((values - residuals).nan_to_num(0.0))
    return found


def _best_of_each(ranked: list[Candidate], most: int) -> list[Candidate]:
    """The best candidate of each family, whose order on a few rows says little, then the best others; each kernel once."""
    best: dict[tuple[int, float], Candidate] = {}
    for candidate in ranked:
        best.setdefault((id(candidate.family), float(candidate.log)), candidate)
    firsts: dict[int, Candidate] = {}
    for candidate in best.values():
        firsts.setdefault(id(candidate.family), candidate)
    others = [candidate for candidate in best.values() if candidate is not firsts[id(candidate.family)]]
    return [*firsts.values(), *others][:most]


def _refit(
    finalist: Candidate,
    centers: Centers,
    rows: Tensor,
    prior: FittedRidge | None,
    priors: Sequence[bool],
    judge: Judge,
    given: float | None,
) -> list[Candidate]:
    """Ridges around that of a finalist, on more rows."""
    family, values, weights = finalist.family, centers.values[rows], centers.weights[rows]
    mapped = family.mapped(centers.points[rows])
    hat = None if prior is None else prior.hat(rows)
    gram = family.profile.profile(squared_distances(mapped, mapped).sqrt() * torch.exp(-finalist.log))
    found = []
    for ridge in [factor * finalist.ridge for factor in RIDGE_FACTORS] if given is None else [given]:
        system = with_trend(factored(gram, ridge / weights))
        if bool(system.factor.sound):
            inverse = project_trend(system, inverse_of(system))[0]
            scores = _left_out(inverse, values, hat, priors)
            losses = judge.losses(torch.stack(scores, dim=1), rows).tolist()
            kinds = zip(priors, scores, losses, strict=True)
            found += [finalist._replace(ridge=ridge, prior=use, scores=own, loss=loss) for use, own, loss in kinds]
    return found


def _mix(candidates: list[Candidate], alone: Tensor | None, judge: Judge, rows: Tensor) -> tuple[float, list[float]]:
    """Loss and shares of the candidates that are best together: the one that lowers the loss most is added, again and again.

    `alone` are the scores of the prior without any kernel, which may have a share too.
    """
    scores = torch.stack([candidate.scores for candidate in candidates] + ([] if alone is None else [alone]), dim=1)
    counts, total, best, best_counts = [0] * scores.shape[1], torch.zeros_like(scores[:, 0]), float("inf"), []
    for step in range(1, MIXED + 1):
        losses = judge.losses((total.unsqueeze(1) + scores) / step, rows)
        at = int(losses.argmin())
        counts[at] += 1
        total = total + scores[:, at]
        if float(losses[at]) < best:
            best, best_counts = float(losses[at]), list(counts)
    # Each kernel costs a factorization and a share of every prediction: a few of them say nearly all.
    kernels = best_counts[: len(candidates)]
    kept = sorted(range(len(kernels)), key=lambda at: -kernels[at])[:MEMBERS]
    scale = sum(kernels) / max(1, sum(kernels[at] for at in kept)) / sum(best_counts)
    return best, [scale * number if at in kept else 0.0 for at, number in enumerate(kernels)]


def _choose_local(
    ranked: list[Candidate],
    centers: Centers,
    num_neighbors: int | None,
    prior: FittedRidge | None,
    priors: Sequence[bool],
    judge: Judge,
    given: float | None,
    seed: int,
) -> Choice:
    """One kernel on the nearest rows of each query."""
    rows = shuffled_rows(len(centers.points), LOCAL_ROWS, seed + 1, centers.points.device)
    counts = [min(num_neighbors or most, len(centers.points) - 1) for most in ((0,) if num_neighbors else NEIGHBORS)]
    found: list[tuple[Candidate, int, Tensor | None]] = []
    for finalist in _best_of_each(ranked, LOCAL_FINALISTS):
        some = shuffled_rows(len(centers.points), FITTED_ROWS, seed, rows.device)
        rotation = principal_directions(finalist.family.mapped(centers.points[some]), PRINCIPAL)
        candidates = _local_candidates(finalist, centers, rows, prior, rotation, counts, priors, judge, given)
        found += [(candidate, count, rotation) for candidate, count in candidates]
    candidate, count, rotation = min(found, key=lambda one: one[0].loss)
    if rotation is not None and not _keeps_all(candidate, centers, rows, prior, rotation, count, judge):
        rotation = None
    member = Member(candidate.family.kernel(candidate.log, rotation), candidate.ridge, count, 1.0, True)
    return Choice((member,), candidate.prior, _tried([one for one, *_ in found], prior))


def principal_directions(mapped: Tensor, most: int) -> Tensor | None:
    """The directions in which points vary most, `(most, E)`; `None` if there are no more."""
    if mapped.shape[1] <= most or len(mapped) <= most:
        return None
    centered = mapped - mapped.mean(0)
    directions: Tensor = torch.linalg.eigh(centered.T @ centered).eigenvectors.T.flip(0)
    return directions[:most].contiguous()


def _local_candidates(
    finalist: Candidate,
    centers: Centers,
    rows: Tensor,
    prior: FittedRidge | None,
    rotation: Tensor | None,
    counts: Sequence[int],
    priors: Sequence[bool],
    judge: Judge,
    given: float | None,
) -> list[tuple[Candidate, int]]:
    """Lengthscales and ridges around a finalist, each at the number of neighbors that suits it."""
    mapped = finalist.family.mapped(centers.points, rotation, torch.float32)
    index = ExactIndex()
    index.build(mapped)
    indices = index.search(mapped[rows], max(counts), exclude=rows).indices
    values = torch.cat([_left_over(centers.values, prior, use) for use in priors], dim=1).float()
    offsets = [_offset(centers.values, prior, use, rows) for use in priors]
    equal, found = bool((centers.weights == 1).all()), []
    for factor in LOCAL_FACTORS if len(finalist.family.factors) > 1 else (1.0,):
        log = finalist.log + math.log(factor)
        profile = scaled(finalist.family.profile, log)
        profile.input_transform = None
        for ridge in [step * finalist.ridge for step in RIDGE_FACTORS] if given is None else [given]:
            options = SolveOptions(profile, ridge if equal else ridge / centers.weights, "constant")
            means = _paths(mapped, rows, values, indices, options, counts)
            for use, offset, own in zip(priors, offsets, means.chunk(len(priors), dim=2), strict=True):
                scores = own.double() + offset.unsqueeze(1)
                losses = judge.losses(scores, rows)
                at = int((losses <= losses.min() * (1 + NEARLY)).nonzero()[0])
                candidate = Candidate(finalist.family, log, ridge, use, scores[:, at], float(losses[at]))
                found.append((candidate, counts[at]))
    return found


def _left_over(values: Tensor, prior: FittedRidge | None, use: bool) -> Tensor:
    """What the kernel predicts."""
    return values if not use or prior is None else prior.left_out()


def _offset(values: Tensor, prior: FittedRidge | None, use: bool, rows: Tensor) -> Tensor:
    """What the prior, if it is used, predicts of some rows without themselves, `(n, C)`."""
    return torch.zeros_like(values[rows]) if not use or prior is None else values[rows] - prior.errors(rows)


def _paths(
    mapped: Tensor, rows: Tensor, values: Tensor, indices: Tensor, options: SolveOptions, counts: Sequence[int]
) -> Tensor:
    """Predictions `(n, len(counts), C)` of rows from so many of their neighbors."""
    last = torch.tensor(counts) - 1
    parts = []
    for chunk in torch.arange(len(rows)).split(PATHS_AT_ONCE):
        means, _ = solve_local(mapped[rows[chunk]], mapped, values, indices[chunk], options, "path")
        parts.append(means[:, last])
    return torch.cat(parts)


def _keeps_all(
    candidate: Candidate,
    centers: Centers,
    rows: Tensor,
    prior: FittedRidge | None,
    rotation: Tensor,
    count: int,
    judge: Judge,
) -> bool:
    """Whether the principal directions predict left-out rows as well as all of them do, up to one standard error."""
    some = shuffled_rows(len(centers.points), COMPARED_ROWS, 2, rows.device)
    own = torch.arange(min(len(rows), len(some)))
    values = _left_over(centers.values, prior, candidate.prior)[some].float()
    offset = _offset(centers.values, prior, candidate.prior, some[own])
    profile = scaled(candidate.family.profile, candidate.log)
    profile.input_transform = None
    weights = centers.weights[some]
    options = SolveOptions(profile, candidate.ridge / weights, "constant")
    losses = []
    for turn in (rotation, None):
        mapped = candidate.family.mapped(centers.points[some], turn, torch.float32)
        index = ExactIndex()
        index.build(mapped)
        indices = index.search(mapped[own], count, exclude=own).indices
        means, _ = solve_local(mapped[own], mapped, values, indices, options, "mean")
        losses.append(judge.per_row(means.double() + offset, some[own]))
    gain = losses[0] - losses[1]  # what all directions gain
    return bool(gain.mean() <= gain.std() / len(gain) ** 0.5)
