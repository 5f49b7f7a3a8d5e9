"""Examples in and out of a head: as if it had been made so, with the right names."""

import json
import shutil

import numpy as np
import pytest
import torch
from tests.cli.running import fails, works
from tests.experiments.labelled import digits, write_folder
from tests.experiments.test_classify import folder  # noqa: F401
from tests.experiments.test_heads import made_head

from torchkrr.errors import InputError, ShapeError
from torchkrr.experiments.classify import classify
from torchkrr.experiments.head_examples import with_examples, without_examples
from torchkrr.experiments.heads import read_head, write_head


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


def test_the_command_adds_and_removes_images(folder, tmp_path, capsys):  # noqa: F811
    head, new = folder / "out" / "head.safetensors", tmp_path / "new.safetensors"
    extra = tmp_path / "extra"
    shutil.copytree(write_folder(tmp_path / "all", 40) / "digit 3", extra / "digit 3")
    shutil.copytree(tmp_path / "all" / "digit 4", extra / "owl")
    count = len(list(extra.rglob("*.png")))
    before = read_head(head)
    works("update", head, "--add", extra, "--remove", "digit 7/*", "--out", new, "--json")
    said = json.loads(capsys.readouterr().out)
    after = read_head(new)
    assert said["added"] == count
    assert said["removed"] == sum(item.startswith("digit 7/") for item in before.items) > 0
    assert said["examples"] == len(after.items) == len(before.items) + count - said["removed"]
    assert said["classes"]["digit 7"] == 0
    assert said["classes"]["owl"] == len(list((extra / "owl").iterdir()))
    picture = sorted((extra / "owl").iterdir())[0]
    works("classify", new, picture, "--explain", "1")
    assert f"extra/owl/{picture.name} (owl)" in capsys.readouterr().out
    assert "There is nothing to do" in fails(capsys, "update", head, "--out", new)
    assert "it is no folder" in fails(capsys, "update", head, "--add", tmp_path / "none", "--out", new)
    works("update", head, "--remove", before.items[0], "--out", new)
    assert "0 added, 1 removed" in capsys.readouterr().out


def test_the_command_adds_features(tmp_path, capsys):
    write_head(tmp_path / "head.safetensors", made_head()._replace(backbone=None))
    features, labels = digits(6, start=1000)
    np.savez(tmp_path / "more.npz", features=features.numpy(), labels=labels.numpy())
    np.savez(tmp_path / "few.npz", features=features.numpy(), labels=labels.numpy()[:2])
    head, new = tmp_path / "head.safetensors", tmp_path / "new.safetensors"
    works("update", head, "--add", tmp_path / "more.npz", "--out", new)
    assert "126: 6 added" in capsys.readouterr().out
    assert torch.equal(read_head(new).layer.values[120:].argmax(1), labels)
    assert "one label for each row of its 6" in fails(capsys, "update", head, "--add", tmp_path / "few.npz", "--out", new)
