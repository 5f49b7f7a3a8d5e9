"""The kind of the data is seen from its path, and must be that of the model."""

import os

import numpy as np
import pytest
from tests.cli.running import FAST, fails, read, works
from tests.vision.labeled import write_features, write_folder

from torchkrr.cli import main
from torchkrr.cli.opening import is_model
from torchkrr.errors import KernelRidgeWarning


@pytest.fixture(scope="module")
def kinds(models, tmp_path_factory):
    """Data of three kinds, and a model of each."""
    root = tmp_path_factory.mktemp("kinds")
    data = {"images": write_folder(root / "pictures", 60), "features": write_features(root / "some.npz", 60)}
    works("fit", data["images"], "--backbone", "identity", "--size", 4, "--out", root / "images.krr", *FAST)
    works("fit", data["features"], "--out", root / "features.krr", *FAST)
    data["table"] = models / "wine_test.csv"
    (root / "table.krr").write_bytes((models / "wine.krr").read_bytes())
    return root, data


@pytest.mark.parametrize("command", ["predict", "evaluate", "update"])
@pytest.mark.parametrize("fitted", ["images", "features", "table"])
@pytest.mark.parametrize("given", ["images", "features", "table"])
def test_another_kind_than_that_of_the_model_is_refused(kinds, tmp_path, capsys, command, fitted, given):
    if fitted == given:
        return
    root, data = kinds
    model, out = root / f"{fitted}.krr", ("--out", tmp_path / "o.csv")
    words = {"predict": (data[given], model, *out), "evaluate": (data[given], model)}
    words["update"] = (model, "--add", data[given], *out)
    error = fails(capsys, command, *words[command])
    named = {"images": "a folder of pictures", "features": "a features file", "table": "a table"}
    assert f"{model} was fitted to {named[fitted]}" in error
    assert f"but {data[given]} is {named[given]}" in error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "words", "message"),
    [
        ("table", ("--target", "target", "--backbone", "identity"), "--backbone is for a folder of pictures"),
        ("table", ("--target", "target", "--strict"), "--strict is for a folder of pictures"),
        ("table", ("--target", "target", "--encoder", "e"), "--encoder is for a table with a column of text"),
        ("table", (), "is a table. Name the column to predict: --target COLUMN"),
        ("images", ("--backbone", "identity", "--target", "y"), "--target is for a table"),
        ("features", ("--categorical", "a"), "--categorical is for a table"),
        ("features", ("--sample-weight", "a"), "--sample-weight is for a table"),
    ],
)
def test_options_of_another_kind_are_refused(kinds, tmp_path, capsys, given, words, message):
    assert message in fails(capsys, "fit", kinds[1][given], *words, "--out", tmp_path / "m.krr", *FAST)
    assert os.listdir(tmp_path) == []


def test_the_former_order_warns(models, tmp_path):
    table, model = models / "diabetes_test.csv", models / "diabetes.krr"
    for number, order in enumerate(((table, model), (model, table))):
        words = ["predict", *map(str, order), "--out", str(tmp_path / f"{number}.csv"), "--quiet"]
        if number == 0:
            assert main(words) == 0
            continue
        with pytest.warns(KernelRidgeWarning, match=r"The data comes first now.*: torchkrr predict DATA .*krr"):
            assert main(words) == 0
    np.testing.assert_array_equal(read(tmp_path / "0.csv"), read(tmp_path / "1.csv"))


def test_models_are_known_by_their_header(kinds, tmp_path):
    root, data = kinds
    assert all(is_model(str(root / f"{kind}.krr")) for kind in data)
    assert not any(is_model(str(path)) for path in data.values())
    (tmp_path / "short").write_bytes(b"\x08")
    assert not is_model(str(tmp_path / "short"))


def test_tables_are_read_one_at_a_time(models, tmp_path, capsys):
    table = models / "wine_test.csv"
    error = fails(capsys, "predict", table, table, models / "wine.krr", "--out", tmp_path / "o.csv")
    assert "One file can be read at a time" in error
