"""Readouts: classifiers on frozen features, by name.

A readout gives each class a score. It is a frozen dataclass whose fields are its settings, with the paper's values as
defaults. `fit` sees the training part alone; whatever is selected, is selected there.
"""

from __future__ import annotations

import contextlib
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
from .._threads import threads
from ..errors import InputError
from ..neighbors import ExactIndex
from ..nn import BlendedKernelRidge, HierarchicalKernelRidge, LocalKernelRidge
from ..nn.base import SupportLayer
from ..transforms import Standardize, UnitNorm
from .images import Array
from .sampling import held_out

SMALL_STEP = 1 << 26  # multiplications of a training step that one thread does as fast as several
STEPS_BETWEEN_LOOKS = 10  # at the validation rows, at least
LEAST_PROBABILITY = 1e-12  # as a score


class Training(NamedTuple):
    """The training part of a readout."""

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,) int64
    num_classes: int
    seed: int
    classes: Sequence[str] | None = None  # their names; None: numbers
    ids: Sequence[str] | None = None  # what each row was made from, such as the file of an image

    def one_hot(self) -> Tensor:
        """`(N, C)` in the dtype of the features."""
        return one_hot(self.labels, self.num_classes).to(self.features.dtype)


class Fitted(NamedTuple):
    """A fitted readout."""

    scores: Callable[[Tensor], Tensor]  # (Q, D) to (Q, C); the largest is the prediction
    temperature: float | None  # probabilities are softmax(scores / temperature); None where the scores have none
    chosen: dict[str, Any]  # what the fit decided, in plain values
    indicator: Callable[[Tensor], Tensor] | None = None  # (Q, D) to the local error indicator (Q,), of those that have one
    estimator: Any = None  # of the head


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
class NeighborReadout:
    """What readouts with neighbors have in common."""

    num_neighbors: int = 100
    ridge: float = 1e-9

    def count(self, training: Training) -> int:
        return min(self.num_neighbors, len(training.features))


@dataclass(frozen=True)
class LocalReadout(NeighborReadout):
    """The paper's SK: local kernel ridge regression of one-hot labels with its kernel and normalizing map."""

    fade: bool = False

    def fit(self, training: Training) -> Fitted:
        count = self.count(training)
        layer = LocalKernelRidge(training.features, training.one_hot(), count, ridge=self.ridge, fade=self.fade)
        return _fitted(layer, {"num_neighbors": count})


@dataclass(frozen=True)
class HierarchicalReadout(NeighborReadout):
    """The paper's HAN-SK: a coarse part fitted to all training rows, and faded local corrections."""

    num_coarse: int = 1000

    def fit(self, training: Training) -> Fitted:
        count, coarse = self.count(training), min(self.num_coarse, len(training.features))
        layer = HierarchicalKernelRidge(training.features, training.one_hot(), count, num_coarse=coarse, ridge=self.ridge)
        return _fitted(layer, {"num_neighbors": count, "num_coarse": coarse})


@dataclass(frozen=True)
class BlendedReadout(NeighborReadout):
    """Local regressors of the nearest training rows, blended by distance."""

    num_blended: int = 8

    def fit(self, training: Training) -> Fitted:
        count, own = self.count(training), self.num_blended
        layer = BlendedKernelRidge(training.features, training.one_hot(), count, num_blended=own, ridge=self.ridge)
        return _fitted(layer, {"num_neighbors": count})


@dataclass(frozen=True)
class EstimatorReadout:
    """`torchkrr.estimators.LocalKernelRidgeClassifier` as it is, with everything chosen by leave-one-out."""

    def fit(self, training: Training) -> Fitted:
        from ..estimators import LocalKernelRidgeClassifier  # which needs scikit-learn

        names = np.arange(training.num_classes) if training.classes is None else np.array(training.classes)
        model = LocalKernelRidgeClassifier(random_state=training.seed)
        # Not fit: classes may be missing among the rows.
        model.partial_fit(training.features.numpy(), names[training.labels.numpy()], classes=names, ids=training.ids)
        return fitted_head(model, names)


def fitted_head(model: Any, classes: Sequence[Any] | Array) -> Fitted:
    """A fitted classifier as a readout whose scores are the logarithms of probabilities, in the order of `classes`."""
    predictor, order = model.predictor_, np.searchsorted(model.classes_, classes)
    members = [
        {
            "kernel": type(member.kernel).__name__,
            **{name: getattr(member, name) for name in ("ridge", "num_neighbors", "share")},
        }
        for member in predictor.members
    ]

    def scores(query: Tensor) -> Tensor:
        return torch.from_numpy(model.predict_proba(query.numpy())[:, order]).clamp_min(LEAST_PROBABILITY).log()

    def indicator(query: Tensor) -> Tensor:
        return torch.from_numpy(model.error_indicator(query.numpy()))

    prior = None if predictor.prior is None else predictor.prior.name
    chosen = {"prior": prior, "members": members, "temperature": model.calibration_.temperature}
    return Fitted(scores, 1.0, chosen, indicator, model)


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
    """A linear layer, or with `hidden` features D - hidden - ReLU - C, trained with AdamW on features of mean zero.

    One factor scales all features to a mean square of one: they share a unit, and rarely active ones stay small. The
    learning rate and the number of epochs are those of the least cross-entropy on a part of the training rows that is held
    out; a rate is given up after `patience` looks at that part without progress. Then the head is trained on all rows.
    """

    hidden: int | None = None
    learning_rates: tuple[float, ...] = (1e-3, 1e-2)
    batch_size: int = 512
    epochs: int = 50
    least_steps: int = 500  # small budgets have more epochs
    validation_share: float = 0.2
    patience: int = 5

    def fit(self, training: Training) -> Fitted:
        mean, variance = training.features.mean(0), training.features.var(0, correction=0).mean()
        scale = variance.clamp_min(torch.finfo(variance.dtype).tiny).rsqrt()
        rows = training._replace(features=(training.features - mean) * scale)
        small = self.batch_size * rows.features.shape[1] * (self.hidden or training.num_classes) < SMALL_STEP
        with threads(1) if small else contextlib.nullcontext():
            rate, epochs = self._choose(rows)
            model, _ = self._train(rows, rate, epochs)
        predict = torch.no_grad()(model.forward)
        return Fitted(lambda query: predict((query - mean) * scale), 1.0, {"learning_rate": rate, "epochs": epochs})

    def _choose(self, training: Training) -> tuple[float, int]:
        fit, validation = (
            training._replace(features=training.features[rows], labels=training.labels[rows])
            for rows in held_out(training.labels, self.validation_share, training.seed)
        )
        steps = math.ceil(len(fit.labels) / self.batch_size)
        most, each = max(self.epochs, math.ceil(self.least_steps / steps)), math.ceil(STEPS_BETWEEN_LOOKS / steps)
        if len(fit.labels.unique()) < 2:  # a few rows, which say nothing
            return self.learning_rates[0], most
        losses = {rate: self._train(fit, rate, most, validation, each)[1] for rate in self.learning_rates}
        best = min(losses, key=lambda rate: min(losses[rate]))
        return best, min(most, each * (1 + losses[best].index(min(losses[best]))))

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _train(
        self, training: Training, rate: float, epochs: int, validation: Training | None = None, each: int = 1
    ) -> tuple[nn.Module, list[float]]:
        """The model, and its losses on the validation rows every `each` epochs, until they no longer fall."""
        with torch.random.fork_rng(devices=[]):  # layers are initialized from the global generator
            torch.manual_seed(training.seed)
            model = self._model(training.features.shape[1], training.num_classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
        generator = torch.Generator().manual_seed(training.seed)
        losses: list[float] = []
        for epoch in range(1, epochs + 1):
            for rows in torch.randperm(len(training.labels), generator=generator).split(self.batch_size):
                loss = cross_entropy(model(training.features[rows]), training.labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if validation is not None and (epoch % each == 0 or epoch == epochs):
                with torch.no_grad():
                    losses.append(float(cross_entropy(model(validation.features), validation.labels)))
                if len(losses) - losses.index(min(losses)) > self.patience:
                    break
        return model, losses

    def _model(self, in_features: int, num_classes: int) -> nn.Module:
        hidden = [] if self.hidden is None else [nn.Linear(in_features, self.hidden), nn.ReLU()]
        last = nn.Linear(self.hidden or in_features, num_classes)
        # Where no row says anything, neither does the head.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(*hidden, last)


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


HEAD = "head"
READOUTS: dict[str, Entry] = {
    "linear": Entry("linear head", TrainedHead(), "one linear layer, trained; learning rate and epochs are chosen"),
    "mlp": Entry("MLP 512", TrainedHead(hidden=512), "two linear layers with 512 hidden units, trained as the other"),
    "sk": Entry(
        "SK", LocalReadout(), "local kernel ridge regression of the labels on the 100 nearest training examples, not trained"
    ),
    "han-sk": Entry(
        "HAN-SK",
        HierarchicalReadout(),
        "kernel ridge regression on up to 1,000 coarse examples with faded local corrections",
    ),
    "knn": Entry("weighted kNN", WeightedNeighbors(), "votes of the 20 nearest training examples"),
    HEAD: Entry(
        "torchkrr head",
        EstimatorReadout(),
        "the estimator LocalKernelRidgeClassifier: a prior, and kernels on what it leaves over, chosen by leave-one-out",
    ),
    "logistic": Entry("logistic regression", LogisticRegression(), "a linear classifier whose penalty is chosen"),
    "blended": Entry("SK, blended", BlendedReadout(), "SK made continuous by blending several local regressions"),
    "faded": Entry("SK, faded", LocalReadout(fade=True), "SK made continuous by letting the farthest neighbors fade"),
}
USUAL = ("linear", "mlp", "sk", "han-sk", "knn", HEAD)  # the others on request


def readout_named(name: str) -> Entry:
    if name not in READOUTS:
        raise InputError(f"There is no readout {name!r}. Choose from {', '.join(READOUTS)}.")
    return READOUTS[name]


def _fitted(layer: SupportLayer, chosen: dict[str, Any]) -> Fitted:
    scores = torch.no_grad()(layer.forward)
    scores(layer.centers[:1])  # embeds and indexes the centers, which belongs to the fit
    indicator = torch.no_grad()(layer.power_function) if isinstance(layer, LocalKernelRidge) else None
    return Fitted(scores, None, chosen, indicator)


def _logits(model: Any, features: Array, num_classes: int) -> Array:
    """Logarithms of probabilities `(Q, C)`, also for classes that were not among the training rows."""
    logits = np.full((len(features), num_classes), -1e9, dtype=features.dtype)
    with np.errstate(divide="ignore"):  # a probability may round to zero
        logits[:, model.classes_] = model.predict_log_proba(features)
    return logits.clip(-1e9)


def _sklearn(part: str) -> Any:
    return import_extra(f"sklearn.{part}", "Logistic regression", extra="sklearn")
