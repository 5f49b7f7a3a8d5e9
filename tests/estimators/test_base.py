"""What all estimators do: rows that come, go, repeat and weigh, and all that scikit-learn asks."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.estimators.problems import smooth_table

from torchkrr._threads import threads
from torchkrr.errors import InputError, KernelRidgeWarning, ShapeError
from torchkrr.estimators import (
    KernelRidgeRegressor,
    LocalKernelRidgeClassifier,
    LocalKernelRidgeRegressor,
    predictor,
    selection,
)
from torchkrr.kernels import Matern32

X, Y = smooth_table(160)
LABELS = np.where(Y > 0, "up", "down")
QUERY = smooth_table(40, seed=1)[0]
MODELS = {
    "auto": LocalKernelRidgeRegressor(),
    "neighbors": LocalKernelRidgeRegressor(15, alpha=1e-2, kernel="matern32", metric=None),
    "kernel": LocalKernelRidgeRegressor(20, alpha=1e-3, kernel=Matern32(0.7)),
    "dense": KernelRidgeRegressor(kernel="gaussian"),
}


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


def test_few_rows_are_fitted_and_predicted_on_one_thread(monkeypatch):
    counts = []

    def seen(self, *args):
        counts.append(torch.get_num_threads())
        return original(self, *args)

    original = predictor.Predictor.predict
    monkeypatch.setattr(predictor.Predictor, "predict", seen)
    with threads(2):
        model = LocalKernelRidgeRegressor(10, alpha=0.1, kernel="matern52", metric=None).fit(X, Y)
        model.predict(QUERY)
        model.predict(np.tile(QUERY, (400, 1)))
        model.set_params(n_jobs=2).predict(QUERY)
    assert counts == [1, 2, 2]


def predicted_by(model):
    """All that is predicted, in one array."""
    return model.predict_proba(QUERY) if hasattr(model, "predict_proba") else model.predict(QUERY)


@pytest.fixture
def few_coarse_points(monkeypatch):
    monkeypatch.setattr(selection, "COARSE_POINTS", 20)


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("neighbors", ["auto", 30])
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("kind", [LocalKernelRidgeRegressor, LocalKernelRidgeClassifier])
def test_rows_forgotten_and_given_again_change_nothing(kind, prior, neighbors):
    y = Y if kind is LocalKernelRidgeRegressor else np.where(Y > 0.5, "high", np.where(Y < -0.3, "low", "middle"))
    given = {"prior": prior} if neighbors == "auto" else {"prior": prior, "kernel": "matern32", "metric": None}
    model = kind(neighbors, **given).fit(X, y)
    before, rows = predicted_by(model), [3, 70, 20, 159]
    assert np.abs(predicted_by(model.forget(rows)) - before).max() > 1e-4
    np.testing.assert_allclose(predicted_by(model.partial_fit(X[rows], y[rows])), before, rtol=0, atol=1e-10)
    # What a fit of all rows predicts, with what was chosen for some of them.
    few = kind(neighbors, **given).fit(X[:100], y[:100])
    whole = copy.deepcopy(few).partial_fit(X[100:], y[100:])
    same = copy.deepcopy(few).set_params(warm_start=True).fit(X, y)
    if hasattr(same, "calibration_"):
        same.calibration_ = few.calibration_
    np.testing.assert_allclose(predicted_by(whole), predicted_by(same), rtol=0, atol=1e-10)
    assert np.abs(predicted_by(whole) - predicted_by(few)).max() > 1e-4
    assert (whole.predictor_.prior is None) == (prior is None)


IDS = np.array([f"row {at}" for at in range(160)])


def test_ids_stay_with_their_rows(tmp_path):
    model = LocalKernelRidgeRegressor(20, kernel="matern32", metric=None).fit(X[:120], Y[:120], ids=IDS[:120])
    model.forget([5]).forget(ids=["row 7", "row 2"]).forget(ids="row 11").partial_fit(X[120:], Y[120:], ids=IDS[120:])
    left = np.delete(IDS, [2, 5, 7, 11])
    model.save(tmp_path / "model.krr")
    for one in (model, LocalKernelRidgeRegressor.load(tmp_path / "model.krr")):
        found = one.explain(QUERY, 4)
        np.testing.assert_array_equal(found.ids, left[found.indices])
        nearest = one.explain(X[120:121]).ids[0, 0]
        assert nearest == "row 120"
        # The rows that are named are those that go.
        one.forget(ids=nearest)
        assert nearest not in one.explain(X[120:121]).ids
    assert LocalKernelRidgeRegressor(5).fit(X[:9], Y[:9]).explain(QUERY).ids is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: model.partial_fit(X[:2], LABELS[:2], ids=["row 3", "new"]),
            "'row 3' is there twice. Forget the earlier",
        ),
        (lambda model: model.partial_fit(X[:2], LABELS[:2], ids=["new", "new"]), "'new' is there twice"),
        (lambda model: model.partial_fit(X[:2], LABELS[:2], ids=["new"]), r"for each of 2 rows, got the shape \(1,\)"),
        (lambda model: model.partial_fit(X[:2], ["other"] * 2, ids=["row 3", "new"]), "is there twice"),
        (lambda model: model.partial_fit(X[:2], LABELS[:2]), "have ids. Give ids of the new rows too"),
        (lambda model: model.partial_fit(X[:2], ["other"] * 2, groups=[1, 2, 3], ids=["a", "b"]), "inconsistent numbers"),
        (lambda model: model.partial_fit(X[:2], ["other"] * 2, sample_weight=[-1, 1], ids=["a", "b"]), "sample_weight"),
        (lambda model: model.forget(ids="row 90"), "no row with the id 'row 90'. Did you mean row 9?"),
        (lambda model: model.forget(ids=["row 3", "none"]), "no row with the id 'none'"),
        (lambda model: model.forget([3], ids=["row 3"]), "Give rows or ids"),
        (lambda model: model.forget(), "Give rows or ids"),
        (lambda model: model.forget([3], label="up"), "Give rows, ids or a label"),
        (lambda model: model.forget(label="sideways"), r"'sideways' is not one of the classes \['down', 'up'\]"),
    ],
)
def test_impossible_ids_and_labels_are_an_error_and_change_nothing(change, message):
    model = LocalKernelRidgeClassifier(9, kernel="gaussian", metric=None).fit(X[:40], LABELS[:40], ids=IDS[:40])
    before, names = model.predict_proba(QUERY), model.explain(QUERY).ids
    with pytest.raises(ValueError, match=message):
        change(model)
    np.testing.assert_array_equal(model.predict_proba(QUERY), before)
    np.testing.assert_array_equal(model.explain(QUERY).ids, names)


def test_ids_cannot_be_used_where_none_were_given():
    model = LocalKernelRidgeClassifier(9, kernel="gaussian", metric=None).fit(X[:40], LABELS[:40])
    with pytest.raises(InputError, match="have no ids, so new ones cannot have any"):
        model.partial_fit(X[40:42], LABELS[40:42], ids=["a", "b"])
    with pytest.raises(InputError, match=r"have no ids\. Give them to fit, or forget row numbers"):
        model.forget(ids="row 3")
    with pytest.raises(ShapeError, match=r"got the shape \(3, 1\)"):
        model.fit(X[:3], LABELS[:3], ids=[[1], [2], [3]])


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("neighbors", ["auto", 30])
@pytest.mark.parametrize("prior", [None, "linear", "coarse", "model"])
@pytest.mark.parametrize("kind", [LocalKernelRidgeRegressor, LocalKernelRidgeClassifier])
def test_an_explanation_adds_up_to_the_prediction(kind, prior, neighbors):
    y = Y if kind is LocalKernelRidgeRegressor else LABELS
    if prior == "model":
        prior = FrozenEstimator((Ridge() if kind is LocalKernelRidgeRegressor else LogisticRegression()).fit(X, y))
    metric = "auto" if neighbors == "auto" else None
    model = kind(neighbors, prior=prior, kernel="matern32", metric=metric).fit(X, y)
    found = model.explain(QUERY)
    if prior is None:
        assert (found.prior == 0).all()
        given = np.asarray(Y)[:, None] if kind is LocalKernelRidgeRegressor else np.eye(2)[(LABELS == "up").astype(int)]
        rest = given
    else:
        rest = np.zeros((len(X), found.prior.shape[1]))
        rest[model.predictor_.first_rows] = model.predictor_.left_over.values * model.predictor_.unit
    close = 1e-6 if model.predictor_.members[0].single else 1e-8  # what is solved in float32
    summed = found.prior + np.einsum("qr,qrc->qc", found.weights, rest[found.indices])
    if kind is LocalKernelRidgeRegressor:
        np.testing.assert_allclose(summed[:, 0], model.predict(QUERY), rtol=0, atol=close)
    else:
        np.testing.assert_allclose(
            model.calibration_.probabilities(torch.tensor(summed)), model.predict_proba(QUERY), rtol=0, atol=close
        )


@pytest.mark.usefixtures("few_coarse_points")
@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
@pytest.mark.parametrize("kind", [LocalKernelRidgeRegressor, LocalKernelRidgeClassifier])
def test_a_weight_is_a_number_of_copies(kind, prior):
    weights, y = np.random.default_rng(0).integers(0, 4, size=len(X)), Y if kind is LocalKernelRidgeRegressor else LABELS
    given = {"prior": prior, "alpha": 0.1, "kernel": "matern32", "metric": None}
    for neighbors in ("auto", 12):
        weighted = kind(neighbors, **given).fit(X, y, sample_weight=weights)
        repeated = kind(neighbors, **given).fit(X.repeat(weights, axis=0), y.repeat(weights))
        np.testing.assert_allclose(predicted_by(weighted), predicted_by(repeated), rtol=0, atol=1e-9)
        assert np.abs(predicted_by(weighted) - predicted_by(kind(neighbors, **given).fit(X, y))).max() > 1e-3


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
    model = LocalKernelRidgeClassifier().fit(X[:120], LABELS[:120])
    before = model.predict_proba(QUERY)
    model.partial_fit(X[120:], LABELS[120:])
    assert np.abs(model.predict_proba(QUERY) - before).max() > 1e-4
    assert np.abs(model.forget(range(120, 160)).predict_proba(QUERY) - before).max() < 1e-10
    assert model.partial_fit(QUERY + 3, ["sideways"] * 40).classes_.tolist() == ["down", "sideways", "up"]
    assert (model.predict(QUERY + 3) == "sideways").all()
    assert np.abs(model.forget(label="sideways").predict_proba(QUERY)[:, [0, 2]] - before).max() < 0.01


def test_classes_may_be_named_before_they_have_rows():
    named, added = LocalKernelRidgeClassifier(), LocalKernelRidgeClassifier()
    named.partial_fit(X[:60], LABELS[:60], classes=["down", "sideways", "up"])
    added.partial_fit(X[:60], LABELS[:60])
    np.testing.assert_allclose(named.predict_proba(QUERY)[:, [0, 2]], added.predict_proba(QUERY), atol=0.01)
    assert named.predict_proba(QUERY)[:, 1].max() < 0.01
    assert named.leave_one_out()[0][:, 1].max() < 0.01
    for model in (named, added):
        model.partial_fit(X[60:65] + 5, ["sideways"] * 5)
        assert (model.predict(X[60:65] + 5) == "sideways").all()
    np.testing.assert_allclose(named.predict_proba(QUERY), added.predict_proba(QUERY), atol=1e-10)
    with pytest.raises(InputError, match=r"labels that are not among the classes \['up', 'within'\]: \['down'\]"):
        LocalKernelRidgeClassifier().partial_fit(X, LABELS, classes=["up", "within"])


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


CHECKED = [
    KernelRidgeRegressor(),
    LocalKernelRidgeRegressor(),
    LocalKernelRidgeClassifier(),
    *[
        kind(prior=prior, kernel="matern32", metric=None)
        for kind in (LocalKernelRidgeRegressor, LocalKernelRidgeClassifier)
        for prior in (None, "linear", "coarse")
    ],
]


# scikit-learn asks for its array API checks to be skipped unless a variable of the environment is set.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(CHECKED)
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
