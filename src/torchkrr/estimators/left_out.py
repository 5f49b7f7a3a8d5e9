r"""Every center predicted without itself and its group, kept as a linear map of the values.

What is predicted for center $i$ without it is what the prior says without it, and the kernels' prediction from what the
prior leaves over of the others. With everything but the values fixed this is linear in them: another value of center $j$
moves all scores by a column of the map. The column takes the time of a product, and nothing is solved again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from .._chunking import ranges
from ..core.least_squares import MOST_LEVERAGE
from .encoding import SAMPLES, Array, Groups
from .predictor import DenseMember, LocalMember, Predictor, combine_variances, without_groups
from .prior import NEARLY_ONE, GroupedHat, Hat, together

AT_ONCE = 4096  # centers whose neighbors are solved together


class _Map(Protocol):
    """One member: what it predicts for each center from the targets of the others."""

    @property
    def variance(self) -> Tensor: ...  # (N,)

    def means(self, targets: Tensor, hat: Hat | GroupedHat | None) -> Tensor: ...

    def row(self, center: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class _LocalMap:
    variance: Tensor
    indices: Tensor  # (N, M) int32
    weights: Tensor  # (N, M) in the dtype that is solved in

    def means(self, targets: Tensor, hat: Hat | GroupedHat | None) -> Tensor:
        """`(N, C)` to `(N, C)`; a hat counts for members that use every center alone."""
        parts = []
        for rows in ranges(len(self.indices), AT_ONCE):
            near = targets[self.indices[rows].long()].to(self.weights.dtype)
            parts.append(torch.einsum("nm,nmc->nc", self.weights[rows], near))
        return torch.cat(parts).double()

    def row(self, center: int) -> tuple[Tensor, Tensor]:
        """The centers behind one prediction, and their weights."""
        return self.indices[center].long(), self.weights[center].double()


@dataclass(frozen=True)
class _DenseMap:
    variance: Tensor
    inverse: Tensor  # (N, N), projected onto what the trend leaves
    several: tuple[Tensor, ...]

    def means(self, targets: Tensor, hat: Hat | GroupedHat | None) -> Tensor:
        if hat is not None:
            return hat.left_out() - hat.of_sum(self.inverse)
        return targets - without_groups(self.inverse, self.inverse @ targets, self.several)[0]

    def row(self, center: int) -> tuple[Tensor, Tensor]:
        together = next((members for members in self.several if bool((members == center).any())), torch.tensor([center]))
        block = self.inverse[together][:, together]
        place = int((together == center).nonzero())
        weights = -torch.linalg.solve(block, self.inverse[together])[place]
        weights[together] = 0.0
        return torch.arange(len(weights)), weights


class LeftOut:
    """Scores of all centers of a predictor, each without itself and its group.

    Attributes:
        scores: `(N, C)`, in the unit of the kept values.
        variance: `(N,)`, as of `Predictor.leave_out`.
    """

    @torch.no_grad()
    def __init__(self, predictor: Predictor, *, progress: bool = False) -> None:
        centers = predictor.centers
        self._groups, self._prior = predictor.groups, predictor.fitted_prior
        self._several = () if self._groups is None else self._groups.several
        self._shares = [member.share for member in predictor.members]
        self._maps: list[_Map] = [
            _local_map(fitted, self._groups, progress)
            if isinstance(fitted, LocalMember)
            else _dense_map(fitted, self._several)
            for fitted in predictor.fitted
        ]
        self.variance = combine_variances(predictor.members, [one.variance for one in self._maps])
        self.values = centers.values.clone()
        residuals = self.values
        self._hat: Hat | GroupedHat | None = None
        if self._prior is not None:
            residuals, leverages = self._prior.spectrum.residuals(self._prior.prior.ridge)
            self._rest = (
                (1 - leverages.clamp_max(MOST_LEVERAGE)).unsqueeze(1),
                (1 - leverages.clamp_max(NEARLY_ONE)).unsqueeze(1),
            )
            if len(centers.points) <= SAMPLES and any(isinstance(one, _DenseMap) for one in self._maps):
                rows = torch.arange(len(centers.points))
                self._hat = self._prior.hat(rows) if self._groups is None else self._prior.grouped_hat(self._groups)
            self._together = [self._of_group(members) for members in self._several]
        elif predictor.prior is not None:  # a model, which no row was left out of
            residuals = predictor.left_over.values
        self.scores = self._scores(self.values, residuals)

    def column(self, center: int) -> Tensor:
        """How far the score of each center, without itself, follows the value of one, `(N,)`."""
        unit = torch.zeros(len(self.values), 1, dtype=torch.float64)
        unit[center] = 1.0
        if self._prior is None:
            return self._scores(unit, unit).squeeze(1)
        fitted = self._prior.spectrum.hat_column(self._prior.prior.ridge, center)
        return self._scores(unit, unit - fitted.unsqueeze(1)).squeeze(1)

    @torch.no_grad()
    def change(self, center: int, values: Tensor) -> None:
        """Give a center other values `(C,)`; the scores are those of a fit with them and the same settings."""
        self.scores += self.column(center).unsqueeze(1) * (values - self.values[center])
        self.values[center] = values

    def behind(self, center: int, most: int) -> tuple[Array, Array]:
        """The centers behind the score of one, those of the largest weight first, and their weights, `(m,)` each."""
        total = torch.zeros(len(self.values), dtype=torch.float64)
        for share, one in zip(self._shares, self._maps, strict=True):
            indices, weights = one.row(center)
            total.index_add_(0, indices, share * weights)
        order = total.abs().argsort(descending=True, stable=True)[:most]
        order = order[total[order] != 0]
        return order.numpy(), total[order].numpy()

    def _scores(self, values: Tensor, residuals: Tensor) -> Tensor:
        """From the residuals `(N, C)` of the fit of the prior to the values `(N, C)`."""
        errors = targets = residuals
        hat = self._hat
        if self._prior is not None:
            targets, errors = (residuals / rest for rest in self._rest)
            for members, (of_targets, of_errors) in zip(self._several, self._together, strict=True):
                targets[members], errors[members] = of_targets @ residuals[members], of_errors @ residuals[members]
            if isinstance(hat, Hat):
                hat = hat._replace(residuals=residuals, errors=errors)
            elif hat is not None:
                hat = hat.with_residuals(residuals, errors)
        total = values - errors
        for share, one in zip(self._shares, self._maps, strict=True):
            if share:
                total = total + share * one.means(targets, hat)
        return total

    def _of_group(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """What turns residuals of a group into those of the fit without it: of targets, and of errors."""
        assert self._prior is not None
        spectrum = self._prior.spectrum
        _, roots = spectrum.some_residuals(self._prior.prior.ridge, members, spectrum.project(members))
        one, weights = torch.eye(len(members), dtype=torch.float64), spectrum.weights[members]
        first, second = (together(one, roots, weights, most)[1] for most in (MOST_LEVERAGE, NEARLY_ONE))
        return first, second


def _local_map(fitted: LocalMember, groups: Groups | None, progress: bool) -> _LocalMap:
    parts = []
    for rows in tqdm(ranges(len(fitted.points), AT_ONCE), "leaving out", disable=not progress):
        which = torch.arange(rows.start, rows.stop)
        weights, variance, indices = fitted.solve(fitted.points[rows], "weights", exclude=which, groups=groups)
        parts.append((variance + fitted.ridges_of(rows), indices.int(), weights))
    return _LocalMap(*map(torch.cat, zip(*parts, strict=True)))


def _dense_map(fitted: DenseMember, several: tuple[Tensor, ...]) -> _DenseMap:
    places = fitted.order.argsort()
    inverse, ridges = fitted.regressor.inverse()[places][:, places], fitted.ridges[places]
    _, diagonal = without_groups(inverse, inverse[:, :0], several)
    return _DenseMap(torch.maximum(1 / diagonal, ridges), inverse, several)
