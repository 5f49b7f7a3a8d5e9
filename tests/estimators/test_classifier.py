"""Labels and probabilities."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.estimators.problems import two_classes

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
