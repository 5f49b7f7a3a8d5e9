"""Planted errors, outliers and copies are found; nothing vouches for its copies or its group; files are whole."""

import csv

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris

import torchkrr
from torchkrr import audit
from torchkrr.errors import InputError
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor


@pytest.fixture(scope="module")
def digits():
    """Pictures of digits, five labels in a hundred of which are wrong, and which."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    x, y = x[:900], y[:900].copy()
    wrong = rng.choice(900, 45, replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, 10, 45)) % 10
    return x, y, wrong


@pytest.fixture(scope="module")
def found(digits):
    return audit(*digits[:2])


def test_planted_errors_come_first_and_are_issues(found, digits):
    wrong = digits[2]
    assert np.isin(found.ranked[:40], wrong).mean() > 0.95
    issues = np.flatnonzero(found.is_label_issue)
    assert np.isin(wrong, issues).mean() > 0.9
    assert abs((1 - np.isin(issues, wrong).mean()) - found.rate) < 0.1
    truth = load_digits().target[:900]
    assert (found.suggested_label[wrong] == truth[wrong]).mean() > 0.9
    assert ((found.label_quality >= 0) & (found.label_quality <= 1)).all()
    assert abs((1 - found.label_quality).mean() - 0.05) < 0.02
    assert sum(one.issues for one in found.summary) == len(issues) == found.confusion.sum()
    assert found.confusion.trace() == 0
    assert "900 rows" in repr(found)


def test_a_fitted_estimator_is_asked_about_its_own_rows(digits, found):
    model = LocalKernelRidgeClassifier().fit(*digits[:2])
    again = audit(model)
    np.testing.assert_allclose(again.label_quality, found.label_quality, atol=1e-9)
    local = audit(LocalKernelRidgeClassifier(40, kernel="gaussian", alpha=0.1).fit(*digits[:2]))
    assert np.isin(local.ranked[:40], digits[2]).mean() > 0.9


def test_the_evidence_has_neither_the_row_nor_its_copies_and_gives_its_scores():
    x, y = load_iris(return_X_y=True)
    x = np.concatenate((x, x[:30] + 1e-9, x[:30]))  # nearly and exactly
    y = np.concatenate((y, y[:30], y[:30]))
    y[3] = 2
    found = audit(x, y)
    for row in (3, 8, 29):
        evidence = found.evidence(row, 1000)
        assert not {row, 150 + row, 180 + row} & set(evidence.rows.tolist())
    groups = [set(group.rows.tolist()) for group in found.near_duplicates]
    assert all(any({row, 150 + row, 180 + row} <= group for group in groups) for row in range(30))
    assert {3, 153, 183} <= groups[0]
    assert found.near_duplicates[0].disagrees


def test_rows_of_a_group_do_not_vouch_for_each_other():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(60, 3))
    things = np.repeat(np.arange(60), 5)
    x = centers[things] + 0.05 * rng.normal(size=(300, 3))
    labels = rng.integers(2, size=60)[things]  # known only from the other rows of a thing
    apart, together = audit(x, labels), audit(x, labels, groups=things)
    right = [(one.probabilities.argmax(1) == labels).mean() for one in (apart, together)]
    assert right[0] > 0.9 > 0.7 > right[1]
    assert not np.isin(together.evidence(7, 300).rows, np.flatnonzero(things == things[7])).any()


@pytest.mark.parametrize("outputs", [1, 2])
def test_gross_errors_of_numbers_are_issues(outputs):
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, size=(500, 2))
    y = np.stack([np.sin(2 * x[:, 0]) + x[:, 1], x[:, 0] * x[:, 1]], axis=1)[:, :outputs] + 0.05 * rng.normal(
        size=(500, outputs)
    )
    wrong = rng.choice(500, 20, replace=False)
    given = y.copy()
    given[wrong, 0] += rng.choice([-1, 1], 20) * rng.uniform(1.0, 2.0, 20)
    given = given[:, 0] if outputs == 1 else given
    found = audit(x, given, rate=0.1)
    issues = np.flatnonzero(found.is_label_issue)
    assert np.isin(wrong, issues).mean() >= 0.9
    assert np.isin(issues, wrong).mean() > 0.7
    suggested = found.suggested_label if outputs == 1 else found.suggested_label[:, 0]
    assert np.abs(suggested[wrong] - y[wrong, 0]).max() < 0.5
    assert found.task == "regression"
    with pytest.raises(InputError, match="no confusion matrix"):
        found.confusion  # noqa: B018


def test_a_far_row_is_an_outlier():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 3))
    x[17] = 40.0
    found = audit(x, x[:, 0] > 0)
    assert np.flatnonzero(found.is_outlier_issue).tolist() == [17]
    assert found.outlier_score.argmin() == found.error_indicator.argmax() == 17


def test_labels_of_any_kind_and_ids(tmp_path):
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"], dtype=object)[y]
    ids = [f"flower {row}" for row in range(150)]
    names[0] = "virginica"
    found = audit(torch.from_numpy(x), names, ids=ids)
    frame = found.to_frame()
    assert list(frame) == [
        "is_label_issue", "label_score", "given_label", "predicted_label", "is_outlier_issue", "outlier_score",
        "is_near_duplicate_issue", "near_duplicate_sets",
    ]  # fmt: skip
    assert frame.loc["flower 0", "given_label"] == "virginica"
    assert frame.loc["flower 0", "predicted_label"] == "setosa"
    found.to_csv(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["id"] == "flower 0"
    assert len(rows) == 150
    scores = [float(row["label_score"]) for row in rows]
    assert scores == sorted(scores)


def test_rows_of_weight_zero_are_judged_and_vouch_for_nothing():
    x, y = load_iris(return_X_y=True)
    weights = np.ones(150)
    weights[7] = 0.0
    found = audit(LocalKernelRidgeClassifier().fit(x, y, sample_weight=weights))
    assert len(found) == 150
    with pytest.raises(InputError, match="Row 7 has no weight"):
        found.evidence(7)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((np.ones((9, 2)),), {}, "audit needs labels"),
        ((np.ones((9, 2)), np.ones(9, dtype=int)), {}, "Without a second class"),
        ((np.ones((3, 2)), [0, 1, 0]), {}, "needs at least 5"),
        ((np.ones((9, 2)), np.arange(9) % 2), {"rate": 0}, "rate must lie"),
        ((np.ones((9, 2)), np.arange(9) % 2), {"duplicate_distance": -1}, "must not be negative"),
        ((np.ones((9, 2)), np.arange(9) % 2), {"task": "ranking"}, "task must be"),
        ((LocalKernelRidgeClassifier(),), {}, "not fitted"),
        ((np.ones((9, 2)), np.array([0.5, np.nan] * 4 + [1.5])), {}, "The label of row 1 is missing, and 3 more"),
        ((np.full((9, 2), np.inf), np.arange(9) % 2), {}, "infinity"),
        ((np.ones((9, 2)), np.arange(8) % 2), {}, "inconsistent"),
    ],
)
def test_bad_input_is_named(arguments, options, words):
    with pytest.raises((InputError, ValueError), match=words):
        audit(*arguments, **options)


def test_an_estimator_comes_alone_and_has_one_label_for_each_row():
    x, y = load_iris(return_X_y=True)
    model = LocalKernelRidgeClassifier().fit(x, y)
    with pytest.raises(InputError, match="knows its labels"):
        audit(model, y)
    several = LocalKernelRidgeClassifier().fit(x, np.eye(3, dtype=int)[y])
    with pytest.raises(InputError, match="one label for each row"):
        audit(several)


def test_too_many_classes_for_the_memory_are_named(monkeypatch):
    monkeypatch.setattr(torchkrr.quality.auditor, "MOST_SCORES", 1000)
    with pytest.raises(InputError, match="150 rows of 75 classes make 11,250 scores"):
        audit(np.random.default_rng(0).normal(size=(150, 3)), np.arange(150) // 2)


def test_a_thousand_classes():
    rng = np.random.default_rng(0)
    labels = np.arange(2000) // 2
    x = rng.normal(size=(1000, 8))[labels] + 0.1 * rng.normal(size=(2000, 8))
    model = LocalKernelRidgeClassifier(10, kernel="gaussian", alpha=0.1, prior=None).fit(x, labels)
    found = audit(model, duplicate_distance=0)  # two rows of a class are all that there is of it
    assert (found.probabilities.argmax(1) == labels).mean() > 0.8


def test_every_regressor_can_be_audited():
    x = np.linspace(0, 1, 30)[:, None]
    for model in (KernelRidgeRegressor(), LocalKernelRidgeRegressor()):
        assert len(audit(model.fit(x, np.sin(6 * x[:, 0])))) == 30
