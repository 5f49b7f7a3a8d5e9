r"""Learn the lengthscales and the ridge of a dense regressor by the closed form of leave-one-out.

With $A = K + \lambda W^{-1}$ ($W$ the weights of the rows), $u = A^{-1}1$ and $P = A^{-1} - uu^\top/1^\top u$, the residual
of row $i$ without itself is $r_i = a_i/c_i$, $a = Py$, $c_i = P_{ii}$. The logarithm of $\sum_i w_i r_i^2$ over a patch of
rows is lowered by gradient descent. The sum itself has the slope

$$ \bar A = -P g a^\top - P\,\mathrm{diag}(h)\,P, \qquad g_i = 2w_ia_i/c_i^2,\quad h_i = -2w_ia_i^2/c_i^3 , $$

and, with $p = e/\ell$ the scaled points and $S = \bar A\circ\varphi'(d)/d$, its slope in $\log\ell_k$ is
$-2\sum_i (S1)_i p_{ik}^2 + 2\,p_k^\top S p_k$: matrix products, and no factorization is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .._threads import threads
from ..core.dense import factored, inverse_of, left_out_of, project_trend, serves_any_query, with_trend
from ..kernels import Kernel
from ..neighbors import nearest

LEAST_RIDGE, MOST_RIDGE = 1e-7, 1e2
LEAST_LOG, MOST_LOG = -7.0, 9.0
PATCH = 400  # rows at once: a step costs their cube
NEAR_PATCH = 300
SEARCHED_AT_ONCE = 8
RATE, BETAS = 0.1, (0.9, 0.99)


class Problem(NamedTuple):
    """Embedded rows in float64 with the group of each column; values at zero mean and unit variance."""

    embedded: Tensor  # (N, E)
    groups: Tensor  # (E,): columns of one group have one lengthscale
    values: Tensor  # (N, C)
    weights: Tensor  # (N,)
    kernel: Kernel  # its profile

    def rows(self, which: Tensor) -> Problem:
        return self._replace(embedded=self.embedded[which], values=self.values[which], weights=self.weights[which])


class Fit(NamedTuple):
    """The best of the lengthscales and ridges tried."""

    loss: float
    logs: Tensor  # (G,): logarithms of the lengthscales
    ridge: float
    left_out: Tensor  # (N, C): what is predicted for each row left out


def first_log(embedded: Tensor) -> Tensor:
    """The logarithm of the root mean square distance of two rows, `(1,)`."""
    mean_square = max(float(2 * embedded.var(0, correction=0).sum()), 1e-12)
    return torch.tensor([0.5 * math.log(mean_square)], dtype=torch.float64)


def learn_lengthscales(
    problem: Problem,
    logs: Tensor,
    ridge: float,
    *,
    steps: int,
    generator: torch.Generator,
    bar: tqdm[Any],
    near: bool = False,
) -> tuple[Tensor, float]:
    """Logarithms of the lengthscales `(G,)` and a ridge, by Adam on the leave-one-out loss of patches.

    A patch is a random sample of the rows or, if `near`, the rows nearest to a random one in the metric as it stands: for
    predictions from neighbors, rows must be as close as these are. Only its inner half is then left out.
    """
    count, nearby = len(problem.embedded), problem.embedded.float() if near else None
    patches: list[Tensor] = []
    log_ridge = torch.tensor(math.log(max(ridge, LEAST_RIDGE)), dtype=torch.float64)
    first, second = torch.zeros(2, len(logs) + 1, dtype=torch.float64)
    with threads(1):  # matrices this small gain little from more, and lose much where cores are busy
        for step in range(steps):
            if nearby is not None and not patches:  # a few at a time: a search costs as much as a few steps
                points = nearby * torch.exp(-logs).float()[problem.groups]
                seeds = torch.randint(count, (SEARCHED_AT_ONCE,), generator=generator)
                patches.extend(nearest(points[seeds], points, min(NEAR_PATCH, count)))
            if nearby is None and count > PATCH:
                patches.append(torch.randperm(count, generator=generator)[:PATCH])
            some = problem.rows(patches.pop()) if patches else problem
            loss, slope = loss_slope(some, logs, log_ridge, len(some.embedded) // 2 if near else None)
            bar.update()
            if not math.isfinite(loss):  # singular in float64: only a larger ridge helps
                log_ridge = log_ridge + 1.0
                continue
            # Adam, written out: torch.optim takes two seconds to import.
            first.mul_(BETAS[0]).add_(slope, alpha=1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
            rate = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            spread = (second / (1 - BETAS[1] ** (step + 1))).sqrt() + 1e-8
            move = rate / (1 - BETAS[0] ** (step + 1)) * first / spread
            logs = (logs - move[:-1]).clamp(LEAST_LOG, MOST_LOG)
            log_ridge = (log_ridge - move[-1]).clamp(math.log(LEAST_RIDGE), math.log(MOST_RIDGE))
    return logs, math.exp(float(log_ridge))


def loss_slope(problem: Problem, logs: Tensor, log_ridge: Tensor, counted: int | None = None) -> tuple[float, Tensor]:
    """Half the logarithm of the mean square residual and its slope `(G + 1,)`; infinity if the rows cannot be solved.

    The logarithm makes steps independent of how good the fit already is. With `counted` only the residuals of the first
    rows count.
    """
    points = problem.embedded * torch.exp(-logs)[problem.groups]
    distances = _distances(points)
    gram = problem.kernel.profile(distances)
    ridges = log_ridge.exp() / problem.weights
    system = with_trend(factored(gram, ridges))
    if not bool(serves_any_query(system)):
        return math.inf, logs
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
    slope = torch.zeros(len(logs) + 1, dtype=logs.dtype).index_add_(0, problem.groups, columns)
    slope[-1] = -(descent.diagonal() * ridges).sum()
    good = math.isfinite(mean_square) and bool(slope.isfinite().all())
    return 0.5 * math.log(mean_square) if good else math.inf, slope


def _distances(points: Tensor) -> Tensor:
    """Between all rows, `(N, N)`, by inner products: in float64 the digits that close pairs lose are not missed here."""
    points = points - points.mean(0)
    squares = points.square().sum(1)
    squared = torch.addmm(squares.unsqueeze(1) + squares, points, points.mT, alpha=-2)
    return squared.clamp_min_(0).fill_diagonal_(0).sqrt_()


def try_around(problem: Problem, logs: Tensor, factors: Sequence[float], ridges: Sequence[float]) -> Fit:
    """The best of common factors of the lengthscales and of ridges, on all rows."""
    # Where none can be trusted: the largest ridge, which the regressor raises further, with a warning.
    best = Fit(math.inf, logs, max(ridges), torch.zeros_like(problem.values))
    shares = (problem.weights / problem.weights.sum()).unsqueeze(1)
    for factor in factors:
        moved = logs + math.log(factor)
        gram = problem.kernel.profile(_distances(problem.embedded * torch.exp(-moved)[problem.groups]))
        for ridge in ridges:
            system = with_trend(factored(gram, ridge / problem.weights))
            if not bool(serves_any_query(system)):
                continue
            residuals = left_out_of(system, problem.values, inverse_of(system)).residuals
            loss = float((shares * residuals.square()).sum())
            if loss < best.loss:
                best = Fit(loss, moved, ridge, problem.values - residuals)
    return best
