"""Readouts that are not trained: the local kernel ridge regressors, and weighted nearest neighbors."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..neighbors import ExactIndex
from ..nn import BlendedKernelRidge, HierarchicalKernelRidge, LocalKernelRidge
from ..nn.base import SupportLayer
from ..transforms import UnitNorm
from .readouts import Fitted, Training
from .selecting import EVERYTHING, Search, choose


class Plan(NamedTuple):
    """All that a local kernel ridge readout has decided before it sees where its training rows are."""

    arguments: dict[str, Any]  # of `LocalKernelRidge`
    chosen: dict[str, Any]  # in plain values
    temperature: float | None = None


class PlannedReadout(abc.ABC):
    """A readout that is one local kernel ridge layer; see `sharded` for training rows that are spread over ranks."""

    @abc.abstractmethod
    def plan(self, training: Training) -> Plan: ...

    def fit(self, training: Training) -> Fitted:
        plan = self.plan(training)
        layer = LocalKernelRidge(training.features, training.one_hot(), **plan.arguments)
        return _fitted(layer, plan.chosen, plan.temperature)


@dataclass(frozen=True)
class LocalReadout(PlannedReadout):
    """The paper's SK: local kernel ridge regression of one-hot labels with its kernel and normalizing map."""

    num_neighbors: int = 100
    ridge: float = 1e-9
    fade: bool = False

    def plan(self, training: Training) -> Plan:
        chosen = {"num_neighbors": min(self.num_neighbors, len(training.features))}
        return Plan({**chosen, "ridge": self.ridge, "fade": self.fade}, chosen)


@dataclass(frozen=True)
class HierarchicalReadout:
    """The paper's HAN-SK: a dense part on coarse points, and local parts that vanish at the borders of cells."""

    num_neighbors: int = 100
    num_coarse: int = 1000
    ridge: float = 1e-9

    def fit(self, training: Training) -> Fitted:
        count, coarse = (min(number, len(training.features)) for number in (self.num_neighbors, self.num_coarse))
        layer = HierarchicalKernelRidge(training.features, training.one_hot(), count, num_coarse=coarse, ridge=self.ridge)
        return _fitted(layer, {"num_neighbors": count, "num_coarse": coarse})


@dataclass(frozen=True)
class BlendedReadout:
    """Local regressors of the nearest training rows, blended by distance."""

    num_neighbors: int = 100
    num_blended: int = 8
    ridge: float = 1e-9

    def fit(self, training: Training) -> Fitted:
        count = min(self.num_neighbors, len(training.features))
        layer = BlendedKernelRidge(
            training.features, training.one_hot(), count, num_blended=self.num_blended, ridge=self.ridge
        )
        return _fitted(layer, {"num_neighbors": count})


@dataclass(frozen=True)
class SelectedReadout(PlannedReadout):
    """SK with everything chosen by leave-one-out: normalizing map, kernel, lengthscale, neighbors, ridge, temperature."""

    search: Search = EVERYTHING

    def plan(self, training: Training) -> Plan:
        choice = choose(training, self.search)
        return Plan(choice.selection.arguments, choice.plain(), choice.selection.temperature)


@dataclass(frozen=True)
class WeightedNeighbors:
    r"""Votes of the `num_neighbors` rows of largest cosine $s$, each with weight $e^{s/T}$: the protocol of DINO."""

    num_neighbors: int = 20
    temperature: float = 0.07

    def fit(self, training: Training) -> Fitted:
        unit = UnitNorm()
        count = min(self.num_neighbors, len(training.features))
        index = ExactIndex().build(unit(training.features))

        def scores(query: Tensor) -> Tensor:
            distances, indices = index.search(unit(query), count)
            cosines = 1 - distances.square() / 2
            votes = query.new_zeros(len(query), training.num_classes)
            return votes.scatter_add_(1, training.labels[indices], (cosines / self.temperature).exp().to(query.dtype))

        return Fitted(scores, None, {"num_neighbors": count})


def _fitted(layer: SupportLayer, chosen: dict[str, Any], temperature: float | None = None) -> Fitted:
    def scores(query: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = layer(query)
        return found

    scores(layer.centers[:1])  # embeds and indexes the centers, which belongs to the fit
    return Fitted(scores, temperature, chosen, layer)
