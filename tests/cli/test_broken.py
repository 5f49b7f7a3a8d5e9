"""What is wrong with what was given is said in one paragraph, and nothing is written."""

import os
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from tests.cli.running import FAST, fails, works

import torchkrr
from torchkrr.cli import main
from torchkrr.errors import FileError, KernelRidgeWarning
from torchkrr.estimators import LocalKernelRidgeClassifier
from torchkrr.experiments.heads import Head, write_head

GOOD = "a,b,y\n" + "".join(f"{i},{i % 7},{2 * i}\n" for i in range(30))
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def with_row(row, text):
    lines = GOOD.splitlines()
    lines[row] = text
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", "is empty"),
        ("\n\n", "has no header"),
        ("a,b,y\n", "has a header but no rows"),
        (GOOD.replace(",", ";"), r"has a single column, 'a;b;y'.*looks separated by ';': pass it as --delimiter"),
        (GOOD.replace(",", "\t"), r"looks separated by '\\t' \(a tab\)"),
        (GOOD.replace("a,b,y", "a,a,y"), "has two columns named 'a'"),
        (GOOD.replace("a,b,y", "a,b,z"), r"has no column 'y', named by --target.*Its columns: a, b, z"),
        (GOOD.replace("a,b,y", "a,y"), r"Row 1 of .* has 3 values, but the header has 2 columns"),
        (with_row(12, "1,2"), r"Row 12 of .* has 2 values, but the header has 3 columns"),
        (with_row(12, "1,two,3"), r"Column 'b' of .* holds numbers, but row 12 holds 'two'.*--categorical"),
        (with_row(12, "inf,2,3"), r"Column 'a' of .* holds an infinite value in row 12"),
        (with_row(12, "1,2,"), r"Target 'y' of .* is missing in row 12"),
        (with_row(12, "1,2,many"), r"Column 'y' of .* must hold numbers, but row 12 holds 'many'"),
        (PNG, "is not a text file"),
        (GOOD.replace("a,b", "größe,b").encode("latin1"), "is not encoded in UTF-8"),
        (with_row(3, "1,é,3").encode("latin1"), "is not encoded in UTF-8"),
        (b"PAR1" + PNG, "is a Parquet file. Rename it"),
    ],
)
def test_a_broken_training_table(tmp_path, capsys, contents, message):
    path = tmp_path / "train.csv"
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    error = fails(capsys, "fit", path, "--target", "y", "--out", tmp_path / "m.krr", *FAST)
    assert re.search(message, error), error
    assert os.listdir(tmp_path) == ["train.csv"]


@pytest.fixture
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "train.csv").write_text(GOOD)
    works("fit", folder / "train.csv", "--target", "y", "--out", folder / "m.krr", *FAST)
    return folder / "m.krr"


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (GOOD.replace("a,b,y", "a,bb,y"), r"has no column 'b', which the model was fitted with. Did you mean 'bb'\?"),
        (with_row(12, "1,two,3"), r"Column 'b' of .* must hold numbers, but row 12 holds 'two'"),
        (GOOD + "1,2\n", r"Row 31 of .* has 2 values"),
        ("a,b,y\n", "has a header but no rows"),
    ],
)
def test_a_broken_table_to_predict(model, tmp_path, capsys, command, contents, message):
    (tmp_path / "new.csv").write_text(contents)
    (tmp_path / "old.csv").write_text("kept")
    more = ["--out", tmp_path / "old.csv"] if command == "predict" else []
    error = fails(capsys, command, model, tmp_path / "new.csv", "--chunk-rows", 5, *more, "--quiet")
    assert re.search(message, error), error
    assert sorted(os.listdir(tmp_path)) == ["new.csv", "old.csv"]
    assert (tmp_path / "old.csv").read_text() == "kept"


def test_a_value_far_down_is_named_with_its_row(model, tmp_path, capsys):
    rows = [f"{i}.25,{i % 7},0" for i in range(120_000)]
    rows[99_999] = "1,many,0"
    (tmp_path / "new.csv").write_text("a,b,y\n" + "\n".join(rows))
    error = fails(capsys, "predict", model, tmp_path / "new.csv", "--out", tmp_path / "o.csv", "--quiet")
    assert "row 100000 holds 'many'" in error
    rows[99_999] = "1,2,3,4"
    (tmp_path / "new.csv").write_text("a,b,y\n" + "\n".join(rows))
    error = fails(capsys, "predict", model, tmp_path / "new.csv", "--out", tmp_path / "o.csv", "--quiet")
    assert "Row 100000 of" in error
    assert os.listdir(tmp_path) == ["new.csv"]


def test_files_that_are_not_there(model, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(GOOD)
    new, out = tmp_path / "new.csv", tmp_path / "o.csv"
    assert "cannot be read: No such file" in fails(capsys, "predict", model, tmp_path / "nowhere.csv", "--out", out)
    assert "cannot be read: No such file" in fails(capsys, "predict", tmp_path / "no.krr", new, "--out", out)
    assert "cannot be read: Is a directory" in fails(capsys, "evaluate", tmp_path, new)
    assert "nowhere for the file o.csv does not exist" in fails(
        capsys, "predict", model, new, "--out", tmp_path / "nowhere/o.csv"
    )
    wanted = ["--target", "y", *FAST]
    assert "does not exist" in fails(capsys, "fit", new, *wanted, "--out", tmp_path / "nowhere/m.krr")
    assert os.listdir(tmp_path) == ["new.csv"]


def test_files_of_another_kind(model, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(GOOD)
    (tmp_path / "new.parquet").write_text(GOOD)
    (tmp_path / "new.xlsx").write_text(GOOD)
    new, out = tmp_path / "new.csv", tmp_path / "o.csv"
    assert "begins with the text 'a,b,y" in fails(capsys, "predict", new, new, "--out", out)
    assert "is not a Parquet file, or is damaged" in fails(capsys, "predict", model, tmp_path / "new.parquet", "--out", out)
    assert "must end in .csv" in fails(capsys, "predict", model, tmp_path / "new.xlsx", "--out", out)
    assert "o.txt must end in .csv or" in fails(capsys, "predict", model, new, "--out", tmp_path / "o.txt")


def test_a_cut_parquet_file_and_one_with_dates(model, tmp_path, capsys):
    path = tmp_path / "new.parquet"
    frame = pd.DataFrame({"a": range(9), "b": 1.0})
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "is not a Parquet file, or is damaged" in fails(capsys, "predict", model, path, "--out", tmp_path / "o.csv")
    pa.parquet.write_table(pa.table({"a": pa.array([1, 2], pa.date32()), "b": [1, 2]}), path)
    error = fails(capsys, "predict", model, path, "--out", tmp_path / "o.csv", "--quiet")
    assert "Column 'a'" in error
    assert "has the type date32[day]" in error


def test_options_that_do_not_fit_the_model(model, models, tmp_path, capsys):
    wine, out = (models / "wine.krr", models / "wine_test.csv"), ("--out", tmp_path / "o.csv")
    assert "predicts classes, for which there is no --interval" in fails(capsys, "predict", *wine, *out, "--interval", 0.9)
    assert "predicts classes, for which there is no --std" in fails(capsys, "predict", *wine, *out, "--std")
    (tmp_path / "new.csv").write_text(GOOD.replace("a,b,y", "a,b,std"))
    new = (model, tmp_path / "new.csv")
    assert "predicts numbers, for which there is no --proba" in fails(capsys, "predict", *new, *out, "--proba")
    assert "no column 'key', named by --id" in fails(capsys, "predict", *new, *out, "--id", "key")
    assert "a column 'std' of its own" in fails(capsys, "predict", *new, *out, "--id", "std", "--std", "--quiet")
    assert "has no column 'y', the target" in fails(capsys, "evaluate", *new)
    assert "predicts 1 targets, got 2" in fails(capsys, "evaluate", *new, "--target", "a,std")
    assert os.listdir(tmp_path) == ["new.csv"]


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_column_under_another_name_is_offered(models, tmp_path, capsys, command):
    more = ["--out", tmp_path / "o.csv"] if command == "predict" else []
    text = (models / "diabetes_test.csv").read_text()
    for other in ("BMI", "bmi ", "bmj"):
        (tmp_path / "new.csv").write_text(text.replace("bmi", other))
        error = fails(capsys, command, models / "diabetes.krr", tmp_path / "new.csv", *more, "--quiet")
        assert f"has no column 'bmi', which the model was fitted with. Did you mean '{other}'?" in error


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_head_of_images_is_sent_to_classify(models, tmp_path, capsys, command):
    head, more = tmp_path / "head.safetensors", ["--out", tmp_path / "o.csv"] if command == "predict" else []
    layer = torchkrr.nn.LocalKernelRidge(torch.randn(9, 4), torch.eye(3).repeat(3, 1), 5)
    write_head(head, Head(layer, 0.1, ["cat", "dog", "owl"], [f"{i}.png" for i in range(9)], None))
    error = fails(capsys, command, head, models / "wine_test.csv", *more)
    assert "is a head for images" in error
    assert f"torchkrr classify {head}" in error
    with pytest.raises(FileError, match="is a head for images"):
        LocalKernelRidgeClassifier.load(head)


def test_an_unknown_class_is_named(models, tmp_path, capsys):
    text = (models / "wine_test.csv").read_text().replace("class_1", "class_9")
    (tmp_path / "new.csv").write_text(text)
    error = fails(capsys, "evaluate", models / "wine.krr", tmp_path / "new.csv", "--quiet")
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
    evaluate = ("evaluate", tmp_path / "m.krr", table, "--target", "y", "--quiet")
    works(*evaluate)
    table.write_text(table.read_text() + f"3,{asked}\n")
    assert f"holds the class '{asked}' in row 31" in fails(capsys, *evaluate)


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


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["fit", "t.csv", "--out", "m.krr"],
        ["fit", "t.csv", "--target", "a,,b", "--out", "m.krr"],
        ["fit", "t.csv", "--target", "a", "--out", "m.krr", "--neighbors", "0"],
        ["fit", "t.csv", "--target", "a", "--out", "m.krr", "--metric", "round"],
        ["predict", "m.krr", "t.csv", "--out", "o.csv", "--interval", "90"],
        ["predict", "m.krr", "t.csv", "--out", "o.csv", "--explain", "-1"],
        ["predict", "m.krr", "t.csv", "--out", "o.csv", "--chunk-rows", "0"],
        ["evaluate", "m.krr", "t.csv", "--delimiter", ";;"],
    ],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: torchkrr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--alpha", "must be auto or a number that is not negative, got 'abc'"),
        ("--neighbors", "must be auto or a whole number of at least 1, got 'abc'"),
    ],
)
def test_a_value_that_may_be_auto_says_so(option, message, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "t.csv", "--target", "a", "--out", "m.krr", option, "abc"])
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_debug_shows_where_an_error_comes_from(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "m.krr"), "t.csv", "--debug"]) == 1
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("torchkrr: The model")


def test_a_missing_package_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = fails(capsys, "evaluate", "m.krr", "t.csv")
    assert 'The command line needs pyarrow, which is not installed: pip install "torchkrr[cli]".' in error


def test_what_is_read_is_not_replaced(model, tmp_path, capsys):
    table, link = tmp_path / "test.csv", tmp_path / "link.csv"
    table.write_text(GOOD)
    link.symlink_to(table)
    for command in (
        ("predict", model, table, "--out", table),
        ("predict", model, table, "--out", link),
        ("fit", table, "--target", "y", "--out", table, *FAST),
    ):
        assert "is read, and the result would take its place" in fails(capsys, *command)
    assert table.read_text() == GOOD


def test_a_folder_is_no_table(tmp_path, capsys):
    assert "is a folder. Name a file in it" in fails(
        capsys, "fit", tmp_path, "--target", "y", "--out", tmp_path / "m", *FAST
    )


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--threads", "99999"),
        ("fit", "t.csv", "--target", "y", "--out", "m", "--alpha", "-1"),
        ("fit", "t.csv", "--target", "y", "--out", "m", "--seed", "-1"),
        ("transfer", "--pooling", "median"),
        ("probe", "--test-share", "2"),
    ],
)
def test_values_that_an_option_cannot_have_are_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    assert f"argument {arguments[-2]}" in capsys.readouterr().err
