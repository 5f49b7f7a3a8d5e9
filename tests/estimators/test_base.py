"""What all estimators do: rows that come, go, repeat and weigh, and all that scikit-learn asks."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.estimators.problems import smooth_table

from torchkrr.errors import InputError, KernelRidgeWarning
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor, predictor
from torchkrr.kernels import Matern32

X, Y = smooth_table(160)
QUERY = smooth_table(40, seed=1)[0]
MODELS = {
    "auto": LocalKernelRidgeRegressor(),
    "neighbors": LocalKernelRidgeRegressor(15, alpha=1e-2, kernel="matern32", metric=None),
    "kernel": LocalKernelRidgeRegressor(20, alpha=1e-3, kernel=Matern32(0.7)),
    "dense": KernelRidgeRegressor(kernel="gaussian"),
}


@pytest.mark.parametrize("name", MODELS)
def test_added_rows_predict_as_a_refit_with_the_same_choices(name):
    grown = clone(MODELS[name]).fit(X[:120], Y[:120]).partial_fit(X[120:], Y[120:])
    refit = clone(MODELS[name]).set_params(warm_start=True).fit(X[:120], Y[:120]).fit(X, Y)
    assert np.abs(grown.predict(QUERY) - refit.predict(QUERY)).max() < 1e-10
    before = clone(MODELS[name]).fit(X[:120], Y[:120]).predict(QUERY)
    assert np.abs(grown.predict(QUERY) - before).max() > 1e-4


def test_added_rows_predict_as_a_fresh_fit_with_everything_given():
    model = LocalKernelRidgeRegressor(20, alpha=1e-3, kernel=Matern32(0.7))
    grown = clone(model).fit(X[:120], Y[:120]).partial_fit(X[120:], Y[120:])
    assert np.abs(grown.predict(QUERY) - clone(model).fit(X, Y).predict(QUERY)).max() < 1e-10


@pytest.mark.parametrize("name", MODELS)
def test_forgotten_rows_leave_no_trace(name):
    model = clone(MODELS[name]).fit(X[:120], Y[:120])
    before, spread = model.predict(QUERY, return_std=True)
    model.partial_fit(X[120:], Y[120:]).predict(QUERY)
    model.forget(range(120, 160))
    after, spread_after = model.predict(QUERY, return_std=True)
    assert np.abs(after - before).max() < 1e-10
    assert np.abs(spread_after - spread).max() < 1e-10


def test_partial_fit_of_an_unfitted_estimator_fits():
    model = LocalKernelRidgeRegressor(10, alpha=0.1, kernel="matern52", metric=None)
    np.testing.assert_array_equal(clone(model).partial_fit(X, Y).predict(QUERY), clone(model).fit(X, Y).predict(QUERY))


def test_a_weight_is_a_number_of_copies():
    weights = np.random.default_rng(0).integers(0, 4, size=len(X))
    model = LocalKernelRidgeRegressor(12, alpha=0.1, kernel="matern32", metric=None)
    weighted = clone(model).fit(X, Y, sample_weight=weights)
    repeated = clone(model).fit(X.repeat(weights, axis=0), Y.repeat(weights))
    np.testing.assert_allclose(weighted.predict(QUERY), repeated.predict(QUERY), rtol=1e-9)
    assert np.abs(weighted.predict(QUERY) - clone(model).fit(X, Y).predict(QUERY)).max() > 1e-3


def test_repeated_rows_with_different_targets_give_their_mean():
    model = KernelRidgeRegressor(1e-9, kernel=Matern32(0.5))
    model.fit([[0.0], [0.0], [1.0]], [1.0, 3.0, 5.0])
    np.testing.assert_allclose(model.predict([[0.0]]), [2.0], atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_an_explanation_reproduce_the_prediction(name):
    doubled = np.concatenate((X, X[:20])), np.concatenate((Y, Y[:20] + 1))
    model = clone(MODELS[name]).fit(*doubled)
    rows, weights = model.explain(QUERY)
    np.testing.assert_allclose((weights * doubled[1][rows]).sum(1), model.predict(QUERY), atol=1e-8)
    few, largest = model.explain(QUERY, n_rows=3)
    np.testing.assert_array_equal(few, rows[:, :3])
    assert (np.abs(largest[:, 0]) >= np.abs(largest[:, 1])).all()


def test_neighbors_are_the_nearest_rows_in_the_metric_of_the_kernel():
    model = LocalKernelRidgeRegressor(5, alpha=0.1, kernel=Matern32([0.1, 1.0, 10.0])).fit(X, Y)
    distances, indices = model.kneighbors(QUERY)
    expected = np.linalg.norm((QUERY[:, None] - X) / [0.1, 1.0, 10.0], axis=-1)
    np.testing.assert_array_equal(indices, np.argsort(expected, axis=1)[:, :5])
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :5])
    assert (model.kneighbors(n_neighbors=1, return_distance=False)[:, 0] != np.arange(len(X))).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([500], "between 0 and 159"), ([-1], "between 0 and 159"), (0.5, "row numbers"), (range(160), "leave none")],
)
def test_rows_that_cannot_be_forgotten_are_an_error(rows, message):
    model = LocalKernelRidgeRegressor(5, alpha=0.1, kernel=Matern32()).fit(X, Y)
    with pytest.raises(InputError, match=message):
        model.forget(rows)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("model", [LocalKernelRidgeRegressor(), LocalKernelRidgeRegressor(7), KernelRidgeRegressor()])
def test_few_rows_are_enough(model, count):
    model = clone(model).fit(X[:count], Y[:count])
    mean, std = model.predict(QUERY, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert mean.min() >= Y[:count].min() - np.ptp(Y[:count]) - 1e-9
    lower, upper = model.predict_interval(QUERY, 0.5)
    assert (lower <= upper).all()


def test_classifier_takes_and_forgets_rows():
    labels = np.where(Y > 0, "up", "down")
    model = LocalKernelRidgeClassifier().fit(X[:120], labels[:120])
    before = model.predict_proba(QUERY)
    model.partial_fit(X[120:], labels[120:])
    assert np.abs(model.predict_proba(QUERY) - before).max() > 1e-4
    assert np.abs(model.forget(range(120, 160)).predict_proba(QUERY) - before).max() < 1e-10
    assert model.partial_fit(QUERY + 3, ["sideways"] * 40).classes_.tolist() == ["down", "sideways", "up"]
    assert (model.predict(QUERY + 3) == "sideways").all()
    assert np.abs(model.forget(label="sideways").predict_proba(QUERY)[:, [0, 2]] - before).max() < 0.01


def test_classes_may_be_named_before_they_have_rows():
    labels = np.where(Y > 0, "up", "down")
    named, added = LocalKernelRidgeClassifier(), LocalKernelRidgeClassifier()
    named.partial_fit(X[:60], labels[:60], classes=["down", "sideways", "up"])
    added.partial_fit(X[:60], labels[:60])
    np.testing.assert_allclose(named.predict_proba(QUERY)[:, [0, 2]], added.predict_proba(QUERY), atol=0.01)
    assert named.predict_proba(QUERY)[:, 1].max() < 0.01
    assert named.leave_one_out()[0][:, 1].max() < 0.01
    for model in (named, added):
        model.partial_fit(X[60:65] + 5, ["sideways"] * 5)
        assert (model.predict(X[60:65] + 5) == "sideways").all()
    np.testing.assert_allclose(named.predict_proba(QUERY), added.predict_proba(QUERY), atol=1e-10)
    with pytest.raises(InputError, match=r"labels that are not among the classes \['up', 'within'\]: \['down'\]"):
        LocalKernelRidgeClassifier().partial_fit(X, labels, classes=["up", "within"])


def test_too_many_rows_for_one_factorization_are_said_and_counted(monkeypatch):
    monkeypatch.setattr(predictor, "MOST_DENSE", 50)
    monkeypatch.setattr(predictor, "DENSE_BUT_LOCAL", 20)
    model = KernelRidgeRegressor(0.1, kernel=Matern32(0.7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(model).fit(X[:50], Y[:50])
        copied = clone(model).fit(X[:40].repeat(3, axis=0), Y[:40].repeat(3))
        local = LocalKernelRidgeRegressor(alpha=0.1, kernel=Matern32(0.7)).fit(X, Y)
    assert (copied.n_neighbors_, local.n_neighbors_) == (120, 20)
    with pytest.warns(KernelRidgeWarning, match="has 160 different rows, .* each prediction uses the 20 nearest") as caught:
        model.fit(X, Y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert model.n_neighbors_ == model.explain(QUERY).indices.shape[1] == 20
    assert copied.n_neighbors_ == copied.explain(QUERY).indices.shape[1]
    with pytest.warns(KernelRidgeWarning, match="has 51 different rows"):
        model = clone(model).fit(X[:50], Y[:50]).partial_fit(X[50:51], Y[50:51])
    assert model.n_neighbors_ == 20
    assert model.forget(0).n_neighbors_ == 50


# scikit-learn asks for its array API checks to be skipped unless a variable of the environment is set.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([LocalKernelRidgeRegressor(), LocalKernelRidgeClassifier(), KernelRidgeRegressor()])
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("classes", [False, True])
def test_leave_one_out_predicts_each_row_from_the_others(classes):
    given = {"alpha": 0.1, "kernel": Matern32(0.7)}
    model = (LocalKernelRidgeClassifier if classes else LocalKernelRidgeRegressor)(30, **given)
    y = np.where(Y > 0, "up", "down") if classes else Y
    predictions, targets = model.fit(X[:30], y[:30]).leave_one_out()
    for row in range(5):
        rest = clone(model).set_params(n_neighbors=29).fit(np.delete(X[:30], row, 0), np.delete(y[:30], row))
        if classes:
            rest.calibration_ = model.calibration_
        expected = rest.predict_proba(X[row : row + 1])[0] if classes else rest.predict(X[row : row + 1])
        np.testing.assert_allclose(predictions[row], expected, atol=1e-8)
        np.testing.assert_allclose(targets[row], model.classes_ == y[row] if classes else y[row])
    assert clone(model).fit(X[:2], y[:2]).leave_one_out() is None
