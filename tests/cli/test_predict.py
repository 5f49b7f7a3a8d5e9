"""Tables of predictions are what the estimators predict."""

import os

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.cli.running import FAST, GOOD, evaluated, fails, read, works

from torchkrr import distributed, estimators


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("written", ["csv", "parquet"])
def test_predictions_are_those_of_the_estimator(models, tmp_path, kind, written):
    table, out = models / f"diabetes_test.{kind}", tmp_path / f"out.{written}"
    wanted = ["--interval", 0.8, "--std", "--explain", 4, "--id", "age", "--quiet"]
    works("predict", table, models / "diabetes.krr", "--out", out, *wanted)
    model, query = estimators.load(models / "diabetes.krr"), read(table).drop(columns="target")
    # A value of a CSV file is carried as it is written.
    found, expected = read(out).astype({"age": float}), {"age": query["age"]}
    expected["prediction"], expected["std"] = model.predict(query, return_std=True)
    expected["lower"], expected["upper"] = model.predict_interval(query, coverage=0.8)
    rows, weights = model.explain(query, n_rows=4)
    for at in range(4):
        expected |= {f"row_{at + 1}": rows[:, at] + 1, f"weight_{at + 1}": weights[:, at]}
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected), check_exact=True)


def test_rows_named_by_an_explanation_reproduce_the_prediction(models, tmp_path):
    works("predict", models / "diabetes_test.csv", models / "diabetes.krr", "--out", tmp_path / "o.csv", "--explain", 20)
    found, train = read(tmp_path / "o.csv"), read(models / "diabetes_train.csv")
    total = sum(found[f"weight_{k}"] * train["target"].to_numpy()[found[f"row_{k}"] - 1] for k in range(1, 21))
    np.testing.assert_allclose(total, found["prediction"], rtol=1e-9)


@pytest.mark.parametrize("name", ["wine", "digits"])
def test_classes_and_probabilities(models, tmp_path, name):
    table = models / f"{name}_test.csv"
    works("predict", table, models / f"{name}.krr", "--out", tmp_path / "o.parquet", "--proba", "--quiet")
    found, frame = read(tmp_path / "o.parquet"), read(table)
    model = estimators.load(models / f"{name}.krr")
    probabilities = found[[f"probability_{label}" for label in model.classes_]].to_numpy()
    np.testing.assert_array_equal(probabilities, model.predict_proba(frame.drop(columns="target")))
    assert (found["prediction"] == frame["target"]).mean() > 0.9
    assert found["prediction"].dtype == frame["target"].dtype


def test_a_frame_of_pandas_is_predicted_as_its_file_is(models, tmp_path):
    works("predict", models / "mixed_test.csv", models / "mixed.krr", "--out", tmp_path / "o.csv", "--quiet")
    frame = pd.read_csv(models / "mixed_test.csv", dtype={"code": str})
    model = estimators.load(models / "mixed.krr")
    np.testing.assert_array_equal(
        read(tmp_path / "o.csv")["prediction"], model.predict(frame[list(model.feature_names_in_)])
    )


def test_the_size_of_the_parts_changes_nothing_but_rounding(models, tmp_path):
    for rows in (7, 10_000):
        wanted = ["--chunk-rows", rows, "--interval", 0.9, "--explain", 3, "--id", "key"]
        works("predict", models / "mixed_test.csv", models / "mixed.krr", "--out", tmp_path / f"{rows}.csv", *wanted)
    pd.testing.assert_frame_equal(read(tmp_path / "7.csv"), read(tmp_path / "10000.csv"), rtol=1e-9)


def test_several_targets(models, tmp_path, capsys):
    train = models / "diabetes_train.csv"
    works("fit", train, "--target", "target,bmi", "--out", tmp_path / "two.krr", *FAST)
    test = models / "diabetes_test.csv"
    works("predict", test, tmp_path / "two.krr", "--out", tmp_path / "o.csv", "--std", "--quiet")
    assert list(read(tmp_path / "o.csv")) == ["prediction_target", "std_target", "prediction_bmi", "std_bmi"]
    scores = evaluated(capsys, test, tmp_path / "two.krr")["targets"]
    y = read(test)
    for name in ("target", "bmi"):
        expected = metrics.root_mean_squared_error(y[name], read(tmp_path / "o.csv")[f"prediction_{name}"])
        assert scores[name]["rmse"] == pytest.approx(expected, rel=1e-9)


def test_options_that_do_not_fit_the_model(model, models, tmp_path, capsys):
    wine, out = (models / "wine_test.csv", models / "wine.krr"), ("--out", tmp_path / "o.csv")
    assert "predicts classes, for which there is no --interval" in fails(capsys, "predict", *wine, *out, "--interval", 0.9)
    assert "predicts classes, for which there is no --std" in fails(capsys, "predict", *wine, *out, "--std")
    (tmp_path / "new.csv").write_text(GOOD.replace("a,b,y", "a,b,std"))
    new = (tmp_path / "new.csv", model)
    assert "predicts numbers, for which there is no --proba" in fails(capsys, "predict", *new, *out, "--proba")
    assert "no column 'key', named by --id" in fails(capsys, "predict", *new, *out, "--id", "key")
    assert "a column 'std' of its own" in fails(capsys, "predict", *new, *out, "--id", "std", "--std", "--quiet")
    assert "has no column 'y', the target" in fails(capsys, "evaluate", *new)
    assert "predicts 1 targets, got 2" in fails(capsys, "evaluate", *new, "--target", "a,std")
    assert os.listdir(tmp_path) == ["new.csv"]


def test_several_processes_need_a_file_to_write(models, capsys, monkeypatch):
    monkeypatch.setattr(distributed, "is_launched", lambda: True)
    error = fails(capsys, "predict", models / "wine_test.csv", models / "wine.krr")
    assert "Several processes write one file of predictions. Name it: --out FILE." in error


def test_sets_are_those_of_the_estimator_and_no_option_of_numbers(models, model, tmp_path, capsys):
    wine, out = (models / "wine_test.csv", models / "wine.krr"), ("--out", tmp_path / "o.csv", "--quiet")
    works("predict", *wine, "--set", 0.8, *out)
    fitted, query = estimators.load(models / "wine.krr"), read(models / "wine_test.csv").drop(columns="target")
    found = read(tmp_path / "o.csv")[[f"set_{label}" for label in fitted.classes_]].to_numpy()
    np.testing.assert_array_equal(found, fitted.predict_set(query, coverage=0.8))
    (tmp_path / "new.csv").write_text(GOOD)
    error = fails(capsys, "predict", tmp_path / "new.csv", model, "--set", 0.8, *out)
    assert "predicts numbers, for which there is no --set" in error
