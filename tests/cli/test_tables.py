"""Tables are read alike from CSV and Parquet; what is wrong with one is said in one paragraph, and nothing is written."""

import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.cli.conftest import write
from tests.cli.running import FAST, GOOD, fails, read, with_row, works

from torchkrr import estimators

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def test_csv_and_parquet_are_read_alike(models, tmp_path):
    for kind in ("csv", "parquet"):
        works(
            "predict", models / f"mixed_test.{kind}", models / "mixed.krr", "--out", tmp_path / f"{kind}.csv", "--id", "key"
        )
    assert (tmp_path / "csv.csv").read_text() == (tmp_path / "parquet.csv").read_text()


def test_columns_are_taken_for_what_they_hold(models):
    model = estimators.load(models / "mixed.krr")
    kinds = dict(zip(model.feature_names_in_, model.encoder_.columns, strict=True))
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
    works("predict", tmp_path / f"new.{kind}", tmp_path / "m.krr", "--out", tmp_path / "o.csv", "--quiet")
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
        works("predict", tmp_path / name, models / "mixed.krr", "--out", tmp_path / "o.csv", *more, "--quiet")
        found.append((tmp_path / "o.csv").read_text())
    assert len(set(found)) == 1


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
    error = fails(capsys, command, tmp_path / "new.csv", model, "--chunk-rows", 5, *more, "--quiet")
    assert re.search(message, error), error
    assert sorted(os.listdir(tmp_path)) == ["new.csv", "old.csv"]
    assert (tmp_path / "old.csv").read_text() == "kept"


def test_a_value_far_down_is_named_with_its_row(model, tmp_path, capsys):
    rows = [f"{i}.25,{i % 7},0" for i in range(120_000)]
    rows[99_999] = "1,many,0"
    (tmp_path / "new.csv").write_text("a,b,y\n" + "\n".join(rows))
    error = fails(capsys, "predict", tmp_path / "new.csv", model, "--out", tmp_path / "o.csv", "--quiet")
    assert "row 100000 holds 'many'" in error
    rows[99_999] = "1,2,3,4"
    (tmp_path / "new.csv").write_text("a,b,y\n" + "\n".join(rows))
    error = fails(capsys, "predict", tmp_path / "new.csv", model, "--out", tmp_path / "o.csv", "--quiet")
    assert "Row 100000 of" in error
    assert os.listdir(tmp_path) == ["new.csv"]


def test_files_that_are_not_there(model, tmp_path, capsys):
    (tmp_path / "new.csv").write_text(GOOD)
    new, out = tmp_path / "new.csv", tmp_path / "o.csv"
    assert "cannot be read: No such file" in fails(capsys, "predict", tmp_path / "nowhere.csv", model, "--out", out)
    assert "cannot be read: No such file" in fails(capsys, "predict", new, tmp_path / "no.krr", "--out", out)
    assert "cannot be read: Is a directory" in fails(capsys, "evaluate", new, tmp_path)
    assert "nowhere for the file o.csv does not exist" in fails(
        capsys, "predict", new, model, "--out", tmp_path / "nowhere/o.csv"
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
    assert "is not a Parquet file, or is damaged" in fails(capsys, "predict", tmp_path / "new.parquet", model, "--out", out)
    assert "must end in .csv" in fails(capsys, "predict", tmp_path / "new.xlsx", model, "--out", out)
    assert "o.txt must end in .csv or" in fails(capsys, "predict", new, model, "--out", tmp_path / "o.txt")


def test_a_cut_parquet_file_and_one_with_dates(model, tmp_path, capsys):
    path = tmp_path / "new.parquet"
    frame = pd.DataFrame({"a": range(9), "b": 1.0})
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "is not a Parquet file, or is damaged" in fails(capsys, "predict", path, model, "--out", tmp_path / "o.csv")
    pa.parquet.write_table(pa.table({"a": pa.array([1, 2], pa.date32()), "b": [1, 2]}), path)
    error = fails(capsys, "predict", path, model, "--out", tmp_path / "o.csv", "--quiet")
    assert "Column 'a'" in error
    assert "has the type date32[day]" in error


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_column_under_another_name_is_offered(models, tmp_path, capsys, command):
    more = ["--out", tmp_path / "o.csv"] if command == "predict" else []
    text = (models / "diabetes_test.csv").read_text()
    for other in ("BMI", "bmi ", "bmj"):
        (tmp_path / "new.csv").write_text(text.replace("bmi", other))
        error = fails(capsys, command, tmp_path / "new.csv", models / "diabetes.krr", *more, "--quiet")
        assert f"has no column 'bmi', which the model was fitted with. Did you mean '{other}'?" in error


def test_a_folder_is_no_table(tmp_path, capsys):
    error = fails(capsys, "fit", tmp_path, "--target", "y", "--out", tmp_path / "m", *FAST)
    assert f"--target is for a table (.csv, .parquet), but {tmp_path} is a folder of pictures" in error
