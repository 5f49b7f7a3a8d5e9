"""Classify features with a head: the class, its probability, the error indicator, and the training examples behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_at_least_one
from ..tuning.leave_one_out import leave_one_out_of, sample_rows
from .heads import Head

MOST_LEFT_OUT = 500  # training examples that indicators are compared with


class Because(NamedTuple):
    """A training example in a prediction: the score of a class is the sum of the weights of its examples."""

    center: int  # row of the head's centers
    item: str
    label: str
    weight: float


class Classified(NamedTuple):
    label: str
    probability: float
    indicator: float  # local error indicator: 0 at a training example, 1 far from all
    probabilities: Tensor  # (C,)
    because: tuple[Because, ...]  # largest weights first


@torch.no_grad()
def classify(head: Head, features: Tensor, *, explained: int = 5) -> list[Classified]:
    """Predictions of `features`, `(Q, D)`, each with the `explained` training examples of largest weight.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> layer = torchkrr.nn.LocalKernelRidge(x, torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), 2)
        >>> head = Head(layer, 0.1, ["low", "high"], ["a.png", "b.png", "c.png", "d.png"], None)
        >>> found = classify(head, torch.tensor([[0.2]]), explained=1)[0]
        >>> found.label, found.because[0].item
        ('low', 'a.png')
    """
    check_at_least_one("explained", explained)
    probabilities = head.probabilities(features)
    indicators = head.layer.power_function(features).tolist()
    indices, weights = head.layer.explain(features)
    order = weights.abs().argsort(dim=1, descending=True, stable=True)[:, :explained]
    labels = head.layer.values.argmax(1)
    found = []
    for row, own in enumerate(probabilities):
        best = int(own.argmax())
        because = tuple(
            Because(center, head.items[center], head.classes[int(labels[center])], weight)
            for center, weight in zip(indices[row, order[row]].tolist(), weights[row, order[row]].tolist(), strict=True)
        )
        found.append(Classified(head.classes[best], float(own[best]), indicators[row], own, because))
    return found


@torch.no_grad()
def typicality(head: Head, found: Sequence[Classified], *, most: int = MOST_LEFT_OUT) -> list[float]:
    """For each classification the share of the training examples, predicted from the others, with as large an indicator.

    Of many training examples a sample of `most` is looked at.
    """
    rows = sample_rows(head.layer.num_centers, most, 0, head.layer.centers.device)
    usual = leave_one_out_of(head.layer, rows).powers
    return [float((usual >= one.indicator).double().mean()) for one in found]
