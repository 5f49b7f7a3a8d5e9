"""A prior and a kernel on what it leaves over: leave-one-out of the sum beside refits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import log_loss
from tests import reference
from tests.estimators.problems import reference_of, smooth_table, two_classes

from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor, selection

RNG = np.random.default_rng(0)
SOME = RNG.permutation(150)[:30]
TABLES = {
    "smooth": smooth_table(30),
    "diabetes": (load_diabetes().data[:36, 2:5], load_diabetes().target[:36]),
    "classes": tuple(part[SOME] for part in load_iris(return_X_y=True)),
}
WEIGHTS = {"equal": None, "weighted": RNG.uniform(0.7, 1.8, size=36)}


@pytest.fixture
def few_coarse_points(monkeypatch):
    monkeypatch.setattr(selection, "COARSE_POINTS", 5)
    monkeypatch.setattr(selection, "COARSE_RIDGES", (3.0,))


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("table", TABLES)
def test_leave_one_out_of_the_sum_is_that_of_refits(table, weights, prior):
    X, y = TABLES[table]
    kind = LocalKernelRidgeClassifier if table == "classes" else LocalKernelRidgeRegressor
    model = kind(prior=prior).fit(X, y, None if weights == "equal" else WEIGHTS[weights][: len(X)])
    predictor = model.predictor_
    if prior is not None:
        assert predictor.fitted_prior.hat(torch.arange(len(X))).leverages.max() < 0.499  # nothing is capped
    expected = reference.leave_out_of_sum(reference_of(model))
    found = predictor.leave_out()[0].mean.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert any(member.share > 0 for member in predictor.members)


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("table", TABLES)
def test_leave_group_out_of_the_sum_is_that_of_refits(table, weights, prior):
    X, y = TABLES[table]
    groups = np.arange(len(X))
    groups[:11] = [0, 1, 1, 0, 4, 5, 4, 7, 7, 7, 7]
    groups = np.random.default_rng(1).permutation(groups)
    kind = LocalKernelRidgeClassifier if table == "classes" else LocalKernelRidgeRegressor
    model = kind(prior=prior).fit(X, y, None if weights == "equal" else WEIGHTS[weights][: len(X)], groups=groups)
    expected = reference.leave_out_of_sum(reference_of(model, groups))
    np.testing.assert_allclose(model.predictor_.leave_out()[0].mean.numpy(), expected, atol=1e-8)


@pytest.mark.parametrize("prior", ["linear", "coarse", "auto"])
def test_a_prior_that_interpolates_does_not_seem_to_predict(prior):
    rng = np.random.default_rng(0)
    points, query = rng.normal(size=(60, 300)), rng.normal(size=(500, 300))
    model = LocalKernelRidgeClassifier(prior=prior).fit(points, points[:, 0] > 0)
    predicted, shares = model.leave_one_out()
    left_out, new = -(shares * np.log(predicted)).sum(1).mean(), log_loss(query[:, 0] > 0, model.predict_proba(query))
    assert left_out > 0.5
    assert new < 0.75  # that of even probabilities is 0.69
    target = rng.normal(size=60)
    regressor = LocalKernelRidgeRegressor(prior=prior).fit(points[:, :5], target)
    assert np.mean((regressor.leave_one_out()[0][:, 0] - target) ** 2) > 0.8 * target.var()


def thrice(table, jitter):
    """Every row three times, the copies a little apart, and the groups that they are."""
    noise = np.random.default_rng(2).normal(size=(3 * len(table[0]), table[0].shape[1]))
    return table[0].repeat(3, axis=0) + jitter * noise, table[1].repeat(3), np.arange(len(table[0])).repeat(3)


@pytest.mark.parametrize("prior", [None, "linear", "auto"])
@pytest.mark.parametrize("kind", [LocalKernelRidgeRegressor, LocalKernelRidgeClassifier])
def test_copies_in_a_group_are_judged_as_one(kind, prior):
    table = smooth_table(120, noise=0.3)
    table = table[0], table[1] if kind is LocalKernelRidgeRegressor else np.where(table[1] > 0.3, "high", "low")
    X, y, groups = thrice(table, jitter=1e-6)
    once, grouped, careless = (
        kind(prior=prior).fit(*table),
        kind(prior=prior).fit(X, y, groups=groups),
        kind(prior=prior).fit(X, y),
    )

    def score(model):
        predicted, target = model.leave_one_out()
        return np.mean((predicted - target) ** 2)

    assert score(grouped) == pytest.approx(score(once), rel=0.06)
    assert score(careless) < 0.1 * score(once)
    kernels = [[type(member.kernel) for member in model.predictor_.members] for model in (once, grouped)]
    assert kernels[0] == kernels[1]
    scales = [model.kernel_.lengthscale for model in (once, grouped)]
    torch.testing.assert_close(*scales, rtol=1e-2, atol=0.0)
    assert (once.predictor_.prior is None) == (grouped.predictor_.prior is None)
    exact = kind(prior=prior).fit(*thrice(table, jitter=0.0)[:2], groups=groups)
    assert score(exact) == pytest.approx(score(once), rel=1e-6)


def test_rows_of_one_group_are_no_repeated_observations():
    X, y = two_classes(80)
    # One point has both labels: the rows of others are repeated observations too, unless they are one thing.
    X, y, groups = (
        np.concatenate(pair) for pair in zip(thrice((X, y), 0.0), (X[:2] * 0, ["same", "other"], [-1, -1]), strict=True)
    )
    groups[-2:] = [80, 81]
    once = np.r_[np.arange(0, 240, 3), 240, 241]
    expected = LocalKernelRidgeClassifier(prior=None).fit(X[once], y[once])
    grouped = LocalKernelRidgeClassifier(prior=None).fit(X, y, groups=groups, sample_weight=np.r_[np.full(240, 1 / 3), 1, 1])
    np.testing.assert_allclose(grouped.predict_proba(X), expected.predict_proba(X), atol=1e-6)
    careless = LocalKernelRidgeClassifier(prior=None).fit(X, y)
    assert np.abs(careless.predict_proba(X) - expected.predict_proba(X)).max() > 0.02
