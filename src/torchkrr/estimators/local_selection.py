"""Choose a kernel on the nearest rows of each query for classes, from where the candidates on all of few rows ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from ..core.factor import eigh
from ..core.local import solve_local
from ..core.options import SolveOptions
from ..neighbors import ExactIndex
from ..tuning.leave_one_out import shuffled_rows
from .candidates import FITTED_ROWS, Candidate, ClassChoice, Family, Judge, Request, left_over, offset_of, tried_of
from .encoding import Centers
from .predictor import Member
from .prior import FittedRidge, Pairs

LOCAL_ROWS, LOCAL_FINALISTS = 1000, 2
NEIGHBORS = (20, 50, 100, 200)
CLIMBED_AT = 100  # neighbors while lengthscale and ridge are searched
MOST_TRIALS = 12
STEPS = ((math.log(2), 1.0), (-math.log(2), 1.0), (0.0, 3.0), (0.0, 1 / 3))  # of log lengthscale, and factor of the ridge
NEARLY = 0.002  # of the loss: what fewer neighbors may cost
PRINCIPAL = 256  # directions that are searched and solved in, where leave-one-out loses nothing
COMPARED_ROWS = 20_000


@torch.no_grad()
def choose_local_for_classes(
    ranked: list[Candidate],
    centers: Centers,
    request: Request,
    prior: FittedRidge | None,
    priors: Sequence[float],
    judge: Judge,
) -> ClassChoice:
    """One kernel; `ranked` are candidates on all of few rows, the best first."""
    most = len(centers.points) - 1
    counts = [min(count, most) for count in (NEIGHBORS if request.num_neighbors is None else (request.num_neighbors,))]
    climbed_at = min(CLIMBED_AT, max(counts))
    names = list(dict.fromkeys(candidate.family.name for candidate in ranked))[:LOCAL_FINALISTS]
    firsts = {one.family.name: one for one in reversed(ranked) if one.family.name in names}
    maps = {first.family.map_name: first.family for first in firsts.values()}
    trials = {
        name: Trials(family, centers, max(counts), prior, priors, judge, request.seed) for name, family in maps.items()
    }
    tried = [
        trials[first.family.map_name].run(first._replace(ridge=request.ridges((1.0,), first.ridge)[0]), climbed_at)
        for first in firsts.values()
    ]
    for start in tqdm(list(tried), "neighbors", disable=not request.progress):
        tried += trials[start.family.map_name].climb(start, climbed_at, fixed_ridge=request.ridge is not None)
    best = min(tried, key=lambda one: one.loss)
    own = trials[best.family.map_name]
    finals = {count: own.run(best, count, best.prior) for count in counts}
    least = min(final.loss for final in finals.values())
    count = min(count for count, final in finals.items() if final.loss <= least * (1 + NEARLY))
    rotation = own.rotation
    if rotation is not None and not _keeps_all(finals[count], centers, own.rows, prior, rotation, count, judge):
        rotation = None
    member = Member(best.family.kernel(best.log, rotation), best.ridge, count, 1.0, True)
    return ClassChoice((member,), best.prior, tried_of([*tried, *finals.values()], prior))


class Trials:
    """Kernels with the map of a family, on the nearest rows of some rows that are left out."""

    def __init__(
        self,
        family: Family,
        centers: Centers,
        most: int,
        prior: FittedRidge | None,
        priors: Sequence[float],
        judge: Judge,
        seed: int,
    ) -> None:
        self.judge, self.weights = judge, centers.weights
        some = shuffled_rows(len(centers.points), FITTED_ROWS, seed, centers.points.device)
        self.rows = shuffled_rows(len(centers.points), LOCAL_ROWS, seed + 1, centers.points.device)
        # A kernel of the caller's own has its lengthscales after its map, where a rotation would mix them.
        self.rotation = None if family.fixed else principal_directions(family.mapped(centers.points[some]), PRINCIPAL)
        self.mapped = family.mapped(centers.points, self.rotation, torch.float32)
        index = ExactIndex()
        index.build(self.mapped)
        self.indices = index.search(self.mapped[self.rows], most, exclude=self.rows).indices
        ones = torch.ones(self.indices.shape, dtype=torch.float64)
        self.pairs = {0.0: Pairs(self.rows, self.indices, centers.values, ones, 0 * ones)} if 0.0 in priors else {}
        if prior is not None:
            self.pairs |= prior.pairs(self.rows, self.indices, [use for use in priors if use])
        self.offsets = {use: offset_of(centers.values, prior, use, self.rows) for use in priors}

    def run(self, candidate: Candidate, count: int, prior: float | None = None) -> Candidate:
        """Its kernel and ridge with the prior that is best, or the one asked for."""
        profile = candidate.family.on_mapped(candidate.log)
        equal = bool((self.weights == 1).all())
        options = SolveOptions(profile, candidate.ridge if equal else candidate.ridge / self.weights, "constant")
        nothing = self.mapped[:, :1]  # weights have no use for values
        weights, _ = solve_local(self.mapped[self.rows], self.mapped, nothing, self.indices[:, :count], options, "weights")
        found = []
        for use in [use for use in self.pairs if prior in (None, use)]:
            scores = self.pairs[use].weighted(weights) + self.offsets[use]
            loss = float(self.judge.losses(scores.unsqueeze(1), self.rows))
            found.append(candidate._replace(prior=use, scores=scores, loss=loss))
        return min(found, key=lambda one: one.loss)

    def climb(self, start: Candidate, count: int, *, fixed_ridge: bool) -> list[Candidate]:
        """Candidates on the way down from one, by steps of the lengthscale and the ridge."""
        steps = [step for step in STEPS if not (fixed_ridge and step[1] != 1) and not (start.family.fixed and step[0])]
        best, seen = start, {_place(start): start}
        while True:
            here = best
            for more, factor in steps:
                moved = here._replace(log=here.log + more, ridge=here.ridge * factor)
                if _place(moved) not in seen and len(seen) < MOST_TRIALS:
                    seen[_place(moved)] = found = self.run(moved, count)
                    best = min(best, found, key=lambda one: one.loss)
            if best is here:
                return list(seen.values())


def _place(candidate: Candidate) -> tuple[float, float]:
    return round(float(candidate.log.mean()), 6), float(f"{candidate.ridge:.6g}")


def principal_directions(mapped: Tensor, most: int) -> Tensor | None:
    """The directions in which points vary most, `(most, E)`; `None` if there are no more."""
    if mapped.shape[1] <= most or len(mapped) <= most:
        return None
    centered = mapped - mapped.mean(0)
    directions = eigh(centered.T @ centered)[1].T.flip(0)
    return directions[:most].contiguous()


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
    values = left_over(centers.values, prior, candidate.prior)[some].float()
    offset = offset_of(centers.values, prior, candidate.prior, some[own])
    profile = candidate.family.on_mapped(candidate.log)
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
