"""Features files: what is fitted to them is what the estimators fit, and what cannot be used is named."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.running import FAST, evaluated, fails, read, works
from tests.vision.labeled import digits

from torchkrr import estimators
from torchkrr.cli import arrays

NAMES = [f"digit {row}" for row in range(100)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and new digits, of classes in .npz with ids, of numbers in .safetensors; and a model of each."""
    folder = tmp_path_factory.mktemp("arrays")
    for name, start in {"train": 0, "new": 100}.items():
        features, labels = digits(100, start=start)
        ids = [f"{row} of {name}" for row in range(100)] if name == "new" else NAMES
        np.savez(folder / f"{name}.npz", features=features.numpy(), labels=labels.numpy(), ids=ids)
        save_file({"features": features.half(), "targets": labels.double()}, folder / f"{name}.safetensors")
    works("fit", folder / "train.npz", "--out", folder / "classes.krr", *FAST)
    works("fit", folder / "train.safetensors", "--out", folder / "numbers.krr", *FAST)
    return folder


def test_the_model_is_that_of_the_arrays(files):
    model = estimators.load(files / "classes.krr")
    given = {"kernel": "matern32", "metric": None, "alpha": 0.01, "categorical_features": None}
    train, new = (np.load(files / f"{name}.npz") for name in ("train", "new"))
    direct = estimators.LocalKernelRidgeClassifier(20, **given).fit(train["features"], train["labels"])
    np.testing.assert_array_equal(model.predict_proba(new["features"]), direct.predict_proba(new["features"]))
    assert model.ids_.tolist() == NAMES
    assert model.notes_ == {"targets": ["label"], "input": {"kind": "features"}}


def test_predictions_sets_and_reasons(files, tmp_path):
    wanted = ["--proba", "--set", 0.9, "--explain", 2, "--quiet"]
    works("predict", files / "new.npz", files / "classes.krr", "--out", tmp_path / "o.parquet", *wanted)
    found, model = read(tmp_path / "o.parquet"), estimators.load(files / "classes.krr")
    new = np.load(files / "new.npz")
    features = new["features"]
    assert found["id"].tolist() == new["ids"].tolist()
    np.testing.assert_array_equal(found["prediction"], model.predict(features))
    np.testing.assert_array_equal(found[[f"set_{label}" for label in range(10)]], model.predict_set(features, 0.9))
    explanation = model.explain(features, n_rows=2)
    assert found["because_2"].tolist() == explanation.ids[:, 1].tolist()
    np.testing.assert_array_equal(found["because_2_weight"], explanation.weights[:, 1])
    labels = np.load(files / "train.npz")["labels"]
    assert [int(label) for label in found["because_1_label"]] == labels[explanation.indices[:, 0]].tolist()


def test_numbers_from_half_precision(files, tmp_path, capsys):
    works("predict", files / "new.safetensors", files / "numbers.krr", "--out", tmp_path / "o.csv", "--interval", 0.9)
    assert list(read(tmp_path / "o.csv")) == ["prediction", "lower", "upper"]
    scores = evaluated(capsys, files / "new.safetensors", files / "numbers.krr")
    targets = digits(100, start=100)[1].numpy()
    error = np.sqrt(np.mean((read(tmp_path / "o.csv")["prediction"] - targets) ** 2))
    assert scores["targets"]["target"]["rmse"] == pytest.approx(error, rel=1e-5)


def test_scores_of_classes_with_their_counts(files, capsys):
    found = evaluated(capsys, files / "new.npz", files / "classes.krr")
    labels = digits(100, start=100)[1]
    assert found["classes"] == {str(label): int((labels == label).sum()) for label in range(10)}
    predicted = estimators.load(files / "classes.krr").predict(np.load(files / "new.npz")["features"])
    assert found["targets"]["label"]["accuracy"] == np.mean(predicted == labels.numpy())


def test_labels_in_words_and_numbers_are_the_same_to_a_model_of_words(files, tmp_path, capsys):
    features, labels = digits(100)
    np.savez(tmp_path / "words.npz", features=features.numpy(), labels=[str(int(label)) for label in labels])
    works("fit", tmp_path / "words.npz", "--out", tmp_path / "m.krr", *FAST)
    assert evaluated(capsys, files / "new.npz", tmp_path / "m.krr")["targets"]["label"]["accuracy"] > 0.8
    np.savez(tmp_path / "other.npz", features=features.numpy(), labels=["owl"] * 100)
    error = fails(capsys, "evaluate", tmp_path / "other.npz", files / "classes.krr", "--quiet")
    assert "hold the class 'owl' in row 1, which the model does not know" in error


def test_groups_are_left_out_together(tmp_path, capsys):
    features, labels = digits(60)
    thrice = {"features": features.repeat(3, 1).numpy(), "labels": labels.repeat(3).numpy()}
    np.savez(tmp_path / "once.npz", features=features.numpy(), labels=labels.numpy())
    np.savez(tmp_path / "alone.npz", **thrice)
    np.savez(tmp_path / "together.npz", **thrice, groups=np.arange(60).repeat(3).reshape(60, 3).T.ravel())
    accuracies = {}
    for name in ("once", "alone", "together"):
        capsys.readouterr()
        works("fit", tmp_path / f"{name}.npz", "--out", tmp_path / "m.krr", "--json", "--folds", 4, *FAST)
        accuracies[name] = json.loads(capsys.readouterr().out)["held_out"]["label"]["accuracy"]["mean"]
    assert accuracies["alone"] > accuracies["together"] + 0.05
    assert accuracies["together"] == pytest.approx(accuracies["once"], abs=0.1)


def changed(**changes):
    features, labels = digits(30)
    found = {"features": features.numpy(), "labels": labels.numpy(), **changes}
    return {name: array for name, array in found.items() if array is not None}


def strange(value):
    features = digits(30)[0].numpy()
    features[4, 7] = value
    return features


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (changed(labels=np.zeros(29, dtype=int)), "has 30 rows of features, but `labels` of the shape (29,)"),
        (changed(labels=np.zeros((30, 2), dtype=int)), "must have one entry for each row, got the shape (30, 2)"),
        (changed(labels=np.zeros(30)), "`labels` of {path} must be whole numbers or text, got float64"),
        (changed(labels=np.zeros(30, dtype=int)), "has a single class, '0'. Classification needs two or more"),
        (changed(labels=None), "has neither `labels` nor `targets`"),
        (changed(targets=np.zeros(30)), "has both `labels` and `targets`"),
        (changed(labels=None, targets=np.array([np.nan] * 30)), "The target of row 1 of {path} is missing"),
        (changed(features=strange(np.nan)), "Row 5 of the features of {path} has nan in column 8"),
        (changed(features=strange(np.inf)), "Row 5 of the features of {path} has inf in column 8"),
        (changed(features=np.zeros(30)), "must be numbers (N, D), got the shape (30,) of float64"),
        (changed(features=None, points=np.zeros((30, 2))), "has no array `features`"),
        (changed(ids=["a"] * 30), "ids must be different, but 'a' is there twice"),
    ],
)
def test_arrays_that_cannot_be_fitted(tmp_path, capsys, given, message):
    path = tmp_path / "some.npz"
    np.savez(path, **given)
    assert message.format(path=path) in fails(capsys, "fit", path, "--out", tmp_path / "m.krr", *FAST)
    assert os.listdir(tmp_path) == ["some.npz"]


@pytest.mark.parametrize("ending", arrays.ENDINGS)
def test_damaged_files_and_other_widths(files, tmp_path, capsys, ending):
    path, out = tmp_path / f"new{ending}", ("--out", tmp_path / "o.csv", "--quiet")
    whole = (files / f"new{ending}").read_bytes()
    for contents in (whole[:-30], b"", b"hello"):
        path.write_bytes(contents)
        assert f"{path} cannot be read as a" in fails(capsys, "predict", path, files / "classes.krr", *out)
    narrow = torch.zeros(3, 5)
    if ending == ".npz":
        np.savez(path, features=narrow.numpy())
    else:
        save_file({"features": narrow}, path)
    error = fails(capsys, "predict", path, files / "classes.krr", *out)
    assert f"The rows of {path} have 5 features, but the model was fitted to rows of 64" in error
    assert os.listdir(tmp_path) == [path.name]
