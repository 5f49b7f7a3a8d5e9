"""Pictures in folders: fit, predict and evaluate read them alike, and leave out those that are broken."""

import csv
import json
import os
import shutil

import numpy as np
import pytest
import torch
from tests.cli.running import FAST, evaluated, fails, read, works
from tests.vision.labeled import write_folder

from torchkrr import estimators
from torchkrr.cli import main
from torchkrr.errors import KernelRidgeWarning
from torchkrr.vision import open_backbone, read_image

IDENTITY = ("--backbone", "identity", "--size", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures in `data`, and a model of them."""
    root = tmp_path_factory.mktemp("pictures")
    write_folder(root / "data", 200)
    works("fit", root / "data", *IDENTITY, "--out", root / "m.krr", *FAST)
    return root


@pytest.fixture
def damaged(folder, tmp_path):
    """Two of the pictures are broken."""
    shutil.copytree(folder / "data", tmp_path / "data")
    for name in ("digit 3/0003.png", "digit 7/0007.png"):
        (tmp_path / "data" / name).write_bytes(b"no picture")
    return tmp_path / "data"


def features_of(files):
    backbone = open_backbone("identity", size=8)
    with torch.inference_mode():
        return backbone.model(backbone.prepare([read_image(file) for file in files])).numpy()


def test_the_model_is_that_of_the_features_and_knows_how_they_are_made(folder):
    model = estimators.load(folder / "m.krr")
    files = sorted((folder / "data").rglob("*.png"))
    assert model.ids_.tolist() == [file.relative_to(folder / "data").as_posix() for file in files]
    given = {"kernel": "matern32", "metric": None, "alpha": 0.01, "categorical_features": None}
    classes = np.array([file.parent.name for file in files], dtype=object)
    direct = estimators.LocalKernelRidgeClassifier(20, **given).fit(features_of(files), classes)
    query = features_of(files[:9])
    np.testing.assert_allclose(model.predict_proba(query), direct.predict_proba(query), rtol=1e-5, atol=1e-6)
    backbone = model.notes_["input"]["backbone"]
    assert (backbone["name"], backbone["size"]) == ("identity", 8)
    assert backbone["fingerprint"] == open_backbone("identity", size=8).fingerprint
    assert not (folder / "m.krr.features").exists()


def test_a_prediction_names_class_probability_indicator_and_examples(folder, capsys):
    image = sorted((folder / "data" / "digit 3").glob("*.png"))[0]
    works("predict", image, folder / "m.krr", "--explain", "2")
    line, reason, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{image}: digit 3  probability 0.")
    assert "error indicator 0." in line
    assert "typicality" in line
    assert reason.count("(digit ") == 2


def test_folders_json_and_csv_say_the_same(folder, tmp_path, capsys):
    images, out = [folder / "data" / "digit 7", folder / "data" / "digit 2"], tmp_path / "found.csv"
    works("predict", *images, folder / "m.krr", "--proba", "--json")
    found = json.loads(capsys.readouterr().out)
    works("predict", *images, folder / "m.krr", "--proba", "--out", out, "--quiet")
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    lines = found["predictions"]
    files = [file for image in images for file in sorted(image.glob("*.png"))]
    assert [line["image"] for line in lines] == [row["image"] for row in rows] == [str(file) for file in files]
    model, query = estimators.load(folder / "m.krr"), features_of(files)
    indicators, typical, explained = model.error_indicator(query), model.typicality(query), model.explain(query, n_rows=3)
    for at, (line, row) in enumerate(zip(lines, rows, strict=True)):
        assert row["prediction"] == line["prediction"]
        assert sum(line[f"probability_digit {label}"] for label in range(10)) == pytest.approx(1, abs=1e-5)
        assert line["probability"] == max(line[f"probability_digit {label}"] for label in range(10))
        assert float(row["error_indicator"]) == line["error_indicator"] == pytest.approx(indicators[at], rel=1e-4, abs=1e-6)
        assert line["typicality"] == pytest.approx(typical[at], abs=0.02)
        assert [line[f"because_{k}"] for k in (1, 2, 3)] == explained.ids[at].tolist()
        assert line["because_1_label"] == line["because_1"].split("/")[0]
    assert sum(line["prediction"].split()[1] in "72" for line in lines) > 0.9 * len(lines)


def test_the_size_of_the_parts_changes_nothing_but_rounding(folder, tmp_path):
    found = []
    for rows in (7, 500):
        wanted = ["--chunk-rows", rows, "--batch-size", 5, "--out", tmp_path / "o.csv", "--quiet"]
        works("predict", folder / "data", folder / "m.krr", *wanted)
        table = read(tmp_path / "o.csv").round(4)
        found.append(table[["image", "prediction", "probability"]].to_numpy().tolist())
    assert found[0] == found[1]
    assert len(found[0]) == 200


def test_broken_pictures_are_named_left_out_and_counted(folder, damaged, tmp_path, capsys):
    message = r"2 of 200 pictures cannot be read and are left out: .*digit 3/0003\.png, .*digit 7/0007\.png\. Remove or"
    with pytest.warns(KernelRidgeWarning, match=message):
        works("fit", damaged, *IDENTITY, "--out", tmp_path / "m.krr", *FAST)
    model = estimators.load(tmp_path / "m.krr")
    assert len(model.ids_) == 198
    assert "digit 3/0003.png" not in model.ids_
    with pytest.warns(KernelRidgeWarning, match=message):
        works("predict", damaged, folder / "m.krr", "--chunk-rows", 50, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["skipped"], len(found["predictions"])) == (198, 2, 198)
    whole = [image for image in sorted((damaged).rglob("*.png")) if image.name not in ("0003.png", "0007.png")]
    assert [line["image"] for line in found["predictions"]] == [str(image) for image in whole]
    with pytest.warns(KernelRidgeWarning, match=message):
        scores = evaluated(capsys, damaged, folder / "m.krr")
    assert (scores["rows"], scores["skipped"], scores["classes"]["digit 3"]) == (198, 2, 20)
    with pytest.warns(KernelRidgeWarning, match=message):
        works("update", folder / "m.krr", "--add", damaged, "--out", tmp_path / "grown.krr")
    assert "398: 198 added, 0 removed" in capsys.readouterr().out


def test_many_broken_pictures_are_not_all_named(damaged, tmp_path):
    for number in range(20, 31):
        for file in damaged.rglob(f"00{number}.png"):
            file.write_bytes(b"no picture")
    with pytest.warns(KernelRidgeWarning, match=r"13 of 200 pictures .* and 8 more") as caught:
        works("fit", damaged, *IDENTITY, "--out", tmp_path / "m.krr", *FAST)
    assert str(caught[0].message).count(".png") == 5


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "update"])
def test_strict_stops_at_a_broken_picture(folder, damaged, tmp_path, capsys, command):
    out = ("--out", tmp_path / "o.csv")
    words = {
        "fit": (damaged, *IDENTITY, *out),
        "predict": (damaged, folder / "m.krr", *out),
        "evaluate": (damaged, folder / "m.krr"),
        "update": (folder / "m.krr", "--add", damaged, *out),
    }
    error = fails(capsys, command, *words[command], "--strict", "--quiet")
    assert f"{damaged / 'digit 3/0003.png'} cannot be read" in error
    assert os.listdir(tmp_path) == ["data"]


def test_nothing_but_broken_pictures(folder, tmp_path, capsys):
    for label in ("digit 1", "digit 2"):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "a.png").write_bytes(b"no picture")
    out = ("--out", tmp_path / "o.csv", "--quiet")
    assert "None of the 2 pictures" in fails(capsys, "predict", tmp_path / "data", folder / "m.krr", *out)
    assert "None of the 2 pictures" in fails(capsys, "evaluate", tmp_path / "data", folder / "m.krr", "--quiet")
    with pytest.warns(KernelRidgeWarning, match="2 of 2 pictures"):
        error = fails(capsys, "fit", tmp_path / "data", *IDENTITY, *out)
    assert "No picture of the class digit 1 can be read" in error
    assert os.listdir(tmp_path) == ["data"]


def test_folders_that_cannot_be_fitted(folder, tmp_path, capsys):
    out = ("--out", tmp_path / "m.krr", *FAST)
    one = tmp_path / "one"
    shutil.copytree(folder / "data" / "digit 1", one / "digit 1")
    assert "has a single class, 'digit 1'" in fails(capsys, "fit", one, *IDENTITY, *out)
    assert "its images lie in it directly" in fails(capsys, "fit", one / "digit 1", *IDENTITY, *out)
    assert "Name the network that reads them: --backbone resnet18" in fails(capsys, "fit", folder / "data", *out)
    for part in ("train", "test"):
        shutil.copytree(one, tmp_path / "parts" / part)
    error = fails(capsys, "fit", tmp_path / "parts", *IDENTITY, *out)
    assert f"has a training and a test part. Give one of them: {tmp_path / 'parts' / 'train'} or" in error
    error = fails(capsys, "fit", folder / "data", *IDENTITY, "--task", "regression", *out)
    assert "have classes, the names of their folders, and no numbers" in error
    assert sorted(os.listdir(tmp_path)) == ["one", "parts"]


def test_an_unknown_class_is_named(folder, tmp_path, capsys):
    shutil.copytree(folder / "data" / "digit 1", tmp_path / "data" / "owl")
    error = fails(capsys, "evaluate", tmp_path / "data", folder / "m.krr", "--quiet")
    assert "holds the class 'owl' in row 1, which the model does not know" in error


def test_another_backbone_is_refused(folder, tmp_path, capsys):
    model = estimators.load(folder / "m.krr")
    image = next((folder / "data").rglob("*.png"))
    backbone = model.notes_["input"]["backbone"]
    model.notes_["input"]["backbone"] = {**backbone, "fingerprint": "0"}
    model.save(tmp_path / "m.krr")
    assert "are not those that the head was made with" in fails(capsys, "predict", image, tmp_path / "m.krr", "--quiet")
    model.notes_["input"]["backbone"] = {**backbone, "weights": "some.safetensors"}
    model.save(tmp_path / "m.krr")
    assert "some.safetensors. Give that file again" in fails(capsys, "predict", image, tmp_path / "m.krr", "--quiet")


def test_an_interrupted_fit_goes_on_with_the_features_there_are(folder, tmp_path, capsys, monkeypatch):
    from torchkrr.vision import features

    compute, computed = features._features, []

    def stopping(*arguments):
        computed.append(len(arguments))
        if len(computed) == 3:
            raise KeyboardInterrupt
        return compute(*arguments)

    monkeypatch.setattr(features, "_features", stopping)
    command = ["fit", str(folder / "data"), *IDENTITY, "--batch-size", "50", "--out", str(tmp_path / "m.krr"), *FAST]
    assert main(command) == 130
    assert f"What is done is kept in {tmp_path / 'm.krr.features'}" in capsys.readouterr().err
    assert main(command) == 0
    assert len(computed) == 5  # four batches, one of them twice
    assert os.listdir(tmp_path) == ["m.krr"]
