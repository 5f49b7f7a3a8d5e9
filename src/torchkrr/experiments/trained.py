"""Readouts that are trained: a linear head, a multilayer perceptron, and logistic regression with a chosen penalty."""

from __future__ import annotations

import importlib
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import InputError, MissingExtraError
from ..transforms import Standardize
from .readouts import Fitted, Training
from .subsamples import held_out

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
UNSEARCHED = 1.0  # penalty where there is nothing to choose it by: the default of scikit-learn


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

        def scores(query: Tensor) -> Tensor:
            with torch.no_grad():
                found: Tensor = model(query)
            return found

        return Fitted(scores, 1.0, {"epochs": epochs})

    def _model(self, in_features: int, num_classes: int) -> nn.Module:
        if self.hidden is None:
            return nn.Linear(in_features, num_classes)
        return nn.Sequential(nn.Linear(in_features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, num_classes))


@dataclass(frozen=True)
class LogisticRegression:
    """Multinomial logistic regression on standardized features; its penalty is chosen on a part of the training rows.

    `penalties` are values of scikit-learn's C, the inverse of the strength. The part that chooses is put back for the fit.
    """

    penalties: tuple[float, ...] = PENALTIES
    validation_share: float = 0.2
    most_iterations: int = 500

    def fit(self, training: Training) -> Fitted:
        different = training.labels.unique()
        if len(different) < 2:
            raise InputError(
                f"Logistic regression needs labels of at least 2 classes, but all {len(training.labels)} given are of class "
                f"{int(different[0])}. Take a larger budget, or other readouts."
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

    def _best_penalty(self, features: np.ndarray[Any, Any], training: Training) -> float:
        fit, judge = held_out(training.labels, self.validation_share, training.seed)
        if len(training.labels[fit].unique()) < 2:  # a few rows, which say nothing about a penalty
            return UNSEARCHED
        trial = self._model(warm_start=True)
        losses = {}
        for inverse in sorted(self.penalties):  # each starts from the one before it, which is smoother
            trial.set_params(C=inverse).fit(features[fit.numpy()], training.labels[fit].numpy())
            found = torch.from_numpy(_logits(trial, features[judge.numpy()], training.num_classes))
            losses[inverse] = float(cross_entropy(found.double(), training.labels[judge]))
        return min(losses, key=lambda inverse: losses[inverse])

    def _model(self, **choices: Any) -> Any:
        return _sklearn("linear_model").LogisticRegression(max_iter=self.most_iterations, **choices)


def _logits(model: Any, features: np.ndarray[Any, Any], num_classes: int) -> np.ndarray[Any, Any]:
    """Logarithms of probabilities `(Q, C)`, also for classes that were not among the training rows."""
    found = np.full((len(features), num_classes), -1e9, dtype=features.dtype)
    with np.errstate(divide="ignore"):  # a probability may round to zero
        found[:, model.classes_] = model.predict_log_proba(features)
    return np.maximum(found, -1e9)


def _sklearn(part: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError:
        raise MissingExtraError(
            'Logistic regression needs scikit-learn, which is not installed: pip install "torchkrr[sklearn]".'
        ) from None
