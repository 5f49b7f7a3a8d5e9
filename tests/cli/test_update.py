"""`torchkrr update`: images and features are added to a head, and removed."""

import json
import shutil

import numpy as np
import pytest
import torch
from tests.cli.running import fails, works
from tests.vision.labeled import digits, write_folder
from tests.vision.test_heads import made_head
from tests.vision.test_transfer import config

from torchkrr.vision import transfer
from torchkrr.vision.heads import read_head, write_head


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The head of a run on images."""
    root = tmp_path_factory.mktemp("update")
    data = write_folder(root / "data", 200)
    transfer.run(config(data, root / "out", budgets=(None,), readouts=("sk",), backbone="identity", size=8))
    return root / "out" / "head.safetensors"


def test_the_command_adds_and_removes_images(head, tmp_path, capsys):
    new = tmp_path / "new.safetensors"
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
