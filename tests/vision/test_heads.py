"""A head comes back from its file as it was; anything else in its place is an error that says what it is."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.experiments.labelled import digits, training

from torchkrr import kernels, transforms
from torchkrr.errors import FileError
from torchkrr.estimators import KernelRidgeRegressor, storage
from torchkrr.experiments.heads import Head, read_head, write_head
from torchkrr.nn import LocalKernelRidge

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
