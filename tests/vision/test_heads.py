"""Heads: their file, classification with reasons, examples added and removed, and classify."""

import copy
import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.running import fails, works
from tests.vision.labeled import digits, training, write_features, write_folder
from tests.vision.test_transfer import QUICK, config

from torchkrr import kernels, transforms
from torchkrr.errors import FileError, InputError, ShapeError
from torchkrr.estimators import KernelRidgeRegressor, storage
from torchkrr.nn import LocalKernelRidge
from torchkrr.vision import readouts, transfer
from torchkrr.vision.heads import Head, classify, read_head, typicality, with_examples, without_examples, write_head

BACKBONE = {"name": "identity", "weights": None, "fingerprint": "0123", "text": "the pixels"}


def made_head(**changes):
    train = training(120)
    transform = transforms.Compose(transforms.UnitNorm(), transforms.MeanDistance()).fit(train.features)
    choices = {"kernel": kernels.Matern32(1.5, input_transform=transform), "ridge": 0.01, **changes}
    layer = LocalKernelRidge(train.features, train.one_hot(), 20, **choices)
    return Head(layer, 0.2, [str(label) for label in range(10)], [f"{row}.png" for row in range(120)], BACKBONE, "key")


@pytest.mark.parametrize("changes", [{}, {"trend": "constant"}, {"fade": True}, {"kernel": None}], ids=str)
def test_a_head_comes_back_to_the_last_bit(tmp_path, changes):
    head, (query, _) = made_head(**changes), digits(30, start=1000)
    write_head(tmp_path / "head.safetensors", head)
    back = read_head(tmp_path / "head.safetensors")
    assert torch.equal(back.probabilities(query), head.probabilities(query))
    assert torch.equal(back.layer.power_function(query), head.layer.power_function(query))
    assert back[1:] == head[1:]


def test_probabilities_are_a_softmax_of_the_scores():
    head, (query, _) = made_head(), digits(5, start=1000)
    found = head.probabilities(query)
    torch.testing.assert_close(found, (head.layer(query) / 0.2).softmax(1))
    torch.testing.assert_close(found.sum(1), torch.ones(5))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\r", "is a PNG picture, not a model"),
        (b"hello, world", "is not a model: it begins with the text"),
    ],
)
def test_another_file_is_named(tmp_path, contents, message):
    path = tmp_path / "head.safetensors"
    path.write_bytes(contents)
    with pytest.raises(FileError, match=message) as raised:
        read_head(path)
    assert "Expected a head.safetensors written by torchkrr transfer" in str(raised.value)


def test_a_damaged_head_is_noticed(tmp_path):
    path = tmp_path / "head.safetensors"
    write_head(path, made_head())
    contents = bytearray(path.read_bytes())
    contents[-5000] ^= 1
    path.write_bytes(contents)
    with pytest.raises(FileError, match="is damaged"):
        read_head(path)
    path.write_bytes(contents[:-100])
    with pytest.raises(FileError, match=r"cut off, or not a model|damaged, or not a model"):
        read_head(path)


def test_a_head_of_a_later_version_asks_for_an_upgrade(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(storage, "VERSION", 2)
        write_head(tmp_path / "head.safetensors", made_head())
    with pytest.raises(FileError, match=r"version 2.*Upgrade torchkrr"):
        read_head(tmp_path / "head.safetensors")


def test_weights_and_estimators_are_not_heads(tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(FileError, match="not a torchkrr model"):
        read_head(tmp_path / "weights.safetensors")
    features, labels = digits(30)
    model = KernelRidgeRegressor(0.1, kernel="gaussian", metric=None).fit(features.numpy(), labels.numpy())
    model.save(tmp_path / "model.krr")
    with pytest.raises(FileError, match="of the kind KernelRidgeRegressor, not a head"):
        read_head(tmp_path / "model.krr")


def test_no_pickle_is_needed(tmp_path):
    write_head(tmp_path / "head.safetensors", made_head())
    start = (tmp_path / "head.safetensors").read_bytes()
    header = json.loads(start[8 : 8 + int.from_bytes(start[:8], "little")])
    assert {"centers", "values", "state", "kernel.log_lengthscale"} <= set(header)


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


def test_added_and_removed_is_as_before():
    head, (query, labels) = made_head(), digits(30, start=1000)
    names = [f"new/{row}.png" for row in range(30)]
    more = with_examples(head, query, [str(int(label)) for label in labels], names)
    assert (head.layer.num_centers, more.layer.num_centers) == (120, 150)
    # A training example comes first in its own explanation, under its own name.
    assert [found.because[0].item for found in classify(more, query)] == names
    back = without_examples(more, ["new/*"])
    assert back.items == head.items
    assert torch.equal(back.probabilities(query), head.probabilities(query))


def test_names_stay_in_step_when_the_first_are_removed():
    head = made_head()
    fewer = without_examples(head, [f"{row}.png" for row in range(5)])
    rows = [7, 50, 119]
    assert [found.because[0].item for found in classify(fewer, head.layer.centers[rows])] == ["7.png", "50.png", "119.png"]
    assert torch.equal(fewer.layer.values, head.layer.values[5:])


def test_a_new_class_is_learned_from_its_examples():
    head, (query, _) = made_head(), digits(20, start=1000)
    far = query.flip(1) + 30
    more = with_examples(head, far, ["owl"] * 20, [f"owl/{row}" for row in range(20)])
    assert more.classes[-1] == "owl"
    assert {found.label for found in classify(more, far + 0.01)} == {"owl"}
    assert [found.label for found in classify(more, query)] == [found.label for found in classify(head, query)]


def test_a_head_with_fewer_examples_than_neighbors_uses_all(tmp_path):
    head = made_head()
    fewer = without_examples(head, ["??.png", "???.png"])
    assert (fewer.layer.num_centers, fewer.layer.num_neighbors, head.layer.num_neighbors) == (10, 10, 20)
    write_head(tmp_path / "head.safetensors", fewer)
    query = digits(5, start=1000)[0]
    assert torch.equal(read_head(tmp_path / "head.safetensors").probabilities(query), fewer.probabilities(query))


def test_what_cannot_be_done_is_said(tmp_path):
    head = made_head()
    with pytest.raises(InputError, match=r"no example 12.pngg\. Did you mean 12\.png\?"):
        without_examples(head, ["12.pngg"])
    with pytest.raises(ShapeError, match="Removing all 120"):
        without_examples(head, ["*"])
    with pytest.raises(InputError, match=r"3\.png would be in the head twice"):
        with_examples(head, head.layer.centers[:1], ["1"], ["3.png"])
    with pytest.raises(InputError, match="x would be in the head twice"):
        with_examples(head, head.layer.centers[:2], ["1", "1"], ["x", "x"])
    with pytest.raises(ShapeError, match="as many rows, got 2, 1 and 2"):
        with_examples(head, head.layer.centers[:2], ["1"], ["x", "y"])
    head.layer.remove(torch.arange(5))
    with pytest.raises(InputError, match="names 120 examples, but its layer has 115 centers"):
        write_head(tmp_path / "head.safetensors", head)
    assert not list(tmp_path.iterdir())
