"""A prior and a kernel on what it leaves over: leave-one-out of the sum beside refits."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from tests import reference
from tests.estimators.problems import reference_of, smooth_table, two_classes
from torch import nn

from torchkrr.errors import InputError
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor, selection
from torchkrr.estimators.prior import RIDGES
from torchkrr.kernels import Matern32

RNG = np.random.default_rng(0)
SOME = RNG.permutation(150)[:30]
TABLES = {
    "smooth": smooth_table(30),
    "diabetes": (load_diabetes().data[:36, 2:5], load_diabetes().target[:36]),
    "classes": tuple(part[SOME] for part in load_iris(return_X_y=True)),
}
WEIGHTS = {"equal": None, "weighted": RNG.uniform(0.7, 1.8, size=36)}


def fitted(table, weights, prior, **names):
    """The estimator for a table, with weights of this name."""
    X, y = TABLES[table]
    kind = LocalKernelRidgeClassifier if table == "classes" else LocalKernelRidgeRegressor
    return kind(prior=prior).fit(X, y, None if weights == "equal" else WEIGHTS[weights][: len(X)], **names)


@pytest.fixture
def few_coarse_points(monkeypatch):
    monkeypatch.setattr(selection, "COARSE_POINTS", 5)
    monkeypatch.setitem(RIDGES, "coarse", [3.0])


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("table", TABLES)
def test_leave_one_out_of_the_sum_is_that_of_refits(table, weights, prior):
    model = fitted(table, weights, prior)
    predictor = model.predictor_
    if prior is not None:
        assert (
            predictor.fitted_prior.hat(torch.arange(len(predictor.centers.points))).leverages.max() < 0.499
        )  # nothing is capped
    expected = reference.leave_out_of_sum(reference_of(model))
    found = predictor.leave_out()[0].mean.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert any(member.share > 0 for member in predictor.members)


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("table", TABLES)
def test_leave_group_out_of_the_sum_is_that_of_refits(table, weights, prior):
    groups = np.arange(len(TABLES[table][0]))
    groups[:11] = [0, 1, 1, 0, 4, 5, 4, 7, 7, 7, 7]
    groups = np.random.default_rng(1).permutation(groups)
    model = fitted(table, weights, prior, groups=groups)
    expected = reference.leave_out_of_sum(reference_of(model, groups))
    np.testing.assert_allclose(model.predictor_.leave_out()[0].mean.numpy(), expected, atol=1e-8)


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("groups", [None, np.arange(36) // 2], ids=["rows", "groups"])
def test_the_kernel_predicts_what_the_prior_leaves_over_of_rows_left_out_of_it(groups, prior):
    X, y = TABLES["diabetes"]
    model = LocalKernelRidgeRegressor(prior=prior).fit(X, y, WEIGHTS["weighted"], groups=groups)
    query = X[:7] + 0.01
    problem = reference_of(model, groups, query)
    expected = reference.prior_and_kernels(problem, np.arange(36, 43), np.arange(36))
    np.testing.assert_allclose(model.predictor_.in_units(torch.tensor(expected))[:, 0], model.predict(query), rtol=1e-9)


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


@pytest.mark.parametrize("prior", ["linear", "auto"])
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
    if kind is LocalKernelRidgeClassifier:
        assert grouped.calibration_.doubt == pytest.approx(once.calibration_.doubt)
        assert careless.calibration_.doubt < 0.5 * once.calibration_.doubt
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
    thrice_as_heavy = LocalKernelRidgeClassifier(prior=None).fit(X, y, groups=groups)
    careless = LocalKernelRidgeClassifier(prior=None).fit(X, y)
    assert careless.calibration_.temperature < 0.95 * thrice_as_heavy.calibration_.temperature
    assert np.abs(careless.predict_proba(X) - expected.predict_proba(X)).max() > 0.02


GIVEN, RIGHT = smooth_table(200)
LABELS = np.where(RIGHT > 0.5, "a", np.where(RIGHT < -0.3, "b", "c"))
FAR = smooth_table(50, seed=3)[0] + 40
DEPLOYED = LogisticRegression().fit(GIVEN, LABELS)
MISTAKES = DEPLOYED.predict(GIVEN) != LABELS


def network():
    layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 3))
    layers[0].train(False)
    return layers


@pytest.mark.parametrize("kind", ["frozen", "function", "module", "half module"])
def test_a_model_is_mended_where_it_is_wrong_and_stays_elsewhere(kind):
    prior = {
        "frozen": FrozenEstimator(DEPLOYED),
        "function": lambda rows: DEPLOYED.decision_function(rows),
        "module": network(),
        "half module": network().bfloat16(),
    }[kind]

    def logits(rows):
        if kind in ("frozen", "function"):
            return torch.tensor(DEPLOYED.decision_function(rows))
        modes = [module.training for module in prior.modules()]
        assert modes[:2] == [True, False]  # as it was given
        with torch.no_grad():
            found = prior.eval()(torch.tensor(rows).to(prior[0].weight)).double()
        for module, mode in zip(prior.modules(), modes, strict=True):
            module.training = mode
        return found

    wrong = DEPLOYED.classes_[logits(GIVEN).argmax(1)] != LABELS
    model = LocalKernelRidgeClassifier(prior=prior, alpha=1e-6, kernel="gaussian")
    model.partial_fit(GIVEN[wrong], LABELS[wrong], classes=["a", "b", "c"])
    assert wrong.sum() > 20
    assert (model.predict(GIVEN[wrong]) == LABELS[wrong]).all()
    np.testing.assert_array_equal(model.predict_proba(FAR), torch.softmax(logits(FAR), 1).numpy())
    # The right class is lifted above the others by the margin.
    scores = np.log(model.predict_proba(GIVEN[wrong]))
    best = np.sort(logits(GIVEN[wrong]).numpy(), axis=1)[:, -1]
    own = model.predictor_.predict(torch.tensor(GIVEN[wrong])).numpy().max(1)
    np.testing.assert_allclose(own - best, 1.0, atol=1e-2)
    assert np.isfinite(scores).all()
    before = model.predict_proba(GIVEN)
    model.forget([0, 4])
    assert np.abs(model.predict_proba(GIVEN) - before).max() > 1e-3
    model.partial_fit(GIVEN[wrong][[0, 4]], LABELS[wrong][[0, 4]])
    np.testing.assert_array_equal(model.predict_proba(GIVEN), before)


def test_rows_on_which_a_model_is_right_pin_it_there():
    prior = FrozenEstimator(DEPLOYED)
    wide = {"alpha": 1e-6, "kernel": Matern32(1.0)}
    mended = LocalKernelRidgeClassifier(prior=prior, **wide).fit(GIVEN[MISTAKES], LABELS[MISTAKES])
    pinned = LocalKernelRidgeClassifier(prior=prior, **wide).fit(GIVEN, LABELS)
    right = GIVEN[~MISTAKES]
    expected = DEPLOYED.decision_function(right)
    close = [np.abs(model.predictor_.predict(torch.tensor(right)).numpy() - expected).max() for model in (mended, pinned)]
    assert close[0] > 0.5
    assert close[1] < 0.05
    assert pinned.score(GIVEN, LABELS) == 1.0
    assert mended.margin == 1.0
    lifted = LocalKernelRidgeClassifier(prior=prior, margin=4.0, **wide).fit(GIVEN[MISTAKES], LABELS[MISTAKES])
    assert lifted.predict_proba(GIVEN[MISTAKES]).max(1).min() > mended.predict_proba(GIVEN[MISTAKES]).max(1).min() + 0.2


def test_a_model_of_numbers_is_corrected_too():
    slope = Ridge().fit(GIVEN, RIGHT)
    model = LocalKernelRidgeRegressor(prior=FrozenEstimator(slope)).fit(GIVEN[:150], RIGHT[:150])
    assert model.score(GIVEN[150:], RIGHT[150:]) > 0.9 > slope.score(GIVEN[150:], RIGHT[150:]) + 0.1
    np.testing.assert_allclose(model.predict(FAR), slope.predict(FAR), rtol=1e-12)
    lower, upper = model.predict_interval(GIVEN[150:], 0.9)
    assert ((lower <= RIGHT[150:]) & (RIGHT[150:] <= upper)).mean() > 0.8
    left_out, targets = model.leave_one_out()
    np.testing.assert_allclose(targets[:, 0], RIGHT[:150])
    base = slope.predict(GIVEN[:150])[:, None]
    points, profile = (
        model.kernel_.embed(torch.tensor(GIVEN[:150])).numpy(),
        reference.PROFILES[type(model.kernel_).__name__],
    )
    rest = reference.leave_one_out(points, targets - base, profile=profile, ridge=model.alpha_, rows=np.arange(9))
    np.testing.assert_allclose(left_out[:9], base[:9] + rest, atol=1e-8)


def test_sets_and_left_out_rows_of_a_mended_model_speak_of_classes():
    model = LocalKernelRidgeClassifier(prior=FrozenEstimator(DEPLOYED)).fit(GIVEN, LABELS)
    probabilities, shares = model.leave_one_out()
    np.testing.assert_array_equal(shares, np.eye(3)[np.searchsorted(["a", "b", "c"], LABELS)])
    np.testing.assert_allclose(probabilities.sum(1), 1)
    query, right = smooth_table(400, seed=9)
    right = np.searchsorted(["a", "b", "c"], np.where(right > 0.5, "a", np.where(right < -0.3, "b", "c")))
    found = model.predict_set(query, 0.8)
    assert abs(found[np.arange(400), right].mean() - 0.8) < 0.07
    assert model.forget(label="a").n_samples_fit_ == (LABELS != "a").sum()


def test_a_frozen_model_is_cloned_and_its_classes_need_no_rows(tmp_path):
    model = LocalKernelRidgeClassifier(prior=FrozenEstimator(DEPLOYED))
    some = LABELS != "a"
    mended = clone(model).fit(GIVEN[some], LABELS[some])
    assert mended.classes_.tolist() == ["a", "b", "c"]
    assert (mended.predict(FAR) == DEPLOYED.predict(FAR)).all()
    assert cross_val_score(model, GIVEN, LABELS, cv=3).min() > DEPLOYED.score(GIVEN, LABELS)
    with pytest.raises(InputError, match=r"cannot be saved: the format holds no models\. Save the model in its own way"):
        mended.save(tmp_path / "model.krr")
    again = pickle.loads(pickle.dumps(mended))
    np.testing.assert_array_equal(again.predict_proba(GIVEN), mended.predict_proba(GIVEN))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (3, "prior must be 'auto', None, 'linear', 'coarse', or a fitted model: .* got int"),
        ("straight", "prior must be None, a fitted model or one of 'auto', 'linear', 'coarse', got 'straight'"),
        (LogisticRegression(), "not fitted yet"),
        (nn.Linear(3, 2), "The prior predicts 2 outputs, but y has 3.$"),
        (nn.Linear(3, 4), r"predicts 4 outputs, but y has 3. Name all classes that it predicts: partial_fit\(X, y, cl"),
        (lambda rows: rows[:5], r"one row of finite numbers for each of 200 rows, got the shape \(5, 3\)"),
        (lambda rows: rows * np.nan, "one row of finite numbers for each of 200 rows"),
    ],
)
def test_a_prior_that_cannot_be_used_is_an_error(prior, message):
    with pytest.raises(ValueError, match=message):
        LocalKernelRidgeClassifier(prior=prior).fit(GIVEN, LABELS)


def test_a_model_is_told_of_classes_and_columns_that_it_does_not_know():
    model = LocalKernelRidgeClassifier(prior=FrozenEstimator(DEPLOYED)).fit(GIVEN, LABELS)
    with pytest.raises(InputError, match=r"labels that the prior, a model, does not predict: \['d'\]"):
        model.partial_fit(GIVEN[:1], ["d"])
    with pytest.raises(InputError, match="takes numbers alone: encode categories and fill missing values first"):
        model.fit(np.where(GIVEN > 0.9, np.nan, GIVEN), LABELS)


def test_a_model_that_is_corrected_for_some_classes_keeps_its_others():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    network = torch.nn.Linear(5, 4, dtype=torch.float64)
    wrong = points[:12]
    labels = (network(wrong).argmax(1).numpy() + 1) % 4
    some = labels < 3
    model = LocalKernelRidgeClassifier(prior=network).fit(wrong[some].numpy(), labels[some])
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert (model.predict(wrong[some].numpy()) == labels[some]).all()
    far = 1e4 * points[12:]
    assert (model.predict(far.numpy()) == network(far).argmax(1).numpy()).all()
