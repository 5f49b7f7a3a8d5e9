"""`torchkrr update`: rows of every kind are added to a model, and removed, as the estimators do it."""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
from tests.cli.running import FAST, fails, read, works
from tests.vision.labeled import digits, write_folder
from tests.vision.test_transfer import config

from torchkrr import estimators
from torchkrr.vision import transfer


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A model of images."""
    root = tmp_path_factory.mktemp("update")
    data = write_folder(root / "data", 200)
    works("fit", data, "--backbone", "identity", "--size", 8, "--out", root / "m.krr", *FAST)
    return root / "m.krr"


def updated(capsys, *words):
    capsys.readouterr()
    works("update", *words, "--json")
    return json.loads(capsys.readouterr().out)


def test_images_are_added_and_removed(head, tmp_path, capsys):
    new, extra = tmp_path / "new.krr", tmp_path / "extra"
    shutil.copytree(write_folder(tmp_path / "all", 40) / "digit 3", extra / "digit 3")
    shutil.copytree(tmp_path / "all" / "digit 4", extra / "owl")
    count = len(list(extra.rglob("*.png")))
    before = estimators.load(head).ids_.tolist()
    said = updated(capsys, head, "--add", extra, "--remove", "digit 7/*", "--out", new)
    after = estimators.load(new)
    assert said["added"] == count
    assert said["removed"] == sum(name.startswith("digit 7/") for name in before) > 0
    assert said["rows"] == len(after.ids_) == len(before) + count - said["removed"]
    assert said["classes"]["digit 7"] == 0
    assert said["classes"]["owl"] == len(list((extra / "owl").iterdir()))
    picture = sorted((extra / "owl").iterdir())[0]
    works("predict", picture, new, "--explain", "2")  # it is in the model as a digit 4 too
    assert f"extra/owl/{picture.name} (owl)" in capsys.readouterr().out
    assert "'extra/digit 3/0003.png' is there twice" in fails(capsys, "update", new, "--add", extra, "--out", new, "--quiet")
    assert not (tmp_path / "new.krr.features").exists()
    updated(capsys, new, "--remove", "extra/*", "--out", new)
    assert set(estimators.load(new).ids_) == {name for name in before if not name.startswith("digit 7/")}


def test_the_head_of_a_transfer_run(tmp_path, capsys):
    """What `transfer` writes is updated and asked as what `fit` writes."""
    data = write_folder(tmp_path / "data", 200)
    transfer.run(config(data, tmp_path / "out", budgets=(None,), readouts=("knn",), backbone="identity", size=8))
    head, picture = tmp_path / "out" / "head.safetensors", data / "digit 4" / "0004.png"
    said = updated(capsys, head, "--remove", "digit 3/*", "--out", tmp_path / "less.krr")
    assert said["removed"] > 0
    works("predict", picture, tmp_path / "less.krr", "--quiet", "--out", tmp_path / "o.csv")
    assert read(tmp_path / "o.csv")["prediction"].tolist() == ["digit 4"]
    assert "key" not in estimators.load(tmp_path / "less.krr").notes_  # the next run of transfer writes its own


def test_tables_with_names_groups_and_weights(models, tmp_path, capsys):
    frame = read(models / "wine_train.csv")
    frame = frame.assign(bottle=[f"b{at}" for at in range(len(frame))], cellar=np.arange(len(frame)) // 4, weight=2.0)
    frame[:80].to_csv(tmp_path / "old.csv", index=False)
    frame[80:].to_csv(tmp_path / "more.csv", index=False)
    wanted = ["--target", "target", "--id", "bottle", "--groups", "cellar", "--sample-weight", "weight", *FAST]
    works("fit", tmp_path / "old.csv", *wanted, "--out", tmp_path / "old.krr")
    changes = ["--add", tmp_path / "more.csv", "--remove", "b?"]
    said = updated(capsys, tmp_path / "old.krr", *changes, "--out", tmp_path / "new.krr")
    assert (said["added"], said["removed"], said["rows"]) == (len(frame) - 80, 10, len(frame) - 10)
    direct = estimators.load(tmp_path / "old.krr")
    inputs, more = list(direct.feature_names_in_), frame[80:]
    direct.forget(ids=[f"b{at}" for at in range(10)])
    names = {"ids": more["bottle"], "groups": more["cellar"].astype(str), "sample_weight": more["weight"]}
    direct.partial_fit(more[inputs], more["target"], **names)
    found = estimators.load(tmp_path / "new.krr")
    query = read(models / "wine_test.csv")[inputs]
    np.testing.assert_array_equal(found.predict_proba(query), direct.predict_proba(query))
    assert found.predictor_.rows.weights.tolist() == direct.predictor_.rows.weights.tolist()
    assert found.predictor_.rows.groups.tolist() == direct.predictor_.rows.groups.tolist()
    works("predict", models / "wine_test.csv", tmp_path / "new.krr", "--explain", 1, "--out", tmp_path / "o.csv", "--quiet")
    assert read(tmp_path / "o.csv")["because_1"].str.startswith("b").all()


def test_a_table_of_numbers_without_names(model, tmp_path, capsys):
    pd.DataFrame({"a": [50.0, 51.0], "b": [1, 2], "y": [100.0, 102.0]}).to_csv(tmp_path / "more.csv", index=False)
    said = updated(capsys, model, "--add", tmp_path / "more.csv", "--out", tmp_path / "new.krr")
    assert (said["rows"], said["classes"]) == (32, None)
    found = estimators.load(tmp_path / "new.krr").predict(pd.DataFrame({"a": [50.0], "b": [1.0]}))
    assert found[0] == pytest.approx(100, abs=2)
    error = fails(capsys, "update", model, "--remove", "7", "--out", tmp_path / "new.krr")
    assert f"The rows of {model} have no names. Fit it again with names: --id COLUMN" in error


def test_features_get_names_from_their_file(tmp_path, capsys):
    features, labels = digits(100)
    more, more_labels = digits(6, start=1000)
    np.savez(tmp_path / "old.npz", features=features.numpy(), labels=labels.numpy(), ids=[f"d{at}" for at in range(100)])
    np.savez(tmp_path / "more.npz", features=more.numpy(), labels=more_labels.numpy() + 5)
    works("fit", tmp_path / "old.npz", "--out", tmp_path / "m.krr", *FAST)
    said = updated(capsys, tmp_path / "m.krr", "--add", tmp_path / "more.npz", "--out", tmp_path / "new.krr")
    assert (said["rows"], said["added"]) == (106, 6)
    model = estimators.load(tmp_path / "new.krr")
    assert model.ids_[-1] == f"{tmp_path / 'more.npz'} row 6"
    assert model.predict(more.numpy()).tolist() == (more_labels + 5).tolist()
    assert model.classes_.max() == (more_labels + 5).max() > 9  # new classes


def test_what_cannot_be_done_is_said(head, tmp_path, capsys):
    new = tmp_path / "new.krr"
    assert "There is nothing to do" in fails(capsys, "update", head, "--out", new)
    assert "cannot be read: No such file" in fails(capsys, "update", head, "--add", tmp_path / "none", "--out", new)
    assert "Did you mean digit 7/0007.png?" in fails(capsys, "update", head, "--remove", "digit 7/0007.jpg", "--out", new)
    assert "Its rows have names such as digit 0/" in fails(capsys, "update", head, "--remove", "a*", "--out", new)
    assert "would leave none" in fails(capsys, "update", head, "--remove", "*", "--out", new)
    (tmp_path / "t.csv").write_text("a,class\n1,digit 1\n")
    error = fails(capsys, "update", head, "--add", tmp_path / "t.csv", "--out", new)
    assert "was fitted to a folder of pictures, but" in error
    assert "is a table (.csv, .parquet)" in error
    assert os.listdir(tmp_path) == ["t.csv"]
