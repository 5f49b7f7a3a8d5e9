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

**Issues.** Of classes, the rows with the least $q$: as many as have the largest expected F1, if the mean of $q$ among them,
the expected false discovery rate, is no larger than the rate asked for. Of numbers, and of outliers, the procedure of
Benjamini and Hochberg. The rates hold as far as the noise model does.
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

FIRST_ROUNDS, ROUNDS, NEWTON_STEPS = 6, 14, 3
SMALLEST = 1e-30
FITTED_ROWS = 10_000
FIRST_RATES = (0.05, 0.3, 0.6)  # of wrong labels, to start from
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
    first = calibrate_classes(own, torch.eye(count, dtype=torch.float64)[labels], counts)
    if count == 1:
        return ClassNoise(first, _even(0.0, 1), torch.ones(len(scores), 1, dtype=torch.float64))

    def climb(calibration: ClassCalibration, posterior: Tensor, rounds: int) -> tuple[float, ClassCalibration, Tensor]:
        """The mean log likelihood after some rounds, and what it is reached with."""
        for _ in range(rounds):
            sums = torch.zeros(count, count, dtype=torch.float64).index_add_(1, labels, (counts.unsqueeze(1) * posterior).T)
            # Each class begins with what is usual among all: few labels of a class say little about its mistakes.
            usual = _even(float(1 - sums.diagonal().sum() / sums.sum()), count)
            transition = LABELS_KNOWN * usual + sums
            transition = transition / transition.sum(1, keepdim=True)
            calibration = calibrate_classes(own, posterior, counts, start=calibration, steps=NEWTON_STEPS)
            posterior, likelihood = _posterior(calibration, transition, own, labels)
        return float((counts * likelihood.log()).sum() / counts.sum()), calibration, transition

    # From few wrong labels EM may never find that most are wrong, and the other way around.
    starts = []
    for rate in FIRST_RATES:
        even = _even(min(rate, 1 - 1.5 / count), count)
        clean = (first.probabilities(own) - even[0, 1]).clamp_min(SMALLEST) * even[:, labels].T
        starts.append(climb(first, clean / clean.sum(1, keepdim=True), FIRST_ROUNDS))
    _, calibration, transition = max(starts, key=lambda one: one[0])
    _, calibration, transition = climb(calibration, _posterior(calibration, transition, own, labels)[0], ROUNDS)
    return ClassNoise(calibration, transition, _posterior(calibration, transition, scores, given)[0])


def _even(rate: float, count: int) -> Tensor:
    """Labels that are wrong at this rate, one wrong class as likely as another, `(C, C)`."""
    found = torch.full((count, count), rate / max(1, count - 1), dtype=torch.float64)
    return found.fill_diagonal_(1 - rate if count > 1 else 1.0)


def _posterior(calibration: ClassCalibration, transition: Tensor, scores: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities `(n, C)` of the classes given scores and label, and the likelihood `(n,)` of the label."""
    # Without the doubt of the calibration: that any label may be wrong is what the transition says.
    joint = torch.softmax(calibration.logits(scores), dim=1) * transition[:, given].T
    likelihood = joint.sum(1).clamp_min(SMALLEST)
    return joint / likelihood.unsqueeze(1), likelihood


def tail_shares(deviations: Array, fitted_to: Array | None = None) -> Array:
    """How often a right target would be as far off, `(n,)`, from residuals over their standard deviations.

    The width and the tails come from the residuals `fitted_to`, which are all of them if `None`.
    """
    sizes, known = np.abs(deviations), np.abs(deviations if fitted_to is None else fitted_to)
    middle, outer = np.quantile(known, (MIDDLE, OUTER)) if len(known) else (0.0, 0.0)
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


def most_wrong(quality: Array, rate: float) -> Array:
    """The rows of the least quality, with the best expected F1 and a mean quality of at most `rate`, `(n,)` bool."""
    order = np.argsort(quality, kind="stable")
    wrong, counts = np.cumsum(1 - quality[order]), np.arange(1, len(order) + 1)
    balance = np.where(1 - wrong / counts <= rate, 2 * wrong / (counts + wrong[-1:]), 0.0)
    chosen = np.zeros(len(quality), dtype=bool)
    if balance.max(initial=0.0) > 0:
        chosen[order[: int(balance.argmax()) + 1]] = True
    return chosen


def discoveries(shares: Array, rate: float) -> Array:
    """Benjamini and Hochberg: rows whose tail shares are small, with at most this rate of false ones, `(n,)` bool."""
    order = np.argsort(shares, kind="stable")
    allowed = shares[order] <= rate * np.arange(1, len(order) + 1) / max(1, len(order))
    chosen = np.zeros(len(shares), dtype=bool)
    if allowed.any():
        chosen[order[: int(np.flatnonzero(allowed)[-1]) + 1]] = True
    return chosen
