"""The noise model finds the rates of mistakes that were made, and its probabilities are probabilities."""

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from torchkrr.quality.noise import discoveries, fit_class_noise, most_wrong, tail_shares

COUNT, CLASSES = 6000, 4


def noisy(transition, blur=0.35, count=COUNT, seed=0):
    """Truth, labels drawn from the rows of the transition, and scores as of a regression on memberships."""
    generator = torch.Generator().manual_seed(seed)
    transition = torch.as_tensor(transition, dtype=torch.float64)
    truth = torch.randint(CLASSES, (count,), generator=generator)
    given = torch.multinomial(transition[truth], 1, generator=generator).squeeze(1)
    scores = transition[truth] + blur * torch.randn(count, CLASSES, generator=generator, dtype=torch.float64)
    return truth, given, scores


def uniform(rate):
    found = torch.full((CLASSES, CLASSES), rate / (CLASSES - 1), dtype=torch.float64)
    return found.fill_diagonal_(1 - rate)


def paired(rate):
    return (1 - rate) * torch.eye(CLASSES, dtype=torch.float64) + rate * torch.eye(CLASSES, dtype=torch.float64).roll(1, 1)


@pytest.mark.parametrize(
    "transition", [uniform(0.1), uniform(0.5), paired(0.2), torch.eye(CLASSES)], ids=["10", "50", "pairs", "0"]
)
def test_the_rates_of_mistakes_are_found(transition):
    _, given, scores = noisy(transition, blur=0.15)
    found = fit_class_noise(scores, given)
    torch.testing.assert_close(found.transition, transition.double(), rtol=0, atol=0.05)
    torch.testing.assert_close(found.posterior.sum(1), torch.ones(COUNT, dtype=torch.float64))


@pytest.mark.parametrize("transition", [uniform(0.2), paired(0.2)], ids=["uniform", "pairs"])
def test_qualities_are_the_probabilities_that_labels_are_right(transition):
    generator = torch.Generator().manual_seed(1)
    scores = 0.5 * torch.randn(20_000, CLASSES, generator=generator, dtype=torch.float64)
    truth = torch.multinomial(torch.softmax(scores / 0.2, dim=1), 1, generator=generator).squeeze(1)
    given = torch.multinomial(transition[truth], 1, generator=generator).squeeze(1)
    quality, right = fit_class_noise(scores, given).quality(given), (truth == given).numpy()
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        some = (quality >= low) & (quality <= high)
        assert abs(quality[some].mean() - right[some].mean()) < 0.1


def test_mistakes_between_two_classes_count_more_than_scores_alone_tell():
    truth, given, scores = noisy(paired(0.3), blur=0.25)
    noise = fit_class_noise(scores, given)
    wrong = (truth != given).numpy()
    alone = noise.calibration.probabilities(scores).gather(1, given.unsqueeze(1)).squeeze(1).numpy()

    def found(quality):  # of as many rows as labels are wrong
        return wrong[np.argsort(quality)[: wrong.sum()]].mean()

    assert found(noise.quality(given)) > found(alone) + 0.01


def test_weights_count_as_rows():
    _, given, scores = noisy(uniform(0.2), count=400)
    weights = torch.tensor([1.0, 3.0]).repeat(200)
    once = fit_class_noise(scores, given, weights)
    copies = weights.long()
    repeated = fit_class_noise(scores.repeat_interleave(copies, 0), given.repeat_interleave(copies))
    torch.testing.assert_close(once.transition, repeated.transition, rtol=1e-3, atol=1e-3)


def test_a_single_class_has_no_mistakes():
    found = fit_class_noise(torch.randn(5, 1), torch.zeros(5, dtype=torch.int64))
    assert found.quality(torch.zeros(5, dtype=torch.int64)).tolist() == [1.0] * 5


@pytest.mark.parametrize("freedom", [3.0, 8.0, 150.0])
def test_tail_shares_of_right_targets_are_uniform_and_gross_errors_do_not_hide(freedom):
    rng = np.random.default_rng(0)
    deviations = 2.5 * student.rvs(freedom, size=20_000, random_state=rng)
    deviations[:1000] += 400.0
    shares = tail_shares(deviations)
    assert (shares[:1000] < 1e-3).all()
    for level in (0.1, 0.5, 0.9):
        assert abs((shares[1000:] < level).mean() - level) < 0.05


def test_tail_shares_where_most_targets_agree_with_their_predictions():
    assert tail_shares(np.array([0.0, 0.0, 0.0, 0.0, 5.0])).tolist() == [1, 1, 1, 1, 0]


def test_discoveries_have_the_rate_asked_for():
    rng = np.random.default_rng(1)
    rates = []
    for _ in range(40):
        shares = np.concatenate((rng.uniform(size=900), rng.uniform(size=100) * 1e-4))
        found = discoveries(shares, 0.2)
        rates.append(found[:900].sum() / max(1, found.sum()))
        assert found[900:].all()
    assert 0.1 < np.mean(rates) < 0.22
    assert not discoveries(np.ones(10), 0.2).any()
    assert not discoveries(np.empty(0), 0.2).any()


def test_the_most_wrong_rows_have_the_best_expected_f1_within_the_rate():
    quality = np.array([0.9, 0.05, 0.99, 0.1, 0.3, 0.95])
    best = most_wrong(quality, 0.5)
    wrong = 1 - quality

    def expected(rows):
        return 2 * wrong[rows].sum() / (rows.sum() + wrong.sum())

    order = np.argsort(quality)
    assert expected(best) == max(expected(np.isin(np.arange(6), order[:count])) for count in range(1, 7))
    assert most_wrong(quality, 0.06).tolist() == [False, True, False, False, False, False]
    assert not most_wrong(quality, 0.01).any()
    assert not most_wrong(np.ones(4), 0.5).any()
    assert not most_wrong(np.empty(0), 0.5).any()
