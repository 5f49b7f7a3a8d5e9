r"""Which labels are wrong, from predictions without each row and a model of the mistakes that people make.

**Classes.** The noise model is class-conditional: whoever labels takes class $i$ for class $j$ with a probability $T_{ij}$
that depends on nothing else. With $p_i(x)$ the probability of class $i$, a softmax of the leave-one-out scores of the row,
the label $j$ that was given is right with probability

$$ q = \frac{p_j(x)\,T_{jj}}{\sum_i p_i(x)\,T_{ij}} . $$

$T$ and the softmax have the largest likelihood of the labels as given (EM): a softmax fitted to noisy labels alone would
take the noise for doubt about the row.

**Numbers.** Right targets have residuals that follow, divided by their standard deviations, a Student's distribution around
zero, whose width and tails are fitted to the middle of them, where no gross error lies. $q$ is the share of such residuals
that are at least as large.

**Issues.** Of classes, the rows with the least $q$, as many as have a mean of $q$ of at most the false discovery rate. Of
numbers, and of outliers, the procedure of Benjamini and Hochberg. The rates hold as far as the noise model does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import t as student
from torch import Tensor

from ..estimators.encoding import Array
from ..tuning.calibration import ClassCalibration, calibrate_classes
from ..tuning.leave_one_out import shuffled_rows

ROUNDS, NEWTON_STEPS = 20, 3
FITTED_ROWS = 10_000
FIRST_RATE = 0.1  # of wrong labels, before any is known
LABELS_KNOWN = 20.0  # for how many labels the usual rate speaks, in each class
MIDDLE, OUTER = 0.5, 0.8  # quantiles of absolute residuals that a Student's distribution is fitted to
LEAST_FREEDOM, MOST_FREEDOM = 2.0, 200.0


class ClassNoise(NamedTuple):
    """How labels come about, and what the class of each row is then."""

    calibration: ClassCalibration  # from scores to the probabilities of the classes
    transition: Tensor  # (C, C): of class i to be labeled j
    posterior: Tensor  # (n, C): of each class, given scores and label

    def quality(self, given: Tensor) -> Array:
        """The probability that each label is right, `(n,)`."""
        return self.posterior.gather(1, given.unsqueeze(1)).squeeze(1).numpy()


@torch.no_grad()
def fit_class_noise(scores: Tensor, given: Tensor, weights: Tensor | None = None) -> ClassNoise:
    """The noise model under which the labels are most likely.

    Args:
        scores: of rows that they were not fitted to.
        given: the labels, numbers of the columns.
        weights: how many rows each counts as; `None` is one.

    Shape:
        - scores: `(n, C)`; given, weights: `(n,)`

    Example:
        >>> truth = torch.arange(3).repeat(300)
        >>> given = torch.where(torch.rand(900) < 0.2, (truth + 1) % 3, truth)  # one in five is wrong
        >>> noise = fit_class_noise(torch.eye(3)[truth] + 0.2 * torch.randn(900, 3), given)
        >>> noise.transition[0].round(decimals=1)
        tensor([0.8000, 0.2000, 0.0000], dtype=torch.float64)
    """
    scores, count = scores.double(), scores.shape[1]
    weights = torch.ones(len(scores), dtype=torch.float64) if weights is None else weights.double()
    some = shuffled_rows(len(scores), FITTED_ROWS, 0, scores.device)
    own, labels, counts = scores[some], given[some], weights[some]
    calibration = calibrate_classes(own, torch.eye(count, dtype=torch.float64)[labels], counts)
    usual = transition = _even(FIRST_RATE, count)
    for _ in range(ROUNDS if count > 1 else 0):
        posterior = _posterior(calibration, transition, own, labels)
        sums = torch.zeros_like(usual).index_add_(1, labels, (counts.unsqueeze(1) * posterior).T)
        # Each class begins with what is usual among all: few labels of a class say little about its mistakes.
        usual = _even(float(1 - sums.diagonal().sum() / sums.sum()), count)
        transition = LABELS_KNOWN * usual + sums
        transition = transition / transition.sum(1, keepdim=True)
        calibration = calibrate_classes(own, posterior, counts, start=calibration, steps=NEWTON_STEPS)
    return ClassNoise(calibration, transition, _posterior(calibration, transition, scores, given))


def _even(rate: float, count: int) -> Tensor:
    """Labels that are wrong at this rate, one wrong class as likely as another, `(C, C)`."""
    found = torch.full((count, count), rate / max(1, count - 1), dtype=torch.float64)
    return found.fill_diagonal_(1 - rate if count > 1 else 1.0)


def _posterior(calibration: ClassCalibration, transition: Tensor, scores: Tensor, given: Tensor) -> Tensor:
    # Without the doubt of the calibration: that any label may be wrong is what the transition says.
    joint = torch.softmax(calibration.logits(scores), dim=1) * transition[:, given].T
    return joint / joint.sum(1, keepdim=True)


def tail_shares(deviations: Array) -> Array:
    """How often a right target would be as far off, `(n,)`, from residuals over their standard deviations."""
    sizes = np.abs(deviations)
    middle, outer = np.quantile(sizes, (MIDDLE, OUTER))
    if middle <= 0:
        return np.where(sizes > 0, 0.0, 1.0)

    def excess(freedom: float) -> float:
        quantiles = student.ppf((1 + np.array((MIDDLE, OUTER))) / 2, freedom)
        return float(quantiles[1] / quantiles[0] - outer / middle)

    if excess(MOST_FREEDOM) > 0:  # lighter tails than those of a normal distribution
        freedom = MOST_FREEDOM
    elif excess(LEAST_FREEDOM) < 0:
        freedom = LEAST_FREEDOM
    else:
        freedom = float(brentq(excess, LEAST_FREEDOM, MOST_FREEDOM))
    width = middle / student.ppf((1 + MIDDLE) / 2, freedom)
    shares: Array = 2 * student.sf(sizes / width, freedom)
    return shares


def most_with_mean(quality: Array, rate: float) -> Array:
    """The rows of the least quality, as many as have a mean of at most `rate`, `(n,)` bool."""
    order = np.argsort(quality, kind="stable")
    means = np.cumsum(quality[order]) / np.arange(1, len(order) + 1)
    chosen = np.zeros(len(quality), dtype=bool)
    chosen[order[: int((means <= rate).sum())]] = True
    return chosen


def discoveries(shares: Array, rate: float) -> Array:
    """Benjamini and Hochberg: rows whose tail shares are small, with at most this rate of false ones, `(n,)` bool."""
    order = np.argsort(shares, kind="stable")
    allowed = shares[order] <= rate * np.arange(1, len(order) + 1) / max(1, len(order))
    chosen = np.zeros(len(shares), dtype=bool)
    if allowed.any():
        chosen[order[: int(np.flatnonzero(allowed)[-1]) + 1]] = True
    return chosen
