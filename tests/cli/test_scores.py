"""`torchkrr fit --folds`: the whole procedure on rows that it has not seen."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from sklearn.model_selection import KFold, StratifiedKFold
from tests.cli.running import FAST, fails, works

from torchkrr import estimators
from torchkrr.cli import main
from torchkrr.cli.scores import ClassificationScores, RegressionScores

PARAMETERS = {"kernel": "matern32", "metric": None, "alpha": 0.01}


def fitted(capsys, table, out, *more):
    capsys.readouterr()
    works("fit", table, "--out", out, *more, *FAST, "--json")
    return json.loads(capsys.readouterr().out)


def test_folds_of_numbers_are_those_of_scikit_learn(folder, tmp_path, capsys):
    table = folder / "diabetes_train.csv"
    found = fitted(capsys, table, tmp_path / "m.krr", "--target", "target", "--folds", 3, "--seed", 4)["held_out"]["target"]
    frame = pd.read_csv(table)
    X, y = frame.drop(columns="target"), frame["target"].to_numpy()
    errors, covered = [], []
    for train, test in KFold(3, shuffle=True, random_state=4).split(X):
        model = estimators.LocalKernelRidgeRegressor(20, random_state=4, **PARAMETERS).fit(X.iloc[train], y[train])
        errors.append(metrics.root_mean_squared_error(y[test], model.predict(X.iloc[test])))
        lower, upper = model.predict_interval(X.iloc[test], coverage=0.9)
        covered.append(((lower <= y[test]) & (y[test] <= upper)).mean())
    assert found["rmse"]["folds"] == pytest.approx(errors, rel=1e-9)
    assert found["rmse"]["mean"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert found["rmse"]["standard_error"] == pytest.approx(np.std(errors, ddof=1) / np.sqrt(3), rel=1e-9)
    assert found["coverage90"]["mean"] == pytest.approx(np.mean(covered))


def test_folds_of_classes_have_their_shares(folder, tmp_path, capsys):
    table = folder / "wine_train.csv"
    found = fitted(capsys, table, tmp_path / "m.krr", "--target", "target", "--folds", 4)["held_out"]["target"]
    frame = pd.read_csv(table)
    X, y = frame.drop(columns="target"), frame["target"].to_numpy()
    right, surprise = [], []
    for train, test in StratifiedKFold(4, shuffle=True, random_state=0).split(X, y):
        model = estimators.LocalKernelRidgeClassifier(20, **PARAMETERS).fit(X.iloc[train], y[train])
        right.append((model.predict(X.iloc[test]) == y[test]).mean())
        surprise.append(metrics.log_loss(y[test], model.predict_proba(X.iloc[test]), labels=model.classes_))
    assert found["accuracy"]["folds"] == pytest.approx(right)
    assert found["log_loss"]["folds"] == pytest.approx(surprise, rel=1e-9)


def test_all_choices_are_made_again_in_each_fold(folder, tmp_path, monkeypatch):
    seen = []
    fit = estimators.LocalKernelRidgeRegressor.fit

    def watched(self, X, y, sample_weight=None, **names):
        seen.append((len(X), self.alpha, hasattr(self, "_predictor")))
        fit(self.set_params(alpha=0.01), X, y, sample_weight, **names)
        return self.set_params(alpha="auto")

    monkeypatch.setattr(estimators.LocalKernelRidgeRegressor, "fit", watched)
    pd.read_csv(folder / "diabetes_train.csv")[:60].to_csv(tmp_path / "t.csv", index=False)
    given = ["--kernel", "matern32", "--metric", "none", "--neighbors", "10", "--quiet", "--folds", 3]
    works("fit", tmp_path / "t.csv", "--target", "target", "--out", tmp_path / "m.krr", *given)
    assert seen == [(60, "auto", False)] + 3 * [(40, "auto", False)]


def test_the_model_is_that_of_all_rows_and_the_report_says_both(folder, tmp_path, capsys):
    given = ["fit", folder / "diabetes_train.csv", "--target", "target", *FAST[:-1]]
    works(*given, "--out", tmp_path / "plain.krr")
    assert "held out" not in capsys.readouterr().out
    works(*given, "--out", tmp_path / "folds.krr", "--folds", 3)
    out, err = capsys.readouterr()
    assert (tmp_path / "plain.krr").read_bytes() == (tmp_path / "folds.krr").read_bytes()
    line = next(line for line in out.splitlines() if line.startswith("held out"))
    assert line.startswith("held out  RMSE ")
    assert " ± " in line
    assert " (3 folds), coverage of 90 % 0." in line
    assert "holding out folds: 100%" in err


def test_several_targets_are_each_named(folder, tmp_path, capsys):
    given = ["fit", folder / "diabetes_train.csv", "--target", "target,bmi", "--out", tmp_path / "m.krr", *FAST[:-1]]
    works(*given, "--folds", 2)
    out = capsys.readouterr().out
    assert "held out  RMSE of target " in out
    assert "held out  RMSE of bmi " in out


def test_rows_of_weight_zero_are_neither_learned_nor_tested(folder, tmp_path, capsys):
    frame = pd.read_csv(folder / "diabetes_train.csv").assign(weight=lambda f: np.arange(len(f)) % 3)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    frame[frame["weight"] > 0].to_csv(tmp_path / "without.csv", index=False)
    wanted = ["--target", "target", "--sample-weight", "weight", "--folds", 3]
    with_zeros, without = (
        fitted(capsys, tmp_path / f"{name}.csv", tmp_path / "m.krr", *wanted)["held_out"]["target"]["rmse"]["folds"]
        for name in ("weighted", "without")
    )
    assert with_zeros == pytest.approx(without, rel=1e-9)


def test_a_row_of_weight_two_is_scored_as_two_rows():
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 4, 30)
    columns = [rng.normal(size=30), rng.normal(size=30), rng.uniform(1, 2, 30), np.full(30, -1.0), np.full(30, 1.0)]
    weighted, repeated = RegressionScores(), RegressionScores()
    for part in (slice(12), slice(12, 30)):
        weighted.add(*(one[part] for one in columns), weights[part])
    repeated.add(*(one.repeat(weights) for one in columns))
    assert weighted.result() == pytest.approx(repeated.result(), rel=1e-12)

    codes, chances = rng.integers(0, 3, 30), rng.dirichlet(np.ones(3), 30)
    classes, again = ClassificationScores(), ClassificationScores()
    classes.add(codes, chances, weights)
    again.add(codes.repeat(weights), chances.repeat(weights, axis=0))
    assert classes.result() == pytest.approx(again.result(), rel=1e-12)


def test_gaps_text_and_a_rare_class(folder, tmp_path, capsys):
    found = fitted(
        capsys, folder / "mixed_train.csv", tmp_path / "m.krr", "--target", "price", "--ignore", "key", "--folds", 2
    )
    assert found["held_out"]["price"]["rmse"]["mean"] > 0
    frame = pd.DataFrame({"a": np.linspace(0, 1, 22), "y": ["x"] * 10 + ["y"] * 10 + ["z"] * 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = fitted(capsys, tmp_path / "t.csv", tmp_path / "m.krr", "--target", "y", "--folds", 5)
    assert 0 < found["held_out"]["y"]["accuracy"]["mean"] <= 1


@pytest.mark.parametrize(
    ("labels", "folds", "message"),
    [
        (["x"] * 5 + ["y"], 2, "Class 'y' has a single row"),
        (["x"] * 3 + ["y"] * 3, 4, "needs a class with at least 4 rows; the largest has 3"),
        ([0.5, 1.5, 2.5], 4, "--folds 4 needs at least 4 rows, got 3"),
    ],
)
def test_too_few_rows_for_the_folds(tmp_path, capsys, labels, folds, message):
    pd.DataFrame({"a": range(len(labels)), "y": labels}).to_csv(tmp_path / "t.csv", index=False)
    end = ["--out", tmp_path / "m.krr", "--folds", folds, *FAST]
    assert message in fails(capsys, "fit", tmp_path / "t.csv", "--target", "y", *end)
    assert os.listdir(tmp_path) == ["t.csv"]


def test_one_fold_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "t.csv", "--target", "a", "--out", "m.krr", "--folds", "1"])
    assert stopped.value.code == 2
    assert "argument --folds: must be a whole number of at least 2, such as 5, got '1'" in capsys.readouterr().err
