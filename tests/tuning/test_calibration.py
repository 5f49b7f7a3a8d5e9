"""Temperature and biases beside a general optimizer of the same objective."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from torchkrr.tuning import calibration
from torchkrr.tuning.calibration import ClassCalibration, calibrate_classes, doubt_of, slope_losses, smoothed


def draw(count=150, classes=3, multilabel=False, noise=0.6, seed=0):
    rng = np.random.default_rng(seed)
    if multilabel:
        targets = (rng.uniform(size=(count, classes)) < 0.4).astype(float)
    else:
        targets = np.eye(classes)[rng.integers(classes, size=count)]
    scores = targets + noise * rng.normal(size=targets.shape) + np.linspace(0, 0.5, classes)
    return torch.tensor(scores), torch.tensor(targets), torch.tensor(rng.uniform(0.2, 3, size=count))


def objective(theta, scores, targets, weights, multilabel):
    """The penalized cross-entropy, written out."""
    doubt = 1 / (weights.sum() + 2)
    targets = (1 - doubt) * targets + doubt * (0.5 if multilabel else 1 / targets.shape[1])
    logits = theta[0] * scores + theta[1:]
    if multilabel:
        losses = (np.logaddexp(0, logits) - targets * logits).sum(1)
    else:
        losses = np.logaddexp.reduce(logits, axis=1) - (targets * logits).sum(1)
    return weights @ losses + 0.5 * calibration.BIAS_ROWS * (theta[1:] ** 2).sum()


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("case", ["three classes", "two classes", "weighted", "shares", "few rows"])
def test_temperature_and_biases_are_those_of_a_general_optimizer(case, multilabel):
    scores, targets, weights = draw(12 if case == "few rows" else 150, 2 if case == "two classes" else 3, multilabel)
    if case == "shares" and not multilabel:  # rows that stand for several, of different classes
        targets[:40] = torch.softmax(scores[:40], dim=1)
    weights = weights if case == "weighted" else torch.ones_like(weights)
    found = calibrate_classes(scores, targets, weights, multilabel=multilabel)
    given = scores.numpy(), targets.numpy(), weights.numpy(), multilabel
    expected = minimize(objective, np.append(1.0, np.zeros(scores.shape[1])), given, method="BFGS", options={"gtol": 1e-9})
    assert 1 / found.temperature == pytest.approx(expected.x[0], rel=1e-4)
    np.testing.assert_allclose(found.bias.numpy(), expected.x[1:], atol=1e-4)
    assert found.doubt == doubt_of(weights)
    probabilities = found.probabilities(scores)
    logits = expected.x[0] * scores + torch.tensor(expected.x[1:])
    plain = torch.sigmoid(logits) if multilabel else torch.softmax(logits, 1)
    torch.testing.assert_close(probabilities, smoothed(plain, found.doubt, multilabel), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("count", [2, 20, 2000])
def test_scores_without_an_error_leave_the_doubt_of_as_many_rows(count, multilabel):
    targets = torch.eye(2, dtype=torch.float64)[torch.arange(count) % 2]
    found = calibrate_classes(1e3 * targets, targets, multilabel=multilabel)
    assert 0 < found.temperature < float("inf")
    assert bool(found.bias.isfinite().all())
    # An error is taken to be as rare as one in all rows and two more, and no rarer.
    largest = 1 - found.probabilities(1e3 * targets).amax(1)
    assert float(largest.min()) >= 0.5 / (count + 2) - 1e-12
    assert float(largest.max()) < 3 / (count + 2)


@pytest.mark.parametrize("multilabel", [False, True])
def test_scores_that_say_nothing_give_the_frequencies(multilabel):
    targets = torch.eye(3, dtype=torch.float64)[(torch.arange(3000) % 10).clamp_max(2)]  # 1, 1 and 8 in ten
    scores = torch.randn(3000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probabilities = calibrate_classes(scores, targets, multilabel=multilabel).probabilities(scores)
    np.testing.assert_allclose(probabilities.mean(0), [0.1, 0.1, 0.8], atol=0.01)
    assert float(probabilities.std(0).max()) < 0.03


def test_the_unit_of_the_scores_does_not_matter():
    scores, targets, weights = draw()
    one, other = (calibrate_classes(factor * scores, targets, weights) for factor in (1.0, 10.0))
    torch.testing.assert_close(other.probabilities(10 * scores), one.probabilities(scores), rtol=1e-4, atol=1e-6)
    assert other.temperature == pytest.approx(10 * one.temperature, rel=1e-4)


def test_nothing_is_learned_from_one_class_or_from_no_weight():
    scores = torch.randn(5, 1)
    alone = calibrate_classes(scores, torch.ones(5, 1))
    assert (alone.probabilities(scores) == 1).all()
    unknown = calibrate_classes(torch.randn(5, 3), torch.eye(3)[[0, 1, 2, 0, 1]], torch.zeros(5))
    assert unknown.temperature == 1.0
    assert unknown.bias.tolist() == [0.0] * 3


def test_doubt_is_the_least_probability_of_every_class():
    calibration = ClassCalibration(1e-3, torch.zeros(4, dtype=torch.float64), doubt=0.02)
    found = calibration.probabilities(torch.eye(4))
    torch.testing.assert_close(found, 0.98 * torch.eye(4, dtype=torch.float64) + 0.005)
    several = calibration._replace(multilabel=True).probabilities(torch.eye(4) - 0.5)
    torch.testing.assert_close(several, 0.98 * torch.eye(4, dtype=torch.float64) + 0.01)


@pytest.mark.parametrize("multilabel", [False, True])
def test_losses_of_many_scores_are_those_of_each(multilabel):
    scores, targets, weights = draw(40, 3, multilabel)
    many, slopes = torch.stack((scores, 2 * scores, -scores), dim=1), torch.tensor([0.5, 4.0], dtype=torch.float64)
    found = slope_losses(many, targets, weights, slopes, multilabel=multilabel)
    for at in range(3):
        for step, slope in enumerate(slopes):
            logits = slope * many[:, at]
            function = torch.nn.functional
            if multilabel:
                losses = function.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
            else:
                losses = function.cross_entropy(logits, targets, reduction="none")
            assert float(found[at, step]) == pytest.approx(float((weights * losses).sum() / weights.sum()))
