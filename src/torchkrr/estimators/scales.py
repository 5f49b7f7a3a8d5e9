r"""Lengthscales and ridge of a dense regressor by the closed form of leave-one-out.

With $A = K + \lambda W^{-1}$ ($W$ the weights of the rows), $u = A^{-1}1$ and $P = A^{-1} - uu^\top/1^\top u$, the residual
of row $i$ without itself is $r_i = a_i/c_i$, $a = Py$, $c_i = P_{ii}$. The logarithm of $\sum_i w_i r_i^2$ over a patch of
rows is lowered by gradient descent. The sum itself has the slope

$$ \bar A = -P g a^\top - P\,\mathrm{diag}(h)\,P, \qquad g_i = 2w_ia_i/c_i^2,\quad h_i = -2w_ia_i^2/c_i^3 , $$

and, with $p = e/\ell$ the scaled points and $S = \bar A\circ\varphi'(d)/d$, its slope in $\log\ell_k$ is
$-2\sum_i (S1)_i p_{ik}^2 + 2\,p_k^\top S p_k$: matrix products, and no factorization is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._progress import Progress
from ..core.dense import factored, inverse_of, left_out_of, project_trend, serves_any_query, with_trend
from ..kernels import Kernel
from ..neighbors import nearest
from .threads import threads

LEAST_RIDGE, MOST_RIDGE = 1e-7, 1e2
LEAST_LOG, MOST_LOG = -7.0, 9.0
PATCH = 400  # rows at once: a step costs their cube
NEAR_PATCH = 300
SEARCHED_AT_ONCE = 8
RATE, BETAS = 0.1, (0.9, 0.99)


class Scales(NamedTuple):
    """Logarithms of one lengthscale for each group of embedded columns, and the ridge."""

    logs: Tensor  # (G,)
    ridge: float


class Problem(NamedTuple):
    """Embedded rows in float64 with the group of each column; values at zero mean and unit variance."""

    embedded: Tensor  # (N, E)
    groups: Tensor  # (E,)
    values: Tensor  # (N, C)
    weights: Tensor  # (N,)
    kernel: Kernel  # its profile

    def rows(self, which: Tensor) -> Problem:
        return self._replace(embedded=self.embedded[which], values=self.values[which], weights=self.weights[which])


class Path(NamedTuple):
    """The best of the ridges and factors tried, with what it predicts for each row left out."""

    loss: float
    scales: Scales
    left_out: Tensor  # (N, C)


class Slope(NamedTuple):
    loss: float
    logs: Tensor  # (G,)
    log_ridge: Tensor  # ()


def first_scale(embedded: Tensor) -> float:
    """The logarithm of the root mean square distance of two rows."""
    return 0.5 * math.log(max(float(2 * embedded.var(0, correction=0).sum()), 1e-12))


def learn_scales(
    problem: Problem, start: Scales, *, steps: int, generator: torch.Generator, bar: Progress, near: bool = False
) -> Scales:
    """Adam on the leave-one-out loss of patches, in the logarithms of lengthscales and ridge.

    A patch is a random sample of the rows or, if `near`, the rows nearest to a random one in the metric as it stands: for
    predictions from neighbors, rows must be as close as these are. Only its inner half is then left out.
    """
    with threads(1):  # matrices this small gain little from more, and lose much where cores are busy
        patches = _near_patches(problem, generator) if near else _random_patches(problem, generator)
        logs, log_ridge = start.logs.clone(), torch.tensor(math.log(max(start.ridge, LEAST_RIDGE)), dtype=torch.float64)
        first, second = torch.zeros(len(logs) + 1, dtype=torch.float64), torch.zeros(len(logs) + 1, dtype=torch.float64)
        for step in range(steps):
            some = patches(logs)
            found = loss_slope(some, logs, log_ridge, len(some.embedded) // 2 if near else None)
            bar.advance()
            if found is None:  # singular in float64: only a larger ridge helps
                log_ridge += 1.0
                continue
            # Adam, written out: torch.optim takes two seconds to import.
            slope = torch.cat((found.logs, found.log_ridge.unsqueeze(0)))
            first.mul_(BETAS[0]).add_(slope, alpha=1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
            rate = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            spread = (second / (1 - BETAS[1] ** (step + 1))).sqrt() + 1e-8
            move = rate / (1 - BETAS[0] ** (step + 1)) * first / spread
            logs = (logs - move[:-1]).clamp(LEAST_LOG, MOST_LOG)
            log_ridge = (log_ridge - move[-1]).clamp(math.log(LEAST_RIDGE), math.log(MOST_RIDGE))
        return Scales(logs, math.exp(float(log_ridge)))


def _random_patches(problem: Problem, generator: torch.Generator) -> Callable[[Tensor], Problem]:
    count = len(problem.embedded)

    def patch(logs: Tensor) -> Problem:
        return problem.rows(torch.randperm(count, generator=generator)[:PATCH]) if count > PATCH else problem

    return patch


def _near_patches(problem: Problem, generator: torch.Generator) -> Callable[[Tensor], Problem]:
    """Patches found a few at a time: a search costs as much as a few steps."""
    embedded = problem.embedded.float()
    found: list[Tensor] = []

    def patch(logs: Tensor) -> Problem:
        if not found:
            points = embedded * torch.exp(-logs).float()[problem.groups]
            seeds = torch.randint(len(points), (SEARCHED_AT_ONCE,), generator=generator)
            found.extend(nearest(points[seeds], points, min(NEAR_PATCH, len(points))))
        return problem.rows(found.pop())

    return patch


def loss_slope(problem: Problem, logs: Tensor, log_ridge: Tensor, counted: int | None = None) -> Slope | None:
    """Half the logarithm of the mean square residual and its slope; `None` if the rows cannot be solved.

    The logarithm makes steps independent of how good the fit already is. With `counted` only the residuals of the first
    rows count.
    """
    points = problem.embedded * torch.exp(-logs)[problem.groups]
    distances = _distances(points)
    gram = problem.kernel.profile(distances)
    ridges = log_ridge.exp() / problem.weights
    system = with_trend(factored(gram, ridges))
    if not bool(serves_any_query(system)):
        return None
    inverse = inverse_of(system)
    residuals, solved, diagonal = left_out_of(system, problem.values, inverse)  # r, a, c
    projected, diagonal = project_trend(system, inverse)[0], diagonal.unsqueeze(1)  # P
    counts = problem.weights.clone()
    if counted is not None:
        counts[counted:] = 0.0
    shares = (counts / counts.sum()).unsqueeze(1)
    mean_square = float((shares * residuals.square()).sum().clamp_min(1e-24))
    g = shares * solved / diagonal.square() / mean_square
    h = -(shares * solved.square()).sum(1, keepdim=True) / diagonal.pow(3) / mean_square
    # Minus the slope. The part of rank C is not symmetric, but it meets symmetric matrices only.
    descent = torch.addmm((projected @ g) @ solved.mT, projected, h * projected)
    pull = descent * problem.kernel.slope_over_distance(distances)  # -S
    columns = (pull.sum(0) + pull.sum(1)) @ points.square() - 2 * (points * (pull @ points)).sum(0)
    by_group = torch.zeros_like(logs).index_add_(0, problem.groups, columns)
    by_ridge = -(descent.diagonal() * ridges).sum()
    if not (math.isfinite(mean_square) and bool(by_group.isfinite().all()) and bool(by_ridge.isfinite())):
        return None
    return Slope(0.5 * math.log(mean_square), by_group, by_ridge)


def _distances(points: Tensor) -> Tensor:
    """Between all rows, `(N, N)`, by inner products: in float64 the digits that close pairs lose are not missed here."""
    points = points - points.mean(0)
    squares = points.square().sum(1)
    squared = torch.addmm(squares.unsqueeze(1) + squares, points, points.mT, alpha=-2)
    return squared.clamp_min_(0).fill_diagonal_(0).sqrt_()


def try_around(problem: Problem, around: Scales, factors: tuple[float, ...], ridges: tuple[float, ...]) -> Path:
    """The best of common factors of the lengthscales and of ridges, on all rows."""
    best: Path | None = None
    shares = (problem.weights / problem.weights.sum()).unsqueeze(1)
    for factor in factors:
        logs = around.logs + math.log(factor)
        gram = problem.kernel.profile(_distances(problem.embedded * torch.exp(-logs)[problem.groups]))
        for ridge in ridges:
            system = with_trend(factored(gram, ridge / problem.weights))
            if not bool(serves_any_query(system)):
                continue
            residuals = left_out_of(system, problem.values, inverse_of(system)).residuals
            loss = float((shares * residuals.square()).sum())
            if math.isfinite(loss) and (best is None or loss < best.loss):
                best = Path(loss, Scales(logs, ridge), problem.values - residuals)
    if best is None:  # none can be trusted: the largest, which the regressor raises further, with a warning
        best = Path(math.inf, Scales(around.logs, max(ridges)), torch.zeros_like(problem.values))
    return best
