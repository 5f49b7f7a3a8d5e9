"""A dense problem that is kept: factored once, judged once, for queries not yet known."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from . import trust
from .dense import (
    DenseProblem,
    DenseSystem,
    assemble,
    cross_kernel,
    inverse_of,
    left_out_of,
    power_for,
    project_trend,
    query_chunks,
    spd_solve,
    weights_for,
)
from .options import SolveOptions
from .trust import Evidence


@torch.no_grad()
def serves_any_query(system: DenseSystem) -> Tensor:
    r"""Whether float64 systems follow the rule of systems for queries not yet known, `(*,)` bool.

    The norms of their weights are taken to be $\sqrt N$, as for local coefficients that are kept.
    """
    rows = system.matrix.shape[-1]
    vectors = trust.probes(system.matrix)
    inverse = trust.inverse_norm(spd_solve(system, vectors), vectors)
    norm = torch.full_like(system.size, math.sqrt(rows))
    no_ridge = torch.zeros_like(norm)  # the rule of systems does not ask for it
    evidence = Evidence(system.size, norm, norm, no_ridge, inverse=inverse)
    return system.factor.sound & trust.judge(evidence, rows, trust.limits(torch.float64, "mean"))


class DenseRegressor:
    """One Gram matrix, factored once and kept for queries not yet known.

    In float64 whatever the dtype of the points, and with the least ridge that resolves the system for any values.
    """

    @torch.no_grad()
    def __init__(self, centers: Tensor, values: Tensor, options: SolveOptions) -> None:
        points, ridge = options.kernel.embed(centers.double()), options.ridge_tensor(centers.device)
        problem = DenseProblem(points[:0], points, values.double(), ridge, options.kernel, options.trend is not None)
        self.problem, system = _raised(problem, options)
        self.system = system._replace(matrix=system.factor.upper)  # only its shape is asked for from here on
        self.coefficients, self.constant = project_trend(self.system, spd_solve(self.system, self.problem.values))

    @torch.no_grad()
    def predict(self, query: Tensor) -> Tensor:
        """`(Q, D)` to `(Q, C)`."""
        return torch.cat([self._mean(cross) for cross in self._cross(query)])

    @torch.no_grad()
    def predict_with_power(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions `(Q, C)` and the squared power function `(Q,)`."""
        parts = [
            (self._mean(cross), power_for(self.system, cross, weights_for(self.system, cross)))
            for cross in self._cross(query)
        ]
        means, powers = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(powers)

    @torch.no_grad()
    def weights(self, query: Tensor) -> Tensor:
        """`(Q, N)`."""
        return torch.cat([weights_for(self.system, cross).weights.mT for cross in self._cross(query)])

    @torch.no_grad()
    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Predictions of each center from the others `(N, C)`, and the diagonal of the (projected) inverse `(N,)`."""
        found = left_out_of(self.system, self.problem.values, inverse_of(self.system))
        return self.problem.values - found.residuals, found.diagonal

    def _mean(self, cross: Tensor) -> Tensor:
        part = cross.mT @ self.coefficients
        return part if self.constant is None else part + self.constant

    def _cross(self, query: Tensor) -> Iterator[Tensor]:
        """`(N, q)` for some queries after others."""
        problem = self.problem._replace(query=self.problem.kernel.embed(query.double()))
        for chunk in query_chunks(problem):
            yield cross_kernel(problem, problem.query[chunk])


def _raised(problem: DenseProblem, options: SolveOptions) -> tuple[DenseProblem, DenseSystem]:
    """One float64 problem with the least ridge that serves any query, and its system."""
    system = assemble(problem)
    if bool(serves_any_query(system)):
        return problem, system
    if options.on_singular == "raise":
        raise trust.singular_error("A Gram matrix", f"N={problem.centers.shape[-2]}", problem.ridge, "")
    for rung in trust.ladder(torch.float64, float(problem.ridge.min())):
        higher = problem._replace(ridge=problem.ridge.clamp_min(rung))
        system = assemble(higher)
        if bool(serves_any_query(system)):
            trust.warn_raised(1, rung)
            return higher, system
    raise trust.overflow_error(1)
