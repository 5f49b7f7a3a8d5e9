"""What a fitted estimator predicts for training rows without them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .classifier import LocalKernelRidgeClassifier
from .columns import Array
from .members import mixed
from .threads import threads


class LeftOut(NamedTuple):
    """Of at most 2000 different rows; those that agree in every feature are one, with their mean, and left out together."""

    predictions: Array  # (n, C) in the units of y; of a classifier, probabilities
    values: Array  # (n, C) targets; of a classifier, the share of each class


@torch.no_grad()
def left_out(estimator: Any) -> LeftOut | None:
    """Leave-one-out of a fitted estimator, with what it chose; `None` below three different rows."""
    predictor = estimator._predictor
    solved, centers = predictor.solved(), predictor.different()
    if len(centers.points) < 3:
        return None
    which = predictor.sampled()
    with threads(estimator.n_jobs):
        means = mixed(predictor.members, [one.left_out(which) for one in solved]).mean.double()
    values = centers.values[which]
    if isinstance(estimator, LocalKernelRidgeClassifier):
        return LeftOut(torch.softmax(means / estimator.temperature_, dim=1).numpy(), values.numpy())
    return LeftOut(*((part * predictor.unit + predictor.offset).numpy() for part in (means, values)))
