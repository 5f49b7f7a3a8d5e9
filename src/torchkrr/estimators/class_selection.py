"""Choose kernels and prior for classes: many candidates, judged by the calibrated log loss of rows that are left out.

A few hundred rows screen every kernel, lengthscale and ridge, with and without the prior, in closed form from one
eigendecomposition a kernel matrix. The best go on to more rows, and are mixed in the shares that lower the loss. Where rows
are too many for one factorization, the best are the start of a search on the nearest rows of each query.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..core.dense import factored, inverse_of, project_trend, with_trend
from ..core.spectrum import KernelSpectrum
from ..distances import squared_distances
from ..tuning.leave_one_out import shuffled_rows
from .candidates import WIDE, Candidate, ClassChoice, Family, Judge, Part, Request, families, part_of, tried_of
from .encoding import Centers
from .lengthscales import first_log
from .local_selection import choose_local_for_classes
from .predictor import MOST_DENSE, Member
from .prior import FittedRidge

RIDGES = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
RIDGE_FACTORS = (0.3, 1.0, 3.0)
SCREEN_ROWS, PER_CLASS, MOST_ROWS = 300, 6, 1200
FINALISTS = 6
MOST_CONFIRMED, CONFIRMED = 3000, 4  # rows, and candidates, where there are more rows than the finalists see
MEMBERS = 3
WIDE_PRIORS = (1.0, 4.0)  # the ridge that is best for the prior alone is too small beside a kernel
MIXED = 12  # steps of the mixing: shares are multiples of one in so many


@torch.no_grad()
def choose_for_classes(centers: Centers, request: Request, prior: FittedRidge | None, judge: Judge) -> ClassChoice:
    """Members, and whether the prior is worth its place."""
    count, classes = centers.values.shape
    order = shuffled_rows(count, MOST_ROWS, request.seed, centers.points.device)
    few = order[: max(SCREEN_ROWS, min(PER_CLASS * classes, 2 * SCREEN_ROWS))]
    alone: tuple[float, ...] = (0.0,) if prior is None or request.prior == "auto" else ()
    priors = alone if prior is None else (*alone, *(WIDE_PRIORS if centers.points.shape[1] > WIDE else (1.0,)))
    parts = [part_of(centers, rows, prior, judge.losses, priors) for rows in (few, order)]
    found = families(centers.points, request.kernel)
    screen = partial(_screen, part=parts[0], priors=priors, judge=judge, ridges=request.ridges(RIDGES))
    finalists = _finalists(_joined(request.each(screen, found, "kernels")), priors)
    refit = partial(_refit, priors=priors, judge=judge, request=request)
    final = _joined(request.each(partial(refit, part=parts[1]), finalists, "finalists"))
    ranked = sorted(final, key=lambda one: one.loss)
    if (request.num_neighbors is not None and request.num_neighbors < count) or count > MOST_DENSE:
        return choose_local_for_classes(ranked, centers, request, prior, priors, judge)
    if count > MOST_ROWS:  # lengthscales and ridges that suit few rows are too large for many
        order = shuffled_rows(count, MOST_CONFIRMED, request.seed, centers.points.device)
        parts[1] = part_of(centers, order, prior, judge.losses, priors)
        best = list({_kernel_of(one): one for one in reversed(ranked[:CONFIRMED])}.values())
        final = _joined(request.each(partial(refit, part=parts[1]), best, "more rows"))
    mixes, tried = [], tried_of(final, prior)
    for use in priors:
        own = [candidate for candidate in final if candidate.prior == use]
        offset = parts[1].offset(use) if use else None
        mixes.append((*_mix(own, offset, judge, order), own, use))
        if offset is not None:
            loss = float(judge.losses(offset.unsqueeze(1), order))
            tried["the prior alone"] = min(loss, tried.get("the prior alone", math.inf))
    loss, shares, own, use = min(mixes, key=lambda mix: mix[0])
    chosen = sorted((at for at in range(len(own)) if shares[at] > 0), key=lambda at: -shares[at])
    if not chosen:  # the prior alone; a kernel still says how far a row is from the others
        chosen = [min(range(len(own)), key=lambda at: own[at].loss)]
    members = tuple(Member(own[at].family.kernel(own[at].log), own[at].ridge, None, shares[at]) for at in chosen)
    if len(members) > 1 or shares[chosen[0]] != 1:
        tried["the mixture"] = loss
    return ClassChoice(members, use, tried)


def _joined(parts: list[list[Candidate]]) -> list[Candidate]:
    return list(itertools.chain.from_iterable(parts))


def _screen(family: Family, part: Part, priors: Sequence[float], judge: Judge, ridges: Sequence[float]) -> list[Candidate]:
    """Every lengthscale and ridge on some rows."""
    mapped = family.mapped(part.points)
    # What the prior leaves over is taken as it is: how it depends on a row that is left out counts in the next round.
    known = torch.stack([part.targets(use) for use in priors], dim=1)  # (n, P, C)
    offsets = torch.stack([part.offset(use) for use in priors], dim=1)
    distances = squared_distances(mapped, mapped).sqrt()
    start = first_log(mapped) if family.transform is not None else torch.zeros(1, dtype=torch.float64)
    logs, scores = [start + math.log(factor) for factor in family.factors], []
    for log in logs:
        spectrum = KernelSpectrum(family.profile.profile(distances * torch.exp(-log)), part.weights)
        left_out = spectrum.leave_one_out(known.flatten(1), ridges).unflatten(2, known.shape[1:])  # (n, R, P, C)
        scores.append((offsets + known).unsqueeze(1) - left_out)
    table = torch.stack(scores, dim=1).nan_to_num(0.0)  # (n, L, R, P, C)
    losses = judge.losses(table.flatten(1, 3), part.rows).view(table.shape[1:4])
    return [
        Candidate(family, logs[i], ridges[j], use, table[:, i, j, k], float(losses[i, j, k]))
        for i, j in itertools.product(range(len(logs)), range(len(ridges)))
        for k, use in enumerate(priors)
    ]


def _finalists(screened: list[Candidate], priors: Sequence[float]) -> list[Candidate]:
    """The best kernel of each family, whose order on a few rows says little, then the best others; each kernel once."""
    found: dict[tuple[str, float], Candidate] = {}
    for use in priors:
        ranked = sorted((one for one in screened if one.prior == use), key=lambda one: one.loss)
        best = {_kernel_of(one): one for one in reversed(ranked)}
        firsts = {one.family.name: one for one in reversed(ranked)}
        order = [*firsts.values(), *sorted(best.values(), key=lambda one: one.loss)]
        for candidate in order[: FINALISTS // len(priors) + (not use)]:
            found.setdefault(_kernel_of(candidate), candidate)
    return list(found.values())


def _kernel_of(candidate: Candidate) -> tuple[str, float]:
    return candidate.family.name, float(candidate.log)


def _refit(finalist: Candidate, part: Part, priors: Sequence[float], judge: Judge, request: Request) -> list[Candidate]:
    """Ridges around that of a finalist, on more rows."""
    family, mapped = finalist.family, finalist.family.mapped(part.points)
    gram = family.profile.profile(squared_distances(mapped, mapped).sqrt() * torch.exp(-finalist.log))
    found = []
    for ridge in request.ridges(RIDGE_FACTORS, finalist.ridge):
        system = with_trend(factored(gram, ridge / part.weights))
        if bool(system.factor.sound):
            inverse = project_trend(system, inverse_of(system))[0]
            alone = (inverse @ part.values) / inverse.diagonal().unsqueeze(1)
            residuals = [part.hats[use].of_sum(inverse) if use else alone for use in priors]
            scores = [(part.values - own).nan_to_num(0.0) for own in residuals]
            losses = judge.losses(torch.stack(scores, dim=1), part.rows).tolist()
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
