"""New images by a head: what the library says, and what the command prints."""

import copy
import csv
import json

import numpy as np
import pytest
import torch
from tests.cli.running import fails, works
from tests.experiments.labelled import digits, write_features, write_folder
from tests.experiments.test_heads import made_head
from tests.experiments.test_transfer import QUICK, config

from torchkrr.experiments import transfer
from torchkrr.experiments.classify import classify, typicality
from torchkrr.experiments.heads import read_head, write_head
from torchkrr.vision import readouts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on images, with the head in `out`."""
    root = tmp_path_factory.mktemp("classify")
    entry = readouts.READOUTS["sk-select"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(readouts.READOUTS, "sk-select", entry._replace(readout=readouts.SelectedReadout(QUICK)))
        data = write_folder(root / "data", 200)
        transfer.run(config(data, root / "out", budgets=(None,), readouts=("knn",), backbone="identity", size=8))
    return root


def test_a_classification_is_that_of_the_layer_and_its_reasons_add_up():
    head, (query, labels) = made_head(), digits(40, start=1000)
    found = classify(head, query, explained=20)
    predicted = torch.tensor([int(one.label) for one in found])
    assert torch.equal(predicted, head.layer(query).argmax(1))
    assert (predicted == labels).double().mean() > 0.8
    probabilities, powers = head.probabilities(query), head.layer.power_function(query)
    for row, one in enumerate(found):
        assert one.probability == pytest.approx(float(probabilities[row].max()))
        assert one.indicator == pytest.approx(float(powers[row]))
        scores = torch.zeros(10)
        for because in one.because:
            scores[int(because.label)] += because.weight
            assert because.item == f"{because.center}.png"
        torch.testing.assert_close(scores, head.layer(query[row]), rtol=1e-3, atol=1e-3)
        sizes = [abs(because.weight) for because in one.because]
        assert sizes == sorted(sizes, reverse=True)


def test_typicality_compares_with_training_examples_left_out():
    head, (query, _) = made_head(), digits(40, start=1000)
    found = classify(head, query)
    typical = typicality(head, found)
    usual = []
    for row in range(120):
        rest = torch.arange(120) != row
        layer = copy.deepcopy(head.layer)
        layer.remove((~rest).nonzero().squeeze(1))
        usual.append(float(layer.power_function(head.layer.centers[row])))
    for one, share in zip(found, typical, strict=True):
        assert share == pytest.approx(np.mean(np.array(usual) >= one.indicator), abs=0.02)
    assert 0.1 < np.mean(typical) < 0.9  # of the same kind, by other writers
    strange = classify(head, torch.rand(5, query.shape[1]) * 16)
    assert max(typicality(head, strange)) < 0.05
    training = classify(head, head.layer.centers[:5])
    assert min(typicality(head, training)) == 1


def test_the_command_names_class_probability_indicator_and_examples(folder, capsys):
    image = sorted((folder / "data" / "digit 3").glob("*.png"))[0]
    works("classify", folder / "out" / "head.safetensors", image, "--explain", "2")
    line, reason = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{image}: digit 3  ")
    assert "error indicator 0." in line
    assert "typicality" in line
    assert reason.count("(digit ") == 2


def test_folders_json_and_csv_say_the_same(folder, capsys):
    head, images, out = folder / "out" / "head.safetensors", folder / "data" / "digit 7", folder / "found.csv"
    works("classify", head, images, "--json", "--out", out)
    lines = json.loads(capsys.readouterr().out)["predictions"]
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(lines) == len(rows) == len(list(images.glob("*.png")))
    assert [line["prediction"] for line in lines] == [row["prediction"] for row in rows]
    assert sum(line["prediction"] == "digit 7" for line in lines) > 0.9 * len(lines)
    for line, row in zip(lines, rows, strict=True):
        assert float(row["probability"]) == line["probability"]
        assert row["because_1"] == line["because"][0]["item"]
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert 0 <= line["error_indicator"] <= 1
        assert float(row["typicality"]) == line["typicality"]


def test_a_head_on_features_classifies_features(tmp_path, capsys):
    write_head(tmp_path / "head.safetensors", made_head()._replace(backbone=None))
    query, _ = digits(3, start=1000)
    np.savez(tmp_path / "query.npz", features=query.numpy())
    works("classify", tmp_path / "head.safetensors", tmp_path / "query.npz", "--json")
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 3
    message = fails(capsys, "classify", tmp_path / "head.safetensors", tmp_path / "image.png")
    assert "made from given features" in message
    np.savez(tmp_path / "other.npz", points=query.numpy())
    assert "array `features`" in fails(capsys, "classify", tmp_path / "head.safetensors", tmp_path / "other.npz")


def test_features_that_cannot_be_used_are_named(tmp_path, capsys):
    write_head(tmp_path / "head.safetensors", made_head()._replace(backbone=None))
    query = digits(3, start=1000)[0].numpy()
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    np.savez_compressed(good, features=query)
    whole = good.read_bytes()
    turned = bytes(byte ^ 255 for byte in whole[100:200])
    for contents in (whole[:-30], whole[:100] + turned + whole[200:], b""):
        bad.write_bytes(contents)
        assert f"{bad} cannot be read as an .npz file" in fails(capsys, "classify", tmp_path / "head.safetensors", good, bad)
    for features in (query[:, :5], query[0]):
        np.savez(bad, features=features)
        message = fails(capsys, "classify", tmp_path / "head.safetensors", good, bad)
        assert f"The features of {bad} have shape {features.shape}, but the head was made from rows of 64" in message


def test_what_is_wrong_is_said(folder, tmp_path, capsys):
    head = folder / "out" / "head.safetensors"
    assert "There is no image" in fails(capsys, "classify", head, tmp_path / "none.png", "--quiet")
    assert "has no images" in fails(capsys, "classify", head, tmp_path, "--quiet")
    assert "cannot be read" in fails(capsys, "classify", tmp_path / "none.safetensors", tmp_path, "--quiet")
    other = read_head(head)
    changed = other._replace(backbone={**other.backbone, "fingerprint": "0"})
    write_head(tmp_path / "head.safetensors", changed)
    image = next((folder / "data").rglob("*.png"))
    message = fails(capsys, "classify", tmp_path / "head.safetensors", image, "--quiet")
    assert "are not those that the head was made with" in message
    changed = other._replace(backbone={**other.backbone, "weights": "some.safetensors"})
    write_head(tmp_path / "head.safetensors", changed)
    assert "some.safetensors. Give that file again" in fails(capsys, "classify", tmp_path / "head.safetensors", image)


def test_features_files_and_images_are_told_apart(folder, tmp_path, capsys):
    data = write_features(tmp_path / "some.npz")
    assert "cannot be read" in fails(capsys, "classify", folder / "out" / "head.safetensors", data, "--quiet")
