r"""From scores of classes to probabilities, by leave-one-out: a temperature, and a bias for each class.

Probabilities are $\operatorname{softmax}(f / T + b)$, or $\operatorname{sigmoid}(f / T + b)$ where a row may have several
labels. $1/T$ and $b$ have the least cross-entropy on scores of rows that the scores were not fitted to, drawn a little
towards no bias; the problem is convex, and Newton's method solves it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BIAS_ROWS = 5.0  # how many rows speak for a bias of zero, in each class
NEWTON_STEPS = 25
LEAST_SLOPE, MOST_SLOPE = 1e-2, 300.0  # 1 / T: scores of memberships are about one apart
SCREENED = torch.logspace(-0.7, 1.7, 13, dtype=torch.float64)  # slopes that candidates are compared at


class ClassCalibration(NamedTuple):
    """Turns scores into probabilities."""

    temperature: float
    bias: Tensor  # (C,)
    multilabel: bool = False
    doubt: float = 0.0  # how often, at the least, any row may be of any class

    def logits(self, scores: Tensor) -> Tensor:
        return scores.double() / self.temperature + self.bias

    def probabilities(self, scores: Tensor) -> Tensor:
        """`(Q, C)` to `(Q, C)`, float64; rows sum to one, unless a row may have several labels."""
        logits = self.logits(scores)
        found = torch.sigmoid(logits) if self.multilabel else torch.softmax(logits, dim=-1)
        return smoothed(found, self.doubt, self.multilabel)


def no_calibration(num_classes: int, multilabel: bool = False) -> ClassCalibration:
    """Scores that are logits already."""
    return ClassCalibration(1.0, torch.zeros(num_classes, dtype=torch.float64), multilabel)


@torch.no_grad()
def calibrate_classes(
    scores: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    multilabel: bool = False,
    start: ClassCalibration | None = None,
    steps: int = NEWTON_STEPS,
) -> ClassCalibration:
    """The temperature and the biases that suit left-out scores best.

    Rows without an error would ask for a temperature of zero, but they say no more than that errors are rarer than about
    one in their number: each row counts as one that is wrong with that probability, and no probability is lower.

    Args:
        scores: of rows that they were not fitted to.
        targets: memberships of the classes; with `multilabel` any number of ones in a row.
        weights: how many rows each counts as; `None` is one.
        start: where to start; `None` is the best of some temperatures, without biases.
        steps: of Newton's method, at most.

    Shape:
        - scores, targets: `(n, C)`; weights: `(n,)`

    Example:
        >>> labels = torch.arange(2).repeat(200)
        >>> scores = torch.eye(2)[labels] + 0.5 * torch.randn(400, 2)
        >>> calibration = calibrate_classes(scores, torch.eye(2)[labels])
        >>> bool((calibration.probabilities(scores).argmax(1) == labels).double().mean() > 0.8)
        True
    """
    scores, count = scores.double(), scores.shape[1]
    weights = torch.ones(len(scores), dtype=torch.float64) if weights is None else weights.double()
    if (count == 1 and not multilabel) or not bool(weights.sum() > 0):
        return no_calibration(count, multilabel)
    doubt = doubt_of(weights)
    targets = smoothed(targets.double(), doubt, multilabel)
    theta = torch.zeros(count + 1, dtype=torch.float64)
    if start is None:
        losses = slope_losses(scores.unsqueeze(1), targets, weights, SCREENED, multilabel=multilabel)[0]
        theta[0] = SCREENED[int(losses.argmin())]
    else:
        theta[0], theta[1:] = 1 / start.temperature, start.bias
    pull = torch.full_like(theta, BIAS_ROWS)
    pull[0] = 0.0

    def objective(theta: Tensor) -> Tensor:
        logits = theta[0] * scores + theta[1:]
        return (weights * surprise(logits, targets, multilabel)).sum() + 0.5 * (pull * theta.square()).sum()

    value = objective(theta)
    for _ in range(steps):
        logits = theta[0] * scores + theta[1:]
        p = torch.sigmoid(logits) if multilabel else torch.softmax(logits, dim=1)
        error = weights.unsqueeze(1) * (p - targets)
        gradient = torch.cat(((error * scores).sum().reshape(1), error.sum(0))) + pull * theta
        hessian = _hessian(p, scores, weights, multilabel) + torch.diag(pull + 1e-9 * weights.sum())
        step = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-4:
            moved = theta - size * step
            moved[0] = moved[0].clamp(LEAST_SLOPE, MOST_SLOPE)
            new = objective(moved)
            if bool(new <= value):
                break
            size *= 0.5
        else:
            break
        done = bool(value - new <= 1e-10 * value.abs())
        theta, value = moved, new
        if done:
            break
    return ClassCalibration(float(1 / theta[0]), theta[1:].clone(), multilabel, doubt)


def doubt_of(weights: Tensor) -> float:
    """One in as many rows as there are."""
    return float(1 / (weights.sum() + 2))


def smoothed(probabilities: Tensor, doubt: float, multilabel: bool) -> Tensor:
    """Probabilities drawn towards even ones by `doubt`."""
    return (1 - doubt) * probabilities + doubt * (0.5 if multilabel else 1 / probabilities.shape[1])


@torch.no_grad()
def slope_losses(scores: Tensor, targets: Tensor, weights: Tensor, slopes: Tensor, *, multilabel: bool = False) -> Tensor:
    """Mean cross-entropy of several sets of scores `(n, K, C)` at several values of 1 / T, without biases, `(K, S)`."""
    shares = (weights / weights.sum()).unsqueeze(1)
    targets = targets.unsqueeze(1)
    return torch.stack([(shares * surprise(slope * scores, targets, multilabel)).sum(0) for slope in slopes.to(scores)], 1)


def surprise(logits: Tensor, targets: Tensor, multilabel: bool) -> Tensor:
    """Cross-entropy of each row; of several labels the sum."""
    if multilabel:
        return (torch.nn.functional.softplus(logits) - targets * logits).sum(-1)
    return torch.logsumexp(logits, dim=-1) - (targets * logits).sum(-1)


def _hessian(p: Tensor, scores: Tensor, weights: Tensor, multilabel: bool) -> Tensor:
    """Second derivatives in 1 / T and the biases, `(C + 1, C + 1)`."""
    weighted = weights.unsqueeze(1) * p
    own = weighted * (1 - p) if multilabel else weighted
    diagonal = torch.diag(own.sum(0))
    cross = (own * scores).sum(0)
    corner = (own * scores.square()).sum()
    if not multilabel:
        mean = (p * scores).sum(1, keepdim=True)
        diagonal = diagonal - weighted.T @ p
        cross = cross - (weighted * mean).sum(0)
        corner = corner - (weights.unsqueeze(1) * mean.square()).sum()
    return torch.cat(
        (torch.cat((corner.reshape(1, 1), cross.unsqueeze(0)), 1), torch.cat((cross.unsqueeze(1), diagonal), 1))
    )
