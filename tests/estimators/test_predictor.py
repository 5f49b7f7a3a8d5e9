"""What a fitted estimator predicts with, also for few rows, few different rows, and nothing to learn."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from torchkrr import functional, kernels
from torchkrr.errors import RidgeRaisedWarning
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.estimators.encoding import Centers
from torchkrr.estimators.predictor import DenseMember, Member

RNG = np.random.default_rng(0)
THREE = np.array([[0.0, 1.0], [1.0, -1.0], [2.0, 0.5]])
COPIES = 1000
SOME = RNG.normal(size=(60, 2))
SMOOTH = np.sin(SOME[:, 0]) + 0.1 * RNG.normal(size=60)
# Rows, targets, and a row to ask about.
TABLES = {
    "one row": (THREE[:1], np.array([5.0])),
    "two rows": (THREE[:2], np.array([1.0, 3.0])),
    "three rows": (THREE, np.array([1.0, 3.0, 2.0])),
    "all rows equal": (np.zeros((50, 2)), RNG.normal(size=50)),
    "all rows and targets equal": (np.zeros((50, 2)), np.full(50, 2.0)),
    "all targets equal": (SOME, np.full(60, -3.0)),
    "a constant column": (np.c_[SOME, np.ones(60)], SMOOTH),
    "columns that are copies": (np.c_[SOME, SOME, SOME], SMOOTH),
    "only constant columns": (np.ones((60, 3)), SMOOTH),
}
REGRESSORS = {
    "auto": LocalKernelRidgeRegressor(),
    "dense": KernelRidgeRegressor(),
    "neighbors": LocalKernelRidgeRegressor(2),
    "given": KernelRidgeRegressor(1e-6, kernel="gaussian", metric=None),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", REGRESSORS)
def test_every_number_is_finite(name, table):
    X, y = TABLES[table]
    model = clone(REGRESSORS[name]).fit(X, y)
    query = np.concatenate((X[:3], X[:1] + 1))
    mean, std = model.predict(query, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    for coverage in (0.5, 0.9, 0.999):
        lower, upper = model.predict_interval(query, coverage)
        assert np.isfinite(lower).all()
        assert np.isfinite(upper).all()
        assert (lower <= mean).all()
        assert (mean <= upper).all()


WIDE = RNG.normal(size=(40, 300))
PRIOR_TABLES = {
    **TABLES,
    "ten rows of a hundred columns": (WIDE[:10, :100], WIDE[:10, 0]),
    "eleven rows of a hundred columns": (WIDE[:11, :100], WIDE[:11, 0]),
    "more columns than rows": (np.c_[WIDE, np.ones((40, 5))], WIDE[:, 0]),
    "copies that disagree": (np.repeat(SOME[:20], 3, axis=0), RNG.normal(size=60)),
    "missing values": (
        np.where(np.eye(60)[:, :4] + np.eye(60)[:, 56:] > 0, np.nan, np.c_[SOME, SOME**2]),
        SMOOTH,
    ),
    "one row far away": (np.r_[SOME, [[1e6, -1e6]]], np.r_[SMOOTH, 0.0]),
    "columns of zeros and ones": ((SOME > 0).astype(float), SMOOTH),
    "large numbers": (SOME * 1e12 + 1e13, SMOOTH * 1e9),
}


@pytest.mark.parametrize("table", PRIOR_TABLES)
@pytest.mark.parametrize("prior", ["linear", "coarse", "auto"])
def test_every_number_is_finite_with_a_prior_too(prior, table):
    X, y = PRIOR_TABLES[table]
    query = np.concatenate((X[:3], X[:1] + 1))
    given = {"prior": prior, "kernel": "matern32", "metric": None}
    labels = np.where(y > np.median(y), "a", "b")
    for model, target in (
        (LocalKernelRidgeRegressor(**given), y),
        (LocalKernelRidgeClassifier(**given), labels),
        (LocalKernelRidgeClassifier(5, **given), labels),
    ):
        model.fit(X, target)
        if target is y:
            mean, std = model.predict(query, return_std=True)
            found = [mean, std, *model.predict_interval(query)]
            assert np.abs(mean[: len(query) - 1] - y.mean()).max() <= 3 * np.ptp(y) + 1e-9 * np.abs(y).max()
        else:
            found = [model.predict_proba(query)]
            np.testing.assert_allclose(found[0].sum(1), 1)
            assert model.predict_set(query, 0.9).shape == found[0].shape
        left_out = model.leave_one_out()
        found += [model.explain(query).weights, model.typicality(query), model.error_indicator(query)]
        assert all(np.isfinite(part).all() for part in (*found, *(left_out or ())))
        if len(X) > 2:
            again = model.forget([0]).partial_fit(X[:1], target[:1])
            np.testing.assert_allclose(again.explain(query).weights, found[-3], rtol=0, atol=1e-8)


@pytest.mark.parametrize("noise", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("signal", [(0.0, 1.0, 2.0), (0.0, 3.0, 0.0), (0.0, 0.0, 0.0)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", REGRESSORS)
def test_deviations_of_repeated_rows_are_those_of_their_targets(name, count, signal, noise):
    rng = np.random.default_rng(1)
    X, means = np.repeat(THREE[:count], COPIES, axis=0), np.repeat(np.array(signal)[:count], COPIES)
    model = clone(REGRESSORS[name]).fit(X, means + noise * rng.normal(size=len(X)))
    mean, std = model.predict(THREE[:count], return_std=True)
    assert np.abs(mean - signal[:count]).max() < 0.2 * noise
    assert (std > 0.7 * noise).all()
    assert (std < 1.5 * noise).all()
    new = means + noise * rng.normal(size=len(X))
    for coverage in (0.5, 0.9, 0.99):
        lower, upper = model.predict_interval(X, coverage)
        assert abs(((lower <= new) & (new <= upper)).mean() - coverage) < 0.06


def test_noise_that_differs_between_repeated_rows_is_told_apart():
    rng = np.random.default_rng(0)
    points = np.linspace(0, 1, 200)[:, None]
    noise = np.where(points[:, 0] < 0.5, 0.1, 1.0)
    X = np.repeat(points, 20, axis=0)
    y = np.sin(3 * X[:, 0]) + np.repeat(noise, 20) * rng.normal(size=len(X))
    _, std = LocalKernelRidgeRegressor().fit(X, y).predict([[0.2], [0.8]], return_std=True)
    np.testing.assert_allclose(std, [0.1, 1.0], rtol=0.4)  # drawn towards that of all rows


def test_a_weight_is_a_number_of_copies_in_deviations_too():
    rng = np.random.default_rng(0)
    X, y, weights = THREE[rng.integers(0, 3, size=40)], rng.normal(size=40), rng.integers(1, 4, size=40)
    model = KernelRidgeRegressor(0.1, kernel="gaussian", metric=None)
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(X.repeat(weights, axis=0), y.repeat(weights))
    for one, other in zip(weighted.predict(THREE, return_std=True), repeated.predict(THREE, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    for one, other in zip(weighted.predict_interval(THREE), repeated.predict_interval(THREE), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize(
    "shares",
    [(1.0, 0.0, 1.0), (0.9, 0.5, 0.2), (0.1, 0.1, 0.1), (0.5, 0.5, 0.5), (1.0, 0.5, 0.0), (0.9, 0.2), (0.3,)],
    ids=str,
)
@pytest.mark.parametrize("name", ["auto", "neighbors"])
def test_probabilities_of_repeated_rows_are_the_shares_of_their_labels(name, shares):
    X = np.repeat(THREE[: len(shares)], COPIES, axis=0)
    y = np.concatenate([np.arange(COPIES) < share * COPIES for share in shares])
    model = LocalKernelRidgeClassifier("auto" if name == "auto" else 2).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(THREE[: len(shares)])[:, 1], shares, atol=0.05)


CLASSES = {
    "one row": (THREE[:1], ["a"]),
    "two rows": (THREE[:2], ["a", "b"]),
    "three rows": (THREE, ["a", "b", "c"]),
    "one class": (SOME, ["a"] * 60),
    "a class with one row": (SOME, ["a"] * 59 + ["b"]),
    "all rows equal": (np.zeros((50, 2)), ["a"] * 40 + ["b"] * 10),
    "columns that are copies": (np.c_[SOME, SOME, np.ones(60)], np.where(SOME[:, 0] > 0, "a", "b")),
}


@pytest.mark.parametrize("table", CLASSES)
@pytest.mark.parametrize("name", ["auto", "neighbors"])
def test_probabilities_are_never_strange(name, table):
    X, y = CLASSES[table]
    model = LocalKernelRidgeClassifier("auto" if name == "auto" else 2).fit(X, y)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (probabilities >= 0).all()
    if table != "a class with one row":
        assert model.score(X, y) >= max(np.mean(np.asarray(y) == label) for label in set(y))


def test_a_given_alpha_that_float64_cannot_resolve_is_raised_with_a_warning():
    # As by `functional`: neither silent, nor solved with a ridge that nobody asked for.
    X, y = np.linspace(0, 2, 15)[:, None], np.random.default_rng(0).normal(size=15)
    model = KernelRidgeRegressor(3e-15, kernel=kernels.Gaussian(1.0), metric=None)
    with pytest.warns(RidgeRaisedWarning, match=r"at most 2\.2e-12"):
        found = model.fit(X, y).predict(X + 0.01)
    points, values, raised = torch.as_tensor(X), torch.as_tensor(y)[:, None], torch.finfo(torch.float64).eps * 1e4
    choices = {"kernel": kernels.Gaussian(1.0), "ridge": raised, "trend": "constant"}
    expected = functional.kernel_ridge(points + 0.01, points, values, **choices)
    np.testing.assert_allclose(found, expected[:, 0].numpy(), atol=1e-3)


@pytest.mark.parametrize("last", [torch.arange(30), torch.tensor([4, 0, 17])], ids=["all", "some"])
def test_fitted_members_agree_with_the_dense_functions(last):
    generator = torch.Generator().manual_seed(0)
    points, values = (torch.randn(30, k, generator=generator, dtype=torch.float64) for k in (6, 2))
    weights, rows = 0.5 + torch.rand(30, generator=generator, dtype=torch.float64), torch.arange(30)
    centers = Centers(points, values, weights, rows, 0 * values, 0 * weights)
    fitted = DenseMember(Member(kernels.Matern52(2.0), 0.05, None, 1.0), centers, last)
    query = torch.randn(7, 6, dtype=torch.float64)
    choices = {"kernel": kernels.Matern52(2.0), "ridge": 0.05 / weights, "trend": "constant"}
    found = fitted.predict(query)
    torch.testing.assert_close(found.mean, functional.kernel_ridge(query, points, values, **choices))
    torch.testing.assert_close(found.mean, fitted.mean(query))
    power = functional.power_function(query, points, **choices)
    torch.testing.assert_close(found.variance, power.square() + 0.05)
    indices, weights_found = fitted.weights(query)
    expected = functional.cardinal_weights(query, points, **choices)
    torch.testing.assert_close(weights_found, expected.gather(1, indices))
    left_out = functional.leave_one_out(points, values, **choices)
    torch.testing.assert_close(fitted.leave_out(last).mean, left_out[last])


def twins(count=400, gap=1e-4):
    """Rows in pairs that nearly agree; the targets of a few pairs do not."""
    rng = np.random.default_rng(0)
    one = rng.uniform(-2, 2, size=(count, 2))
    X, y = np.r_[one, one + gap], np.tile(np.sin(one[:, 0]) + one[:, 1], 2)
    y[:3] += 1.0
    return X, y


def test_deviations_are_not_smaller_than_so_many_rows_can_tell():
    X, y = twins()
    held = np.arange(1, len(X) // 2, 2)  # the twins of these, one of them with another target, stay
    rest = np.setdiff1d(np.arange(len(X)), held)
    model = KernelRidgeRegressor(1e-8, kernel=kernels.Matern52(1.0)).fit(X[rest], y[rest])
    residuals = model.predictor_.residuals
    assert residuals.nugget > 100 * residuals.ridge
    mean, std = model.predict(X[held], return_std=True)
    surest = residuals._replace(nugget=residuals.ridge)
    model.predictor_.residuals = surest
    _, tied = model.predict(X[held], return_std=True)
    losses = [np.mean(np.log(one) + 0.5 * ((y[held] - mean) / one) ** 2) for one in (std, tied)]
    assert losses[0] < losses[1] - 100


def test_the_noise_is_the_ridge_where_residuals_say_so():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 1))
    y = np.sin(3 * X[:, 0]) + 0.3 * rng.normal(size=300)
    model = KernelRidgeRegressor(0.3, kernel=kernels.Gaussian(0.5)).fit(X, y)
    assert model.predictor_.residuals.nugget <= 2 * model.predictor_.residuals.ridge
