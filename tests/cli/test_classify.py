"""`torchkrr classify` is `torchkrr predict`, and heads of 0.1.0 are refused with what to do."""

import os

import pytest
import torch
from tests.cli.running import fails, read

from torchkrr import storage
from torchkrr.cli import main
from torchkrr.errors import FileError, KernelRidgeWarning
from torchkrr.estimators import LocalKernelRidgeClassifier


def test_the_former_name_predicts_and_names_the_new_one(models, tmp_path):
    order = [models / "wine.krr", models / "wine_test.csv"]  # that of 0.1.0
    with pytest.warns(KernelRidgeWarning, match="It is predict now: torchkrr predict DATA MODEL"):
        assert main(["classify", *map(str, order), "--out", str(tmp_path / "a.csv"), "--quiet"]) == 0
    assert main(["predict", *map(str, reversed(order)), "--out", str(tmp_path / "b.csv"), "--quiet"]) == 0
    assert read(tmp_path / "a.csv").equals(read(tmp_path / "b.csv"))


@pytest.mark.parametrize("command", ["predict", "evaluate", "update"])
def test_a_head_of_a_former_version_says_how_to_write_it_again(models, tmp_path, capsys, command):
    head = tmp_path / "head.safetensors"
    storage.write_model(head, storage.Stored("transfer head", {"centers": torch.zeros(2, 3)}, {"items": ["a", "b"]}))
    more = ["--out", tmp_path / "o.csv"] if command != "evaluate" else []
    words = [head, "--remove", "a"] if command == "update" else [models / "wine_test.csv", head]
    error = fails(capsys, command, *words, *more)
    assert f"{head} is a head that torchkrr transfer of version 0.1.0 wrote" in error
    assert "Write it again: torchkrr transfer DATA, or torchkrr fit DATA --backbone NAME" in error
    assert os.listdir(tmp_path) == ["head.safetensors"]
    with pytest.raises(FileError, match=r"of version 0\.1\.0"):
        LocalKernelRidgeClassifier.load(head)
