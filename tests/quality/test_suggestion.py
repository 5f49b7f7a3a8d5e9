"""What to label next: the rows with the largest gain, by the formula, and errors that say what came."""

import itertools

import numpy as np
import pytest
import torch

from torchkrr import kernels, suggest
from torchkrr.errors import InputError, NotFittedError
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.functional import power_function, power_greedy
from torchkrr.quality import suggestions

RNG = np.random.default_rng(0)
KNOWN, ROWS = RNG.normal(size=(6, 3)), RNG.normal(size=(80, 3))
KERNEL = kernels.Exponential(1.5)


def reference(known, rows, count, ridge=1e-2):
    """The greedy choice by the formula, from inverse matrices."""
    points = torch.from_numpy(np.concatenate((known, rows)))
    gram = KERNEL(points, points)
    chosen, found = list(range(len(known))), []
    for _ in range(count):
        rest = gram - gram[:, chosen] @ torch.linalg.pinv(gram[chosen][:, chosen]) @ gram[chosen]
        gains = rest[len(known) :, len(known) :].square().mean(1) / (rest.diagonal()[len(known) :] + ridge)
        gains[found] = -1
        found.append(int(gains.argmax()))
        chosen.append(len(known) + found[-1])
    return found


def test_the_gain_is_what_a_label_tells_about_all_rows():
    assert suggest(KNOWN, ROWS, 12, kernel=KERNEL).tolist() == reference(KNOWN, ROWS, 12)


def test_without_density_the_farthest_by_the_power_function_comes_next():
    first = suggest(KNOWN, ROWS, 1, kernel=KERNEL, density=False)[0]
    power = power_function(torch.from_numpy(ROWS), torch.from_numpy(KNOWN), kernel=KERNEL, ridge=0.0)
    assert first == int(power.argmax())
    start = suggest(None, ROWS, 10, kernel=KERNEL, density=False)
    assert start.tolist() == power_greedy(torch.from_numpy(ROWS).float(), 10, kernel=KERNEL, start=int(start[0])).tolist()


def test_batches_of_the_stream_are_one_long_suggestion_until_no_row_is_left():
    stream = suggestions(KNOWN, ROWS, kernel=KERNEL)
    batches = [list(itertools.islice(stream, 30)) for _ in range(4)]
    assert [len(batch) for batch in batches] == [30, 30, 20, 0]
    rows = list(itertools.chain(*batches))
    assert rows == suggest(KNOWN, ROWS, 100, kernel=KERNEL).tolist()
    assert sorted(rows) == list(range(80))


def test_copies_of_a_row_wait():
    rows = np.concatenate((ROWS[:5], ROWS[:5]))
    assert {int(row) % 5 for row in suggest(None, rows, 5, kernel=KERNEL)} == set(range(5))


def test_weights_prefer_rows():
    weights = np.where(np.arange(80) < 10, 1.0, 0.0)
    assert (suggest(KNOWN, ROWS, 10, weight=weights) < 10).all()


def test_an_estimator_gives_rows_metric_and_doubt():
    x = RNG.normal(size=(60, 2))
    model = LocalKernelRidgeClassifier().fit(x, x[:, 0] > 0)
    rows = np.stack((np.linspace(-2, 2, 41), np.zeros(41)), axis=1)
    doubted, others = (np.abs(rows[suggest(model, rows, 5, weight=weight), 0]).mean() for weight in ("uncertainty", None))
    assert doubted < others
    regressor = LocalKernelRidgeRegressor().fit(x, x[:, 0])
    assert len(suggest(regressor, rows, 3, weight="uncertainty")) == 3


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "options", "words"),
    [
        (KNOWN, ROWS[:, :2], {}, "features"),
        (KNOWN, ROWS, {"weight": "uncertainty"}, "Give a fitted one"),
        (KNOWN, ROWS, {"weight": np.ones(3)}, "for each of 80 rows"),
        (KNOWN, ROWS, {"weight": -np.ones(80)}, "at least 0"),
        (KNOWN, ROWS * np.inf, {}, "finite"),
        (KNOWN, ROWS, {"n": 0}, "n must be at least 1"),
    ],
)
def test_what_does_not_fit_is_named(labeled, unlabeled, options, words):
    with pytest.raises(InputError, match=words):
        suggest(labeled, unlabeled, options.pop("n", 3), **options)


def test_an_estimator_that_is_not_fitted_is_named():
    with pytest.raises(NotFittedError, match="Call fit first"):
        suggest(LocalKernelRidgeClassifier(), ROWS, 3)
