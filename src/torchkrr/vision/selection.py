"""Select the settings of a local kernel ridge head by leave-one-out on the training rows.

Features of different backbones need different normalizing maps, so the map is selected as well. Each is applied once; all
kernels, lengthscales, ridges and numbers of neighbors are then tried on its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..kernels import Exponential, Gaussian, Kernel, Matern32
from ..nn import LocalKernelRidge
from ..transforms import Compose, MeanDistance, Standardize, StandardMean, Transform, UnitNorm
from ..tuning import Selection, select
from ..tuning.leave_one_out import leave_one_out_of, sample_rows
from ..tuning.scores import best_temperature

MAPS: dict[str, Callable[[], Transform]] = {
    "unit norm": lambda: Compose(UnitNorm(), MeanDistance()),
    "mean distance": MeanDistance,
    "standardize": lambda: Compose(Standardize(), MeanDistance()),
    "standard mean": StandardMean,
}
KERNELS: dict[str, Callable[[], Kernel]] = {"exponential": Exponential, "matern32": Matern32, "gaussian": Gaussian}


@dataclass(frozen=True)
class Search:
    """The candidates.

    Maps are compared with the first kernel, on `screen_rows` left-out rows and up to `screen_neighbors`; on the best
    `finalists` of them everything is tried, and judged by `rows` left-out rows.
    """

    maps: tuple[str, ...] = tuple(MAPS)
    kernels: tuple[str, ...] = tuple(KERNELS)
    lengthscales: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    ridges: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 0.3, 1.0)
    num_neighbors: tuple[int, ...] = (10, 20, 50, 100, 200, 300, 500)
    screen_lengthscales: tuple[float, ...] = (0.5, 1.0, 4.0)
    screen_ridges: tuple[float, ...] = (1e-3, 1e-1)
    screen_neighbors: int = 100
    screen_rows: int = 500
    rows: int = 2000
    finalists: int = 2  # a map may be better with more neighbors than the first round has

    def screening(self) -> Search:
        """The candidates of the first round."""
        few = tuple(count for count in self.num_neighbors if count <= self.screen_neighbors) or self.num_neighbors[:1]
        return replace(
            self,
            kernels=self.kernels[:1],
            lengthscales=self.screen_lengthscales,
            ridges=self.screen_ridges,
            num_neighbors=few,
            rows=self.screen_rows,
        )


DEFAULT_SEARCH = Search()
TEMPERATURE_ROWS = 1000


class Choice(NamedTuple):
    """The chosen map and the selection made on it; the map is part of the selection's kernel."""

    map: str
    selection: Selection
    screened: dict[str, float]  # the leave-one-out log-loss that each map reached in the first round

    def plain(self) -> dict[str, Any]:
        best = self.selection
        return {
            "map": self.map,
            "kernel": type(best.kernel).__name__,
            "lengthscale": float(best.kernel.lengthscale),
            "num_neighbors": best.num_neighbors,
            "ridge": best.ridge,
            "trend": best.trend,
            "temperature": best.temperature,
            "leave_one_out_log_loss": best.score,
            "screened": self.screened,
        }


@torch.no_grad()
def choose(features: Tensor, targets: Tensor, search: Search, *, seed: int) -> Choice:
    """Map, kernel, lengthscale, number of neighbors, ridge and temperature with the least leave-one-out log-loss.

    Shape:
        - features: `(N, D)`; targets: `(N, C)`, one-hot
    """
    for name in search.maps:
        if name not in MAPS:
            raise InputError(f"There is no normalizing map {name!r}. Choose from {', '.join(MAPS)}.")
    screened = {}
    if len(search.maps) > 1:
        first = search.screening()
        screened = {name: _select_on(name, features, targets, first, seed)[1].score for name in search.maps}
    finalists = sorted(search.maps, key=lambda name: screened.get(name, 0.0))[: search.finalists]
    tried = [(name, *_select_on(name, features, targets, search, seed)) for name in finalists]
    best, transform, selection = min(tried, key=lambda one: one[2].score)
    selection.kernel.input_transform = transform
    return Choice(best, selection, screened)


@torch.no_grad()
def left_out_temperature(layer: LocalKernelRidge) -> float:
    """The temperature of a layer with the least leave-one-out log-loss; its other settings are given."""
    left_out = leave_one_out_of(layer, sample_rows(layer.num_centers, TEMPERATURE_ROWS, 0, layer.centers.device))
    return float(best_temperature(left_out.means, layer.values[left_out.rows]))


def _select_on(name: str, features: Tensor, targets: Tensor, search: Search, seed: int) -> tuple[Transform, Selection]:
    """A fitted map, and the best settings on its output."""
    transform = MAPS[name]().fit(features)
    most = len(features) - 1
    return transform, select(
        fewer_features(transform(features)),
        targets,
        kernels=[KERNELS[kernel]() for kernel in search.kernels],
        lengthscales=search.lengthscales,
        ridges=search.ridges,
        num_neighbors=sorted({min(count, most) for count in search.num_neighbors}),
        trend=None,
        loss="cross_entropy",
        num_samples=search.rows,
        seed=seed,
    )


def fewer_features(x: Tensor) -> Tensor:
    """Points with the same distances in as few dimensions as there are points; a search compares them many hundred times.

    Example:
        >>> x = torch.randn(20, 500)
        >>> torch.allclose(torch.cdist(fewer_features(x), fewer_features(x)), torch.cdist(x, x), atol=1e-4)
        True
    """
    if len(x) >= x.shape[1]:
        return x
    # Of x^T = Q R the columns of R are the rows of x in the orthonormal basis Q of their span.
    columns: Tensor = torch.linalg.qr(x.double().T, mode="r").R
    return columns.T.to(x.dtype).contiguous()
