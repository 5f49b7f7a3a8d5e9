r"""Learn the lengthscales and the ridge of a dense regressor by the closed form of leave-one-out.

With $A = K + \lambda W^{-1}$ ($W$ the weights of the rows), $u = A^{-1}1$ and $P = A^{-1} - uu^\top/1^\top u$, the residual
of row $i$ without itself is $r_i = a_i/c_i$, $a = Py$, $c_i = P_{ii}$. The logarithm of $\sum_i w_i r_i^2$ over patches of
rows is lowered by L-BFGS. The sum itself has the slope

$$ \bar A = -P g a^\top - P\,\mathrm{diag}(h)\,P, \qquad g_i = 2w_ia_i/c_i^2,\quad h_i = -2w_ia_i^2/c_i^3 , $$

and, with $p = e/\ell$ the scaled points and $S = \bar A\circ\varphi'(d)/d$, its slope in $\log\ell_k$ is
$-2\sum_i (S1)_i p_{ik}^2 + 2\,p_k^\top S p_k$: matrix products, and no factorization is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from .._threads import threads
from ..core.dense import factored, inverse_of, left_out_of, project_trend, serves_any_query, with_trend
from ..core.spectrum import KernelSpectrum
from ..kernels import Kernel
from ..neighbors import nearest

LEAST_RIDGE, MOST_RIDGE = 1e-7, 1e2
LEAST_LOG, MOST_LOG = -7.0, 9.0
PULL = 0.3  # to equal lengthscales, in rows
NEAR_PATCHES, NEAR_PATCH = 6, 300  # rows at once: a step costs their cube
UNRESOLVED = 1e3  # the loss of what cannot be solved


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
    patches: Sequence[Problem], logs: Tensor, ridge: float, *, evaluations: int, counted: int | None = None
) -> tuple[Tensor, float]:
    """Logarithms of the lengthscales `(G,)` and a ridge, by L-BFGS on the mean leave-one-out loss of patches of rows.

    A weak pull to equal lengthscales keeps those apart that leave-one-out says nothing about. With `counted`, only so many
    first rows of each patch are left out.
    """

    def objective(theta: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        moved = torch.from_numpy(theta.copy())
        parts = [loss_slope(patch, moved[:-1], moved[-1], counted) for patch in patches]
        loss, slope = math.fsum(part[0] for part in parts) / len(parts), torch.stack([part[1] for part in parts]).mean(0)
        if not math.isfinite(loss):  # singular in float64
            return UNRESOLVED, np.zeros_like(theta)
        pull = PULL / len(patches[0].embedded) * (moved[:-1] - moved[:-1].mean())
        slope[:-1] += pull
        return loss + 0.5 * float(pull @ (moved[:-1] - moved[:-1].mean())), slope.numpy()

    start = np.append(logs.numpy(), math.log(max(ridge, LEAST_RIDGE)))
    bounds = [(LEAST_LOG, MOST_LOG)] * len(logs) + [(math.log(LEAST_RIDGE), math.log(MOST_RIDGE))]
    options = {"maxfun": evaluations, "maxiter": evaluations}
    with threads(1):  # matrices this small gain little from more, and lose much where cores are busy
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return torch.from_numpy(found[:-1].copy()), math.exp(found[-1])


def near_patches(problem: Problem, logs: Tensor, generator: torch.Generator) -> list[Problem]:
    """The rows nearest to some random ones in the metric as it stands, nearest first: as close as those of a query."""
    points = problem.embedded.float() * torch.exp(-logs).float()[problem.groups]
    seeds = torch.randint(len(points), (NEAR_PATCHES,), generator=generator)
    return [problem.rows(rows) for rows in nearest(points[seeds], points, min(NEAR_PATCH, len(points)))]


def random_patch(problem: Problem, rows: int, generator: torch.Generator) -> Problem:
    """So many of the rows; all if there are no more."""
    count = len(problem.embedded)
    return problem if count <= rows else problem.rows(torch.randperm(count, generator=generator)[:rows])


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
    for factor in factors:
        moved = logs + math.log(factor)
        gram = problem.kernel.profile(_distances(problem.embedded * torch.exp(-moved)[problem.groups]))
        spectrum = KernelSpectrum(gram, problem.weights)
        trusted = [ridge for ridge in ridges if spectrum.resolves(ridge)]
        if not trusted:
            continue
        residuals = spectrum.leave_one_out(problem.values, trusted)
        shares = problem.weights / problem.weights.sum()
        losses = torch.einsum("n,nrc->r", shares, residuals.square())
        at = int(losses.argmin())
        if float(losses[at]) < best.loss:
            best = Fit(float(losses[at]), moved, trusted[at], problem.values - residuals[:, at])
    return best
