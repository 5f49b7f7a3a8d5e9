"""What the commands write is what the estimators say."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from tests.cli.conftest import write
from tests.cli.running import FAST, works

from torchkrr import estimators
from torchkrr.cli.fit import describe_choice


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def evaluated(capsys, *arguments):
    capsys.readouterr()
    works("evaluate", *arguments, "--json")
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("written", ["csv", "parquet"])
def test_predictions_are_those_of_the_estimator(models, tmp_path, kind, written):
    table, out = models / f"diabetes_test.{kind}", tmp_path / f"out.{written}"
    wanted = ["--interval", 0.8, "--std", "--explain", 4, "--id", "age", "--quiet"]
    works("predict", models / "diabetes.krr", table, "--out", out, *wanted)
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
    works("predict", models / "diabetes.krr", models / "diabetes_test.csv", "--out", tmp_path / "o.csv", "--explain", 20)
    found, train = read(tmp_path / "o.csv"), read(models / "diabetes_train.csv")
    total = sum(found[f"weight_{k}"] * train["target"].to_numpy()[found[f"row_{k}"] - 1] for k in range(1, 21))
    np.testing.assert_allclose(total, found["prediction"], rtol=1e-9)


@pytest.mark.parametrize("name", ["wine", "digits"])
def test_classes_and_probabilities(models, tmp_path, name):
    table = models / f"{name}_test.csv"
    works("predict", models / f"{name}.krr", table, "--out", tmp_path / "o.parquet", "--proba", "--quiet")
    found, frame = read(tmp_path / "o.parquet"), read(table)
    model = estimators.load(models / f"{name}.krr")
    probabilities = found[[f"probability_{label}" for label in model.classes_]].to_numpy()
    np.testing.assert_array_equal(probabilities, model.predict_proba(frame.drop(columns="target")))
    assert (found["prediction"] == frame["target"]).mean() > 0.9
    assert found["prediction"].dtype == frame["target"].dtype


@pytest.mark.parametrize("chunk", [7, 10_000])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_regression_scores_are_those_of_scikit_learn(models, capsys, chunk, kind):
    table = models / f"diabetes_test.{kind}"
    found = evaluated(capsys, models / "diabetes.krr", table, "--chunk-rows", chunk)
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
    found = evaluated(capsys, models / f"{name}.krr", table, "--chunk-rows", 50)["targets"]["target"]
    model, frame = estimators.load(models / f"{name}.krr"), read(table)
    y, probabilities = frame["target"], model.predict_proba(frame.drop(columns="target"))
    right, confidence = model.classes_[probabilities.argmax(1)] == y, probabilities.max(1)
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs(right[bins == b].sum() - confidence[bins == b].sum()) for b in range(15)]
    assert found["accuracy"] == metrics.accuracy_score(y, model.classes_[probabilities.argmax(1)])
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, probabilities, labels=model.classes_), rel=1e-9)
    assert found["calibration_error"] == pytest.approx(sum(gaps) / len(y), rel=1e-9)


def test_csv_and_parquet_are_read_alike(models, tmp_path):
    for kind in ("csv", "parquet"):
        works(
            "predict", models / "mixed.krr", models / f"mixed_test.{kind}", "--out", tmp_path / f"{kind}.csv", "--id", "key"
        )
    assert (tmp_path / "csv.csv").read_text() == (tmp_path / "parquet.csv").read_text()


def test_columns_are_taken_for_what_they_hold(models):
    model = estimators.load(models / "mixed.krr")
    kinds = dict(zip(model.feature_names_in_, model._encoder.columns, strict=True))
    assert {name: column.kind for name, column in kinds.items()} == {
        "size": "number",
        "color": "few",
        "zone": "few",
        "code": "few",
        "balcony": "number",
    }
    assert kinds["code"].levels == ("02134", "2134", "94110")
    assert kinds["zone"].levels == ("1.0", "2.0", "7.0")
    assert kinds["color"].levels == ("dark, blue", "green", "red", None)
    assert kinds["size"].indicator


def test_a_frame_of_pandas_is_predicted_as_its_file_is(models, tmp_path):
    works("predict", models / "mixed.krr", models / "mixed_test.csv", "--out", tmp_path / "o.csv", "--quiet")
    frame = pd.read_csv(models / "mixed_test.csv", dtype={"code": str})
    model = estimators.load(models / "mixed.krr")
    np.testing.assert_array_equal(
        read(tmp_path / "o.csv")["prediction"], model.predict(frame[list(model.feature_names_in_)])
    )


def test_the_size_of_the_parts_changes_nothing_but_rounding(models, tmp_path):
    for rows in (7, 10_000):
        wanted = ["--chunk-rows", rows, "--interval", 0.9, "--explain", 3, "--id", "key"]
        works("predict", models / "mixed.krr", models / "mixed_test.csv", "--out", tmp_path / f"{rows}.csv", *wanted)
    pd.testing.assert_frame_equal(read(tmp_path / "7.csv"), read(tmp_path / "10000.csv"), rtol=1e-9)


def test_what_was_chosen_is_said_in_words(models):
    model = estimators.load(models / "mixed.krr")
    assert describe_choice(model) == "Matern32 kernel, alpha 0.01, 20 neighbors"
    (member,) = model._predictor.members
    model._predictor.members = (member._replace(share=0.7), member._replace(share=0.3))
    assert describe_choice(model) == "mix of 2 kernels, of which Matern32 counts most (70 %): alpha 0.01, 20 neighbors"


def test_several_targets(models, tmp_path, capsys):
    train = models / "diabetes_train.csv"
    works("fit", train, "--target", "target,bmi", "--out", tmp_path / "two.krr", *FAST)
    test = models / "diabetes_test.csv"
    works("predict", tmp_path / "two.krr", test, "--out", tmp_path / "o.csv", "--std", "--quiet")
    assert list(read(tmp_path / "o.csv")) == ["prediction_target", "std_target", "prediction_bmi", "std_bmi"]
    scores = evaluated(capsys, tmp_path / "two.krr", test)["targets"]
    y = read(test)
    for name in ("target", "bmi"):
        expected = metrics.root_mean_squared_error(y[name], read(tmp_path / "o.csv")[f"prediction_{name}"])
        assert scores[name]["rmse"] == pytest.approx(expected, rel=1e-9)


def test_weights_are_those_of_a_column(models, tmp_path):
    frame = read(models / "diabetes_train.csv").assign(weight=lambda f: np.arange(len(f)) % 3)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    frame[frame["weight"] > 0].to_csv(tmp_path / "without.csv", index=False)
    for name in ("weighted", "without"):
        wanted = ["--target", "target", "--sample-weight", "weight", *FAST]
        works("fit", tmp_path / f"{name}.csv", *wanted, "--out", tmp_path / f"{name}.krr")
        out = tmp_path / f"{name}_out.csv"
        works("predict", tmp_path / f"{name}.krr", models / "diabetes_test.csv", "--out", out, "--explain", 1, "--quiet")
    weighted, without = read(tmp_path / "weighted_out.csv"), read(tmp_path / "without_out.csv")
    np.testing.assert_allclose(weighted["prediction"], without["prediction"], rtol=1e-9)
    # Rows keep their numbers in the file.
    assert (frame["weight"].to_numpy()[weighted["row_1"] - 1] > 0).all()


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["yes", "no", "no", "maybe"], "LocalKernelRidgeClassifier"),
        (["true", "false", "true", "true"], "LocalKernelRidgeClassifier"),
        ([0, 1, 1, 0], "LocalKernelRidgeClassifier"),
        ([0, 1, 2, 0], "LocalKernelRidgeRegressor"),
        ([0.5, 1.5, 1.5, 0.5], "LocalKernelRidgeRegressor"),
    ],
)
def test_the_task_follows_the_target(tmp_path, values, task):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 24), "y": values * 6})
    frame.to_csv(tmp_path / "t.csv", index=False)
    works("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m.krr", *FAST)
    assert type(estimators.load(tmp_path / "m.krr")).__name__ == task


def test_a_model_without_names_takes_columns_in_order(models, tmp_path, capsys):
    frame = read(models / "diabetes_train.csv")
    X, y = frame.drop(columns="target").to_numpy(), frame["target"]
    model = estimators.LocalKernelRidgeRegressor(20, kernel="matern32", metric=None, alpha=0.01).fit(X, y)
    model.save(tmp_path / "m.krr")
    scores = evaluated(capsys, tmp_path / "m.krr", models / "diabetes_test.csv", "--target", "target")["targets"]["target"]
    assert scores == pytest.approx(
        evaluated(capsys, models / "diabetes.krr", models / "diabetes_test.csv")["targets"]["target"]
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_truth_values_that_were_categories_in_python_are_known_in_files(tmp_path, kind):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=60), "balcony": rng.choice([True, False], 60)})
    y = frame["size"] + 5 * frame["balcony"]
    model = estimators.LocalKernelRidgeRegressor(
        20, kernel="matern32", metric=None, alpha=0.01, categorical_features=["balcony"]
    ).fit(frame, y)
    model.save(tmp_path / "m.krr")
    write(frame, tmp_path, "new")
    works("predict", tmp_path / "m.krr", tmp_path / f"new.{kind}", "--out", tmp_path / "o.csv", "--quiet")
    np.testing.assert_allclose(read(tmp_path / "o.csv")["prediction"], model.predict(frame), rtol=1e-9)


def test_other_delimiters_and_compressed_files(models, tmp_path):
    frame = pd.read_csv(models / "mixed_test.csv", dtype=str)
    frame.to_csv(tmp_path / "semicolons.csv", sep=";", index=False)
    frame.to_csv(tmp_path / "tabs.tsv", sep="\t", index=False)
    frame.to_csv(tmp_path / "packed.csv.gz", index=False)
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbf" + (models / "mixed_test.csv").read_bytes())
    found = []
    for name, more in {
        "semicolons.csv": ["--delimiter", ";"],
        "tabs.tsv": [],
        "packed.csv.gz": [],
        "marked.csv": [],
    }.items():
        works("predict", models / "mixed.krr", tmp_path / name, "--out", tmp_path / "o.csv", *more, "--quiet")
        found.append((tmp_path / "o.csv").read_text())
    assert len(set(found)) == 1


def test_carried_text_is_quoted_where_it_must_be(models, tmp_path):
    works(
        "predict", models / "mixed.krr", models / "mixed_test.csv", "--out", tmp_path / "o.csv", "--id", "color", "--quiet"
    )
    text = (tmp_path / "o.csv").read_text()
    assert '\n"dark, blue",' in text
    assert list(read(tmp_path / "o.csv")["color"].fillna("")) == list(read(models / "mixed_test.csv")["color"].fillna(""))
    works("predict", models / "mixed.krr", models / "mixed_test.csv", "--out", tmp_path / "o.csv", "--id", "code", "--quiet")
    assert '"' not in (tmp_path / "o.csv").read_text()


def test_the_index_of_a_frame_is_no_feature(models, tmp_path):
    frame = read(models / "wine_train.csv").sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "t.csv")
    frame.to_parquet(tmp_path / "t.parquet")
    for kind in ("csv", "parquet"):
        works("fit", tmp_path / f"t.{kind}", "--target", "target", "--out", tmp_path / "m.krr", *FAST)
        assert list(estimators.load(tmp_path / "m.krr").feature_names_in_) == [name for name in frame if name != "target"]
