"""Labels and probabilities."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.estimators.problems import two_classes

from torchkrr.errors import InputError
from torchkrr.estimators import LocalKernelRidgeClassifier

QUICK = LocalKernelRidgeClassifier(20, alpha=1e-1, kernel="matern32", metric=None)


def calibration_error(probabilities, labels, bins=10):
    """Mean gap between confidence and accuracy over bins of confidence."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((bins * confidence).astype(int), bins - 1)
    gaps = [abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in set(place)]
    return sum(gaps)


@pytest.mark.parametrize("load", [load_digits, load_breast_cancer, load_wine])
def test_probabilities_are_better_than_those_of_neighbors(load):
    X, y = load(return_X_y=True)
    X, test, y, labels = train_test_split(X, y, train_size=min(500, len(X) // 2), random_state=0, stratify=y)
    ours = LocalKernelRidgeClassifier().fit(X, y)
    knn = GridSearchCV(
        make_pipeline(StandardScaler(), KNeighborsClassifier()),
        {"kneighborsclassifier__n_neighbors": [3, 5, 10, 20, 40]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(X, y)
    probabilities = ours.predict_proba(test)
    assert log_loss(labels, probabilities) < log_loss(labels, knn.predict_proba(test))
    assert calibration_error(probabilities, labels) < 0.06
    assert ours.score(test, labels) >= knn.score(test, labels) - 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_are_not_negative_and_sum_to_one(dtype):
    X, y = two_classes()
    model = LocalKernelRidgeClassifier().fit(X.astype(dtype), y)
    probabilities = model.predict_proba(np.concatenate((X, 100 * X)))
    assert probabilities.dtype == dtype
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(np.concatenate((X, 100 * X)))).all()


def test_one_class_is_certain():
    model = LocalKernelRidgeClassifier().fit([[0.0], [1.0], [2.0]], ["only"] * 3)
    assert model.predict([[5.0]]).tolist() == ["only"]
    assert model.predict_proba([[5.0]]).tolist() == [[1.0]]


def test_labels_that_say_nothing_get_even_probabilities():
    rng = np.random.default_rng(0)
    model = LocalKernelRidgeClassifier().fit(rng.normal(size=(300, 4)), rng.integers(0, 2, size=300))
    assert np.abs(model.predict_proba(rng.normal(size=(100, 4))) - 0.5).mean() < 0.1


def test_calibration_of_scikit_learn_wraps_it():
    X, y = two_classes()
    wrapped = CalibratedClassifierCV(clone(QUICK), cv=3).fit(X, y)
    assert wrapped.score(X, y) > 0.8


def test_few_neighbors_and_a_learned_metric_work_together():
    X, y = two_classes(300)
    noise = np.random.default_rng(1).normal(size=(300, 3))
    model = LocalKernelRidgeClassifier(20, metric="ard").fit(np.concatenate((X, noise), 1)[:200], y[:200])
    assert model.score(np.concatenate((X, noise), 1)[200:], y[200:]) > 0.8
    assert model.n_neighbors_ == 20


SEVERAL = np.random.default_rng(5).normal(size=(260, 3))
MARKS = np.c_[SEVERAL[:, 0] > 0, SEVERAL[:, 1] > 1, SEVERAL[:, 0] + SEVERAL[:, 2] > 0.5].astype(int)


@pytest.mark.parametrize("prior", [None, "auto"])
def test_a_row_may_have_several_labels(prior):
    model = LocalKernelRidgeClassifier(prior=prior).fit(SEVERAL[:200], MARKS[:200])
    probabilities, predicted = model.predict_proba(SEVERAL[200:]), model.predict(SEVERAL[200:])
    assert ((probabilities > 0) & (probabilities < 1)).all()
    np.testing.assert_array_equal(predicted, probabilities > 0.5)
    assert (predicted == MARKS[200:]).mean(0).min() > 0.85
    for label in range(3):
        assert log_loss(MARKS[200:, label], probabilities[:, label]) < 0.35
    sparse = LocalKernelRidgeClassifier(prior=prior).fit(SEVERAL[:200], csr_array(MARKS[:200]))
    np.testing.assert_array_equal(sparse.predict_proba(SEVERAL[200:]), probabilities)
    model.forget(label=1)
    assert (model.predict(SEVERAL[200:])[:, 1] == 0).all()
    assert model.n_samples_fit_ == 200 - MARKS[:200, 1].sum()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda model: model.predict_set(SEVERAL), r"predict_set is for rows of one class each"),
        (lambda model: model.partial_fit(SEVERAL[:2], [0, 1]), "y must hold zeros and ones, a column for"),
        (lambda model: model.partial_fit(SEVERAL[:2], MARKS[:2, :2]), "y has 2 labels, but the estimator was fitted with 3"),
        (lambda model: model.set_params(class_weight="balanced").fit(SEVERAL, MARKS), "Give sample_weight instead"),
    ],
)
def test_what_several_labels_do_not_allow_is_an_error(ask, message):
    model = LocalKernelRidgeClassifier(9, kernel="gaussian", metric=None).fit(SEVERAL[:60], MARKS[:60])
    with pytest.raises(InputError, match=message):
        ask(model)


@pytest.mark.parametrize("prior", [None, "linear"])
def test_class_weights_are_weights_of_rows(prior):
    X, y = two_classes(120)
    rare = np.r_[np.arange(100)[y[:100] == "same"], np.arange(100)[y[:100] == "other"][:8]]
    X, y, query = X[rare], y[rare], X[100:]
    given = {"prior": prior, "kernel": "matern32", "alpha": 0.3, "metric": None}
    counts = {label: (y == label).sum() for label in ("same", "other")}
    balanced = {label: len(y) / (2 * count) for label, count in counts.items()}
    weights = np.array([balanced[label] for label in y])
    expected = LocalKernelRidgeClassifier(**given).fit(X, y, sample_weight=weights).predict_proba(query)
    for class_weight in ("balanced", balanced):
        model = LocalKernelRidgeClassifier(class_weight=class_weight, **given).fit(X, y)
        np.testing.assert_allclose(model.predict_proba(query), expected, rtol=1e-9)
    # They multiply the weights of the rows.
    twice = LocalKernelRidgeClassifier(class_weight={"other": 3.0}, **given).fit(X, y, sample_weight=weights)
    other = LocalKernelRidgeClassifier(**given).fit(X, y, sample_weight=weights * np.where(y == "other", 3, 1))
    np.testing.assert_allclose(twice.predict_proba(query), other.predict_proba(query), rtol=1e-9)
    alike = LocalKernelRidgeClassifier(**given).fit(X, y)
    assert (expected[:, 0] > alike.predict_proba(query)[:, 0]).mean() > 0.9
    with pytest.raises(InputError, match=r"weighs the rows of one fit\. Give a dictionary"):
        LocalKernelRidgeClassifier(class_weight="balanced", **given).fit(X, y).partial_fit(X, y)


@pytest.mark.parametrize("prior", [None, "linear", "auto"])
@pytest.mark.parametrize("case", ["circle", "overlap", "wide"])
def test_sets_of_classes_cover_what_they_promise(case, prior):
    rng = np.random.default_rng(1)
    X, noise = rng.normal(size=(1300, 40 if case == "wide" else 2)), rng.normal(size=(1300, 3))
    scores = {
        "circle": np.c_[X[:, 0] ** 2 + X[:, 1] ** 2, np.full(1300, 1.4)],
        "overlap": np.c_[X[:, 0], X[:, 1], -X[:, 0]],
        "wide": X[:, :3],
    }[case]
    y = (scores + 0.8 * noise[:, : scores.shape[1]]).argmax(1)
    model = LocalKernelRidgeClassifier(prior=prior).fit(X[:300], y[:300])
    covered, sizes, before = [], [], np.zeros((1000, scores.shape[1]), dtype=bool)
    for coverage in (0.5, 0.8, 0.9, 0.97):
        found = model.predict_set(X[300:], coverage)
        assert (found >= before).all()  # larger sets for more
        before = found
        covered.append(found[np.arange(1000), y[300:]].mean())
        sizes.append(found.sum(1).mean())
    np.testing.assert_allclose(covered, (0.5, 0.8, 0.9, 0.97), atol=0.06)
    assert sizes[2] < scores.shape[1] - 0.1


def test_sets_of_too_few_rows_hold_every_class_and_impossible_coverages_are_an_error():
    X, y = two_classes(12)
    model = LocalKernelRidgeClassifier().fit(X, y)
    assert model.predict_set(X, 0.99).all()
    assert not model.predict_set(X, 0.5).all()
    for coverage in (0.0, 1.0, "most", None):
        with pytest.raises(InputError, match=r"coverage must be a number between 0 and 1, such as 0\.9, got"):
            model.predict_set(X, coverage)


def test_a_forgotten_class_is_not_predicted_until_it_comes_again():
    X, y = SEVERAL, np.select([SEVERAL[:, 0] > 0.5, SEVERAL[:, 1] > 0], ["a", "b"], "c")
    model = LocalKernelRidgeClassifier().fit(X, y)
    before = model.predict_proba(X)
    model.forget(label="a")
    assert model.n_samples_fit_ == (y != "a").sum()
    assert model.predict_proba(X)[:, 0].max() < 0.01
    assert not model.predict_set(X, 0.9)[:, 0].any()
    model.partial_fit(X[y == "a"], y[y == "a"])
    np.testing.assert_allclose(model.predict_proba(X), before, atol=1e-10)
