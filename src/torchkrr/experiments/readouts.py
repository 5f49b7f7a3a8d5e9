"""What a readout is: something fitted to frozen features and labels that gives each class a score.

A readout is a frozen dataclass whose fields are its settings, with the paper's values as defaults. `fit` sees the training
part alone; whatever is chosen, is chosen there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot


class Training(NamedTuple):
    """What a readout may see."""

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,) int64
    num_classes: int
    seed: int

    def one_hot(self) -> Tensor:
        """`(N, C)` in the dtype of the features."""
        return one_hot(self.labels, self.num_classes).to(self.features.dtype)


class Fitted(NamedTuple):
    """A readout that can predict."""

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
