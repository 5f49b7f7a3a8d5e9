"""A layer in a file predicts the same, to the last bit. Files as such are tested with the estimators, which share them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.nn.layers import data, queries

import torchkrr
from torchkrr import kernels, neighbors, nn, storage, transforms
from torchkrr.errors import FileError, InputError, InputTypeError

STANDARD = transforms.Compose(transforms.Standardize(), transforms.Linear(torch.eye(3)[:2] + 0.5)).fit(data()[0])
MAKERS = {
    "dense": lambda: nn.KernelRidge(*data(), kernel="gaussian", ridge=1e-3, trend="constant", backend="torch"),
    "local": lambda: nn.LocalKernelRidge(*data(), np.int64(8), kernel=kernels.Matern52([1.0, 2.0, 3.0]), fade=True),
    "cell": lambda: nn.LocalKernelRidge(*data(), 8, normalize="cell", ridge=0.1, keep_factors=5, on_singular="raise"),
    "index": lambda: nn.LocalKernelRidge(*data(), 8, index=neighbors.AutoIndex(num_queries=50)),
    "transform": lambda: nn.LocalKernelRidge(*data(), 10**6, kernel=kernels.RationalQuadratic(2, input_transform=STANDARD)),
    "wendland": lambda: nn.LocalKernelRidge(*data(), 8, kernel=kernels.Wendland(5.0, dimension=4), ridge=torch.tensor(0.2)),
    "float64": lambda: nn.LocalKernelRidge(*(tensor.double() for tensor in data()), 8),
    "bfloat16": lambda: nn.LocalKernelRidge(*(tensor.bfloat16() for tensor in data()), 8, ridge=0.1),
    "blended": lambda: nn.BlendedKernelRidge(*data(), 8, num_blended=3, num_anchors=20),
    "hierarchical": lambda: nn.HierarchicalKernelRidge(*data(), 8, num_coarse=10, coarse="interpolate", coarse_ridge=1e-3),
}
EVERY = pytest.mark.parametrize("name", MAKERS)


def same(one, other):
    query = queries().to(one.centers.dtype)
    return (
        type(one) is type(other)
        and repr(one) == repr(other)
        and torch.equal(one(query), other(query))
        and torch.equal(one.power_function(query), other.power_function(query))
    )


@EVERY
@pytest.mark.parametrize("used", [False, True])
def test_a_loaded_layer_is_the_same_to_the_last_bit(name, used, tmp_path):
    layer = MAKERS[name]()
    if used:
        layer(queries().to(layer.centers.dtype))
    torchkrr.save(layer, tmp_path / "layer.krr")
    loaded = torchkrr.load(str(tmp_path / "layer.krr"))
    assert same(loaded, layer)
    for choice in storage.CHOICES:
        assert getattr(loaded, choice, None) == getattr(layer, choice, None), choice
    if hasattr(layer, "index"):
        assert type(loaded.index) is type(layer.index)
        assert loaded.index.__getstate__() == layer.index.__getstate__()
    assert os.listdir(tmp_path) == ["layer.krr"]


@EVERY
def test_a_layer_that_has_changed_is_saved_as_it_is(name, tmp_path):
    layer, (centers, values) = MAKERS[name](), data(5, 9)
    query = queries().to(layer.centers.dtype)
    layer(query)
    layer.append(centers.to(query), values.to(query))
    layer.remove(range(3, 55))  # fewer than some have anchors
    torchkrr.save(layer, tmp_path / "layer.krr")
    assert same(torchkrr.load(tmp_path / "layer.krr"), layer)


def test_what_was_learned_is_learned_again(tmp_path):
    kernel = kernels.Exponential(2.0, learn_lengthscale=True)
    ridge = torch.nn.Parameter(torch.tensor(0.1))
    layer = nn.LocalKernelRidge(*data(), 8, kernel=kernel, ridge=ridge, learn_values=True)
    torchkrr.save(layer, tmp_path / "layer.krr")
    loaded = torchkrr.load(tmp_path / "layer.krr")
    assert same(loaded, layer)
    expected, found = dict(layer.named_parameters()), dict(loaded.named_parameters())
    assert found.keys() == expected.keys()
    for one in (layer, loaded):
        one(queries()).square().sum().backward()
    for name, parameter in expected.items():
        assert found[name].dtype == parameter.dtype
        assert torch.equal(found[name].grad, parameter.grad)


def test_probabilities_go_with_the_file(tmp_path, monkeypatch):
    layer = nn.LocalKernelRidge.from_labels(data()[0], torch.arange(60) % 3)
    expected = layer.predict_proba(queries())
    torchkrr.save(layer, tmp_path / "layer.krr")
    loaded = torchkrr.load(tmp_path / "layer.krr")
    monkeypatch.setattr("torchkrr.nn.labels.best_temperature", lambda *_: pytest.fail("it was chosen again"))
    assert torch.equal(loaded.predict_proba(queries()), expected)


def test_another_process_finds_the_same_and_needs_no_estimators(tmp_path):
    layer = MAKERS["local"]()
    torchkrr.save(layer, tmp_path / "layer.krr")
    program = (
        "import pickle, sys, torch, torchkrr\n"
        "layer, query = torchkrr.load(sys.argv[1]), torch.load(sys.argv[2])\n"
        "torch.save(layer(query), sys.argv[2])\n"
        "assert not any(name.startswith('torchkrr.estimators') for name in sys.modules)\n"
    )
    torch.save(queries(), tmp_path / "query")
    command = [sys.executable, "-c", program, str(tmp_path / "layer.krr"), str(tmp_path / "query")]
    subprocess.run(command, check=True, timeout=100)
    assert torch.equal(torch.load(tmp_path / "query"), layer(queries()))


def test_estimators_are_at_the_top_and_go_the_same_way(tmp_path):
    from torchkrr import estimators

    assert estimators.load is torchkrr.load
    assert torchkrr.LocalKernelRidgeClassifier is estimators.LocalKernelRidgeClassifier
    assert torchkrr.LocalKernelRidgeRegressor is estimators.LocalKernelRidgeRegressor
    x, y = (tensor.numpy() for tensor in data())
    model = torchkrr.LocalKernelRidgeRegressor(8, kernel="matern32", metric=None).fit(x, y[:, 0])
    torchkrr.save(model, tmp_path / "model.krr")
    np.testing.assert_array_equal(torchkrr.load(tmp_path / "model.krr").predict(x), model.predict(x))
    # The kernel of an estimator, with a map of its own, in a layer.
    torchkrr.save(nn.LocalKernelRidge(*data(), 8, kernel=model.kernel_), tmp_path / "layer.krr")
    assert same(torchkrr.load(tmp_path / "layer.krr"), nn.LocalKernelRidge(*data(), 8, kernel=model.kernel_))
    with pytest.raises(FileError, match=r"holds a LocalKernelRidge, not a .*torchkrr\.load reads every layer and estimator"):
        estimators.LocalKernelRidgeRegressor.load(tmp_path / "layer.krr")


class Mine(nn.LocalKernelRidge):
    pass


class Cauchy(kernels.Kernel):
    def profile(self, distance):
        return 1 / (1 + distance.square())


class Own(neighbors.ExactIndex):
    pass


@pytest.mark.parametrize(
    ("thing", "error", "pattern"),
    [
        (torch.nn.Linear(2, 2), InputTypeError, r"Only KernelRidge, .* can be saved, got Linear\. For other modules use"),
        (Mine(*data(), 8), InputTypeError, r"can be saved, got Mine"),
        ({"a": 1}, InputTypeError, r"can be saved, got dict"),
        (nn.KernelRidge(*data(), kernel=Cauchy()), InputError, r"class Cauchy cannot be saved"),
        (
            nn.LocalKernelRidge(*data(), 8, index=Own()),
            InputError,
            r"index of the class Own cannot be saved\. Use one of Exact",
        ),
    ],
    ids=["module", "subclass", "dict", "kernel", "index"],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(thing, error, pattern, tmp_path):
    with pytest.raises(error, match=pattern):
        torchkrr.save(thing, tmp_path / "thing.krr")
    assert os.listdir(tmp_path) == []


def test_parametrized_tensors_are_refused(tmp_path):
    layer = nn.KernelRidge(*data(), kernel="gaussian", learn_values=True)
    torch.nn.utils.parametrize.register_parametrization(layer, "values", torch.nn.Softplus(), unsafe=True)
    with pytest.raises(InputTypeError, match="can be saved, got ParametrizedKernelRidge"):
        torchkrr.save(layer, tmp_path / "layer.krr")


def test_damaged_and_foreign_files_are_named(tmp_path):
    path = tmp_path / "layer.krr"
    torchkrr.save(MAKERS["local"](), path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(FileError, match=r"layer\.krr"):
            torchkrr.load(path)
    path.write_bytes(whole[:-9])
    with pytest.raises(FileError, match=r"cut off|damaged"):
        torchkrr.load(path)
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(FileError, match=r"a pickle, not a model.*or by torchkrr\.save"):
        torchkrr.load(path)
    with pytest.raises(FileError, match=r"nowhere cannot be read"):
        torchkrr.load(tmp_path / "nowhere")
    storage.write_model(path, storage.Stored("LocalKernelRidge", {"centers": torch.zeros(2, 1)}, {}))
    with pytest.raises(FileError, match=r"does not hold what a LocalKernelRidge is made of: KeyError"):
        torchkrr.load(path)


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "layer.krr"
    torchkrr.save(MAKERS["local"](), path)
    before = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(OSError, match="no room"):
        torchkrr.save(MAKERS["dense"](), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["layer.krr"]
