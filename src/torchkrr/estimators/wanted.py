"""What the caller fixed and what is left to the data, in the library's own terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..kernels import Exponential, Gaussian, Kernel, Matern32, Matern52
from ..transforms import Compose, Standardize, Transform
from ..tuning.scores import Loss
from .embeddings import Staircase, values_and_ranks

Metric = Literal["ard", "linear", "auto"] | None
# Factors of a lengthscale to try: around a first guess, and around one that was found.
FIRST_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FACTORS = (0.7, 1.0, 1.4)
LEAST_ROWS = 50  # to learn a metric from
PROFILES: dict[str, type[Kernel]] = {
    "exponential": Exponential,
    "matern32": Matern32,
    "matern52": Matern52,
    "gaussian": Gaussian,
    "laplacian": Gaussian,  # on a staircase
}


class Wanted(NamedTuple):
    """`None` is to be chosen, except for the metric, where it is none."""

    num_neighbors: int | None
    ridge: float | None
    kernel: Kernel | str | None
    metric: Metric
    dense: bool  # every row takes part
    loss: Loss
    seed: int
    progress: bool

    def ridges(self, otherwise: Sequence[float]) -> tuple[float, ...]:
        """Those to try: the one that was given, or `otherwise`."""
        return tuple(otherwise) if self.ridge is None else (self.ridge,)


class Base(NamedTuple):
    """A kernel without its lengthscales: a map of the features, groups of its columns, and a profile."""

    profile: type[Kernel]
    transform: Transform
    groups: Tensor  # (E,)

    def kernel(self, lengthscales: Tensor) -> Kernel:
        """With one lengthscale for each group, or one for all."""
        scales = lengthscales if lengthscales.ndim == 0 else lengthscales[self.groups]
        return self.profile(scales, input_transform=self.transform)


def base(name: str, points: Tensor) -> Base:
    """The kernel of this name on its own map, fitted on the points.

    All but the Laplacian see each feature as it is and by its rank.
    """
    if name == "laplacian":
        staircase = Staircase()
        transform: Transform = Compose(Standardize(), staircase).fit(points)
        return Base(Gaussian, transform, staircase.groups())
    both = values_and_ranks().fit(points)
    return Base(PROFILES[name], both, torch.arange(2 * points.shape[1]))


def plain_base(name: str, points: Tensor) -> Base:
    """The kernel of this name on the features as they are."""
    return Base(PROFILES[name], Standardize().fit(points), torch.arange(points.shape[1]))
