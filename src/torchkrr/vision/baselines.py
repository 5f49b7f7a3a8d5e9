"""What a readout is, and the trained baselines: a linear head, a multilayer perceptron, and logistic regression.

A readout gives each class a score from frozen features. It is a frozen dataclass whose fields are its settings, with the
paper's values as defaults. `fit` sees the training part alone; whatever is selected, is selected there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from .._extras import import_extra
from ..errors import InputError
from ..transforms import Standardize
from .images import Array
from .sampling import held_out

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
DEFAULT_PENALTY = 1.0  # where there is nothing to choose it by: that of scikit-learn


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

    penalties: tuple[float, ...] = PENALTIES
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
        if len(training.labels[fit].unique()) < 2:  # a few rows, which say nothing about a penalty
            return DEFAULT_PENALTY
        trial = self._model(warm_start=True)
        losses = {}
        for penalty in sorted(self.penalties):  # each starts from the one before it, which is smoother
            trial.set_params(C=penalty).fit(features[fit.numpy()], training.labels[fit].numpy())
            logits = torch.from_numpy(_logits(trial, features[validation.numpy()], training.num_classes))
            losses[penalty] = float(cross_entropy(logits.double(), training.labels[validation]))
        return min(losses, key=lambda penalty: losses[penalty])

    def _model(self, **options: Any) -> Any:
        return _sklearn("linear_model").LogisticRegression(max_iter=self.most_iterations, **options)


def _logits(model: Any, features: Array, num_classes: int) -> Array:
    """Logarithms of probabilities `(Q, C)`, also for classes that were not among the training rows."""
    logits = np.full((len(features), num_classes), -1e9, dtype=features.dtype)
    with np.errstate(divide="ignore"):  # a probability may round to zero
        logits[:, model.classes_] = model.predict_log_proba(features)
    return np.maximum(logits, -1e9)


def _sklearn(part: str) -> Any:
    return import_extra(f"sklearn.{part}", "Logistic regression", extra="sklearn")
