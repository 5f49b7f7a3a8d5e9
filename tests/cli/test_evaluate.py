"""Scores of tables are those of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.cli.running import evaluated, fails, read, works

from torchkrr import estimators
from torchkrr.estimators import LocalKernelRidgeClassifier


@pytest.mark.parametrize("chunk", [7, 10_000])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_regression_scores_are_those_of_scikit_learn(models, capsys, chunk, kind):
    table = models / f"diabetes_test.{kind}"
    found = evaluated(capsys, table, models / "diabetes.krr", "--chunk-rows", chunk)
    model, frame = estimators.load(models / "diabetes.krr"), read(table)
    query, y = frame.drop(columns="target"), frame["target"].to_numpy()
    mean, std = model.predict(query, return_std=True)
    lower, upper = model.predict_interval(query, coverage=0.9)
    nll = (np.log(std) + 0.5 * np.log(2 * np.pi) + (y - mean) ** 2 / (2 * std**2)).mean()
    assert found["rows"] == len(y)
    assert found["targets"]["target"] == pytest.approx(
        {
            "rmse": metrics.root_mean_squared_error(y, mean),
            "mae": metrics.mean_absolute_error(y, mean),
            "r2": metrics.r2_score(y, mean),
            "nll": nll,
            "coverage90": ((lower <= y) & (y <= upper)).mean(),
        },
        rel=1e-9,
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["wine", "digits"])
def test_classification_scores_are_those_of_scikit_learn(models, capsys, name, kind):
    table = models / f"{name}_test.{kind}"
    found = evaluated(capsys, table, models / f"{name}.krr", "--chunk-rows", 50)["targets"]["target"]
    model, frame = estimators.load(models / f"{name}.krr"), read(table)
    y, probabilities = frame["target"], model.predict_proba(frame.drop(columns="target"))
    right, confidence = model.classes_[probabilities.argmax(1)] == y, probabilities.max(1)
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in range(15)]
    assert found["accuracy"] == metrics.accuracy_score(y, model.classes_[probabilities.argmax(1)])
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, probabilities, labels=model.classes_), rel=1e-9)
    assert found["calibration_error"] == pytest.approx(sum(gaps) / len(y), rel=1e-9)


def test_a_model_without_names_takes_columns_in_order(models, tmp_path, capsys):
    frame = read(models / "diabetes_train.csv")
    X, y = frame.drop(columns="target").to_numpy(), frame["target"]
    model = estimators.LocalKernelRidgeRegressor(20, kernel="matern32", metric=None, alpha=0.01).fit(X, y)
    model.save(tmp_path / "m.krr")
    scores = evaluated(capsys, models / "diabetes_test.csv", tmp_path / "m.krr", "--target", "target")["targets"]["target"]
    assert scores == pytest.approx(
        evaluated(capsys, models / "diabetes_test.csv", models / "diabetes.krr")["targets"]["target"]
    )


def test_an_unknown_class_is_named(models, tmp_path, capsys):
    text = (models / "wine_test.csv").read_text().replace("class_1", "class_9")
    (tmp_path / "new.csv").write_text(text)
    error = fails(capsys, "evaluate", tmp_path / "new.csv", models / "wine.krr", "--quiet")
    assert "holds the class 'class_9'" in error
    assert "Its classes: class_0, class_1, class_2" in error


@pytest.mark.parametrize(("known", "asked"), [([0, 1, 2], "1.7"), (["cat", "dog", "cow"], "catfish")])
def test_a_class_that_a_cast_would_make_a_known_one_is_unknown(known, asked, tmp_path, capsys):
    table = tmp_path / "t.csv"
    pd.DataFrame({"a": range(30), "y": known * 10}).to_csv(table, index=False)
    # Saved by Python, where classes have the dtype of the labels.
    LocalKernelRidgeClassifier(5, alpha=0.1, kernel="matern32", metric=None).fit(
        pd.DataFrame({"a": range(30)}), np.array(known * 10)
    ).save(tmp_path / "m.krr")
    evaluate = ("evaluate", table, tmp_path / "m.krr", "--target", "y", "--quiet")
    works(*evaluate)
    table.write_text(table.read_text() + f"3,{asked}\n")
    assert f"holds the class '{asked}' in row 31" in fails(capsys, *evaluate)
