"""Heads of images are for `torchkrr classify`."""

import pytest
import torch
from tests.cli.running import fails

import torchkrr
from torchkrr.errors import FileError
from torchkrr.estimators import LocalKernelRidgeClassifier
from torchkrr.vision.heads import Head, write_head


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_head_of_images_is_sent_to_classify(models, tmp_path, capsys, command):
    head, more = tmp_path / "head.safetensors", ["--out", tmp_path / "o.csv"] if command == "predict" else []
    layer = torchkrr.nn.LocalKernelRidge(torch.randn(9, 4), torch.eye(3).repeat(3, 1), 5)
    write_head(head, Head(layer, 0.1, ["cat", "dog", "owl"], [f"{i}.png" for i in range(9)], None))
    error = fails(capsys, command, head, models / "wine_test.csv", *more)
    assert "is a head for images" in error
    assert f"torchkrr classify {head}" in error
    with pytest.raises(FileError, match="is a head for images"):
        LocalKernelRidgeClassifier.load(head)
