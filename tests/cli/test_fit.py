"""What a fit takes from a table, and what it says."""

import numpy as np
import pandas as pd
import pytest
from tests.cli.running import FAST, GOOD, fails, read, with_row, works

from torchkrr import estimators
from torchkrr.cli.reports import describe_choice
from torchkrr.errors import KernelRidgeWarning


def test_what_was_chosen_is_said_in_words(models):
    model = estimators.load(models / "mixed.krr")
    assert describe_choice(model) == "Matern32 kernel, alpha 0.01, 20 neighbors"
    (member,) = model.predictor_.members
    model.predictor_.members = (member._replace(share=0.7), member._replace(share=0.3))
    assert describe_choice(model) == "mix of 2 kernels, of which Matern32 counts most (70 %): alpha 0.01, 20 neighbors"


def test_weights_are_those_of_a_column(models, tmp_path):
    frame = read(models / "diabetes_train.csv").assign(weight=lambda f: np.arange(len(f)) % 3)
    frame.to_csv(tmp_path / "weighted.csv", index=False)
    frame[frame["weight"] > 0].to_csv(tmp_path / "without.csv", index=False)
    for name in ("weighted", "without"):
        wanted = ["--target", "target", "--sample-weight", "weight", *FAST]
        works("fit", tmp_path / f"{name}.csv", *wanted, "--out", tmp_path / f"{name}.krr")
        out = tmp_path / f"{name}_out.csv"
        works("predict", models / "diabetes_test.csv", tmp_path / f"{name}.krr", "--out", out, "--explain", 1, "--quiet")
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


def test_the_index_of_a_frame_is_no_feature(models, tmp_path):
    frame = read(models / "wine_train.csv").sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "t.csv")
    frame.to_parquet(tmp_path / "t.parquet")
    for kind in ("csv", "parquet"):
        works("fit", tmp_path / f"t.{kind}", "--target", "target", "--out", tmp_path / "m.krr", *FAST)
        assert list(estimators.load(tmp_path / "m.krr").feature_names_in_) == [name for name in frame if name != "target"]


def test_columns_that_cannot_be_used_for_a_fit(tmp_path, capsys):
    (tmp_path / "train.csv").write_text(GOOD)
    start, end = ("fit", tmp_path / "train.csv"), ("--out", tmp_path / "m.krr", *FAST)
    assert "no column 'c', named by --categorical" in fails(capsys, *start, "--target", "y", "--categorical", "c", *end)
    assert "no column 'w', named by --sample-weight" in fails(capsys, *start, "--target", "y", "--sample-weight", "w", *end)
    assert "no column 'i', named by --ignore" in fails(capsys, *start, "--target", "y", "--ignore", "i", *end)
    assert "no columns to predict from" in fails(capsys, *start, "--target", "y", "--ignore", "a,b", *end)
    more = ("--target", "a,b", "--task", "classification")
    assert "Classification takes one target" in fails(capsys, *start, *more, *end)
    (tmp_path / "train.csv").write_text(with_row(4, "1,-2,3"))
    assert "missing or negative in row 4" in fails(capsys, *start, "--target", "y", "--sample-weight", "b", *end)


@pytest.mark.parametrize("values", [["yes"] * 30, [True] * 30])
def test_a_single_class_cannot_be_fitted(tmp_path, capsys, values):
    pd.DataFrame({"a": range(30), "y": values}).to_csv(tmp_path / "t.csv", index=False)
    error = fails(
        capsys, "fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m.krr", "--task", "classification"
    )
    assert f"has a single class, '{values[0]}'. Classification needs two or more" in error
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"]


def test_texts_that_hardly_repeat_are_warned_of(tmp_path):
    path = tmp_path / "train.csv"
    rows = [f"{i},2026-01-{i % 28 + 1:02}T{i:02},{'ab'[i % 2]},{2 * i}\n" for i in range(30)]
    path.write_text("a,date,kind,y\n" + "".join(rows))
    with pytest.warns(
        KernelRidgeWarning, match=r"Column 'date' has a different text in almost every row.*--ignore"
    ) as caught:
        works("fit", path, "--target", "y", "--out", tmp_path / "m.krr", *FAST)
    assert len(caught) == 1
    works("fit", path, "--target", "y", "--ignore", "date", "--out", tmp_path / "m.krr", *FAST)
