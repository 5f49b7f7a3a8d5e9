"""Readouts that are not trained: local kernel ridge regressors and weighted nearest neighbors; and all readouts by name."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed import ShardedLocalKernelRidge
from ..distributed.launch import AllRanks
from ..errors import InputError
from ..neighbors import ExactIndex
from ..nn import BlendedKernelRidge, HierarchicalKernelRidge, LocalKernelRidge
from ..nn.base import SupportLayer
from ..transforms import UnitNorm
from .baselines import Fitted, LogisticRegression, Quality, Readout, TrainedHead, Training, quality
from .selection import DEFAULT_SEARCH, Search, choose

__all__ = [
    "READOUTS",
    "BlendedReadout",
    "Entry",
    "Fitted",
    "HierarchicalReadout",
    "LayerReadout",
    "LocalReadout",
    "Plan",
    "Quality",
    "Readout",
    "SelectedReadout",
    "Training",
    "WeightedNeighbors",
    "default_head",
    "fit_sharded",
    "head_named",
    "quality",
    "readout_named",
    "unshard",
]


class Plan(NamedTuple):
    """The settings of a local kernel ridge layer, wherever its training rows are."""

    arguments: dict[str, Any]  # of `LocalKernelRidge`
    chosen: dict[str, Any]  # in plain values
    temperature: float | None = None


class LayerReadout(abc.ABC):
    """A readout that is one local kernel ridge layer; `fit_sharded` fits it to training rows that are spread over ranks."""

    @abc.abstractmethod
    def plan(self, training: Training) -> Plan: ...

    def fit(self, training: Training) -> Fitted:
        plan = self.plan(training)
        layer = LocalKernelRidge(training.features, training.one_hot(), **plan.arguments)
        return _fitted(layer, plan.chosen, plan.temperature)


@dataclass(frozen=True)
class LocalReadout(LayerReadout):
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
class SelectedReadout(LayerReadout):
    """SK with everything selected by leave-one-out: normalizing map, kernel, lengthscale, neighbors, ridge, temperature."""

    search: Search = DEFAULT_SEARCH

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


class Entry(NamedTuple):
    """A readout in the table of all."""

    title: str  # for tables and figures
    readout: Readout
    text: str  # an explanation for reports


SELECTED = "sk-select"
READOUTS: dict[str, Entry] = {
    "linear": Entry("linear head", TrainedHead(), "one linear layer, trained"),
    "mlp": Entry("MLP 512", TrainedHead(hidden=512), "two linear layers with 512 hidden units, trained"),
    "sk": Entry(
        "SK", LocalReadout(), "local kernel ridge regression of the labels on the 100 nearest training examples, not trained"
    ),
    "han-sk": Entry(
        "HAN-SK", HierarchicalReadout(), "kernel ridge regression on up to 1,000 coarse examples with local corrections"
    ),
    SELECTED: Entry(
        "SK, selected", SelectedReadout(), "SK with its settings chosen by leave-one-out, a search that is most of its time"
    ),
    "knn": Entry("weighted kNN", WeightedNeighbors(), "votes of the 20 nearest training examples"),
    "logistic": Entry("logistic regression", LogisticRegression(), "a linear classifier whose penalty is chosen"),
    "blended": Entry("SK, blended", BlendedReadout(), "SK made continuous by blending several local regressions"),
    "faded": Entry("SK, faded", LocalReadout(fade=True), "SK made continuous by letting the farthest neighbors fade"),
}


def readout_named(name: str) -> Entry:
    if name not in READOUTS:
        raise InputError(f"There is no readout {name!r}. Choose from {', '.join(READOUTS)}.")
    return READOUTS[name]


def head_named(name: str) -> Entry:
    """A readout that can be written as a head: one local kernel ridge layer."""
    entry = readout_named(name)
    if not isinstance(entry.readout, LayerReadout):
        able = [known for known, other in READOUTS.items() if isinstance(other.readout, LayerReadout)]
        raise InputError(f"The readout {name!r} cannot be written as a head. Choose from {', '.join(able)}.")
    return entry


def default_head(readouts: Sequence[str]) -> str:
    """The readout to write among those of a run: the selected one, else the first that can be written, else SK.

    Example:
        >>> default_head(["linear", "faded", "sk"]), default_head(["sk", "sk-select"]), default_head(["knn"])
        ('faded', 'sk-select', 'sk')
    """
    able = [name for name in readouts if isinstance(readout_named(name).readout, LayerReadout)]
    return SELECTED if SELECTED in able else next(iter(able), "sk")


@torch.no_grad()
def fit_sharded(plan: Plan, own: Training, team: AllRanks) -> Fitted:
    """`LayerReadout.fit` on all ranks of a team.

    Args:
        plan: the same on every rank.
        own: this rank's part of the training rows, in their order.

    Every rank calls `scores` with the same queries, predicts its part of them, and gets the scores of all.
    """
    layer = ShardedLocalKernelRidge(own.features, own.one_hot(), **plan.arguments, process_group=team.comm.group)

    @torch.no_grad()
    def scores(query: Tensor) -> Tensor:
        return team.joined(layer(query[team.own(len(query))]), len(query))

    layer(layer.centers[:1])  # embeds and indexes the centers, which belongs to the fit
    return Fitted(scores, plan.temperature, plan.chosen, layer)


def unshard(layer: LocalKernelRidge, training: Training) -> LocalKernelRidge:
    """The same layer in one process, with all training rows."""
    if not isinstance(layer, ShardedLocalKernelRidge):
        return layer
    return LocalKernelRidge(
        training.features,
        training.one_hot(),
        layer.num_neighbors,
        kernel=layer.kernel,
        ridge=layer.ridge,
        trend=layer.trend,
        fade=layer.fade,
    )


def _fitted(layer: SupportLayer, chosen: dict[str, Any], temperature: float | None = None) -> Fitted:
    def scores(query: Tensor) -> Tensor:
        with torch.no_grad():
            prediction: Tensor = layer(query)
        return prediction

    scores(layer.centers[:1])  # embeds and indexes the centers, which belongs to the fit
    return Fitted(scores, temperature, chosen, layer)
