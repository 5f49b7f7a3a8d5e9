"""A closer look at what a head makes of the test part: confusions, confident mistakes, and whether its indicator tells."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .classify import Classified, classify
from .heads import Head

GROUPS = 10


class Shown(NamedTuple):
    """A test example, and what was made of it."""

    row: int  # of the test part
    truth: str
    found: Classified


class Group(NamedTuple):
    """Test examples of similar error indicator."""

    indicator: float  # mean
    accuracy: float
    size: int


class Examination(NamedTuple):
    accuracy: float
    confusion: Tensor  # (C, C) counts: row the truth, column the prediction
    mistakes: list[Shown]  # most confident first
    doubtful: list[Shown]  # right, least confident first
    groups: list[Group]  # ascending indicator


@torch.no_grad()
def examine(head: Head, features: Tensor, labels: Tensor, *, num_shown: int = 12, explained: int = 6) -> Examination:
    """All test examples counted, and `num_shown` of them shown: right ones only where there are not as many mistakes.

    Shape:
        - features: `(Q, D)`; labels: `(Q,)`
    """
    probabilities = head.probabilities(features)
    confidence, predicted = probabilities.max(1)
    right = predicted == labels

    def shown(among: Tensor, count: int, *, surest: bool) -> list[Shown]:
        rows = among.nonzero().squeeze(1)
        rows = rows[confidence[rows].argsort(descending=surest, stable=True)][:count]
        found = classify(head, features[rows], explained=explained) if len(rows) else []
        return [Shown(row, head.classes[int(labels[row])], one) for row, one in zip(rows.tolist(), found, strict=True)]

    mistakes = shown(~right, num_shown, surest=True)
    return Examination(
        float(right.double().mean()),
        confusion_matrix(labels, predicted, len(head.classes)),
        mistakes,
        shown(right, num_shown - len(mistakes), surest=False),
        group_by_indicator(head.layer.power_function(features), right),
    )


def confusion_matrix(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """Counts `(C, C)`, rows the truth, columns the prediction.

    Example:
        >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
        tensor([[1, 1],
                [0, 1]])
    """
    return torch.bincount(labels * num_classes + predicted, minlength=num_classes**2).view(num_classes, num_classes)


def group_by_indicator(indicators: Tensor, right: Tensor, count: int = GROUPS) -> list[Group]:
    """Equal groups in the order of their indicator.

    Example:
        >>> group_by_indicator(torch.tensor([0.1, 0.9, 0.2, 0.8]), torch.tensor([True, False, True, True]), 2)[1].accuracy
        0.5
    """
    parts = [part for part in indicators.argsort(stable=True).tensor_split(count) if len(part)]
    return [Group(float(indicators[part].mean()), float(right[part].double().mean()), len(part)) for part in parts]
