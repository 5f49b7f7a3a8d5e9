"""Readouts: classifiers on frozen features, by name.

A readout gives each class a score. It is a frozen dataclass whose fields are its settings, with the paper's values as
defaults. `fit` sees the training part alone; whatever is selected, is selected there.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from .._extras import import_extra
from ..distributed import ShardedLocalKernelRidge
from ..distributed.launch import AllRanks
from ..errors import InputError
from ..neighbors import ExactIndex
from ..nn import BlendedKernelRidge, HierarchicalKernelRidge, LocalKernelRidge
from ..nn.base import SupportLayer
from ..transforms import Standardize, UnitNorm
from .images import Array
from .sampling import held_out
from .selection import DEFAULT_SEARCH, Search, choose


class Training(NamedTuple):
    """The training part of a readout."""

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,) int64
    num_classes: int
    seed: int

    def one_hot(self) -> Tensor:
        """`(N, C)` in the dtype of the features."""
        return one_hot(self.labels, self.num_classes).to(self.features.dtype)


class Fitted(NamedTuple):
    """A fitted readout."""

    scores: Callable[[Tensor], Tensor]  # (Q, D) to (Q, C); the largest is the prediction
    temperature: float | None  # probabilities are softmax(scores / temperature); None where the scores have none
    chosen: dict[str, Any]  # what the fit decided, in plain values
    layer: nn.Module | None = None  # of kernel readouts


class Readout(Protocol):
    """Fits itself to features and labels."""

    def fit(self, training: Training) -> Fitted: ...


class Quality(NamedTuple):
    """How well scores predict labels."""

    accuracy: float
    log_loss: float | None  # mean negative logarithm of the probability of the true class


def quality(scores: Tensor, labels: Tensor, temperature: float | None) -> Quality:
    """Accuracy, and log-loss where there are probabilities.

    Shape:
        - scores: `(Q, C)`; labels: `(Q,)`

    Example:
        >>> quality(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), None)
        Quality(accuracy=0.5, log_loss=None)
    """
    accuracy = float((scores.argmax(1) == labels).double().mean())
    if temperature is None:
        return Quality(accuracy, None)
    return Quality(accuracy, float(cross_entropy(scores.double() / temperature, labels)))


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
    """The paper's HAN-SK: a coarse part fitted to all training rows, and faded local corrections."""

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
        choice = choose(training.features, training.one_hot(), self.search, seed=training.seed)
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


@dataclass(frozen=True)
class TrainedHead:
    """A linear layer, or with `hidden` features D - hidden - ReLU - C, trained with AdamW on the cross-entropy.

    The paper's table has no epochs for this experiment: 50 as in its others, and at least so many steps that small budgets
    are trained to the end as well.
    """

    hidden: int | None = None
    learning_rate: float = 1e-3
    batch_size: int = 128
    epochs: int = 50
    least_steps: int = 2000

    def fit(self, training: Training) -> Fitted:
        count = len(training.features)
        epochs = max(self.epochs, math.ceil(self.least_steps / math.ceil(count / self.batch_size)))
        with torch.random.fork_rng(devices=[]):  # layers are initialized from the global generator
            torch.manual_seed(training.seed)
            model = self._model(training.features.shape[1], training.num_classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.learning_rate, fused=True)
        generator = torch.Generator().manual_seed(training.seed)
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(epochs):
                for rows in torch.randperm(count, generator=generator).split(self.batch_size):
                    loss = cross_entropy(model(training.features[rows]), training.labels[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return Fitted(torch.no_grad()(model.forward), 1.0, {"epochs": epochs})

    def _model(self, in_features: int, num_classes: int) -> nn.Module:
        if self.hidden is None:
            return nn.Linear(in_features, num_classes)
        return nn.Sequential(nn.Linear(in_features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, num_classes))


@dataclass(frozen=True)
class LogisticRegression:
    """Multinomial logistic regression on standardized features; its penalty is chosen on a part of the training rows.

    `penalties` are values of scikit-learn's C, the inverse of the strength. The final fit uses all rows.
    """

    penalties: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    validation_share: float = 0.2
    most_iterations: int = 500

    def fit(self, training: Training) -> Fitted:
        classes = training.labels.unique()
        if len(classes) < 2:
            raise InputError(
                f"Logistic regression needs labels of at least 2 classes, but all {len(training.labels)} given are of class "
                f"{int(classes[0])}. Take a larger budget, or other readouts."
            )
        standardize = Standardize().fit(training.features)
        features = standardize(training.features).numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)
            best = self._best_penalty(features, training)
            model = self._model(C=best).fit(features, training.labels.numpy())

        def scores(query: Tensor) -> Tensor:
            return torch.from_numpy(_logits(model, standardize(query).numpy(), training.num_classes))

        return Fitted(scores, 1.0, {"C": best, "iterations": int(max(model.n_iter_))})

    def _best_penalty(self, features: Array, training: Training) -> float:
        fit, validation = held_out(training.labels, self.validation_share, training.seed)
        if len(training.labels[fit].unique()) < 2:  # a few rows, which say nothing: scikit-learn's default
            return 1.0
        trial = self._model(warm_start=True)
        losses = {}
        for penalty in sorted(self.penalties):  # each starts from the one before it, which is smoother
            trial.set_params(C=penalty).fit(features[fit.numpy()], training.labels[fit].numpy())
            logits = torch.from_numpy(_logits(trial, features[validation.numpy()], training.num_classes))
            losses[penalty] = float(cross_entropy(logits.double(), training.labels[validation]))
        return min(losses, key=lambda penalty: losses[penalty])

    def _model(self, **options: Any) -> Any:
        return _sklearn("linear_model").LogisticRegression(max_iter=self.most_iterations, **options)


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
        "HAN-SK",
        HierarchicalReadout(),
        "kernel ridge regression on up to 1,000 coarse examples, faded local corrections",
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


def _logits(model: Any, features: Array, num_classes: int) -> Array:
    """Logarithms of probabilities `(Q, C)`, also for classes that were not among the training rows."""
    logits = np.full((len(features), num_classes), -1e9, dtype=features.dtype)
    with np.errstate(divide="ignore"):  # a probability may round to zero
        logits[:, model.classes_] = model.predict_log_proba(features)
    return logits.clip(-1e9)


def _sklearn(part: str) -> Any:
    return import_extra(f"sklearn.{part}", "Logistic regression", extra="sklearn")
