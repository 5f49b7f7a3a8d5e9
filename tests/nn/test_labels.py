"""Layers from labels, and their probabilities."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from torchkrr import nn
from torchkrr.core.temperature import best_temperature
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.nn import labels as labels_module

MAKERS = {
    "dense": lambda x, y, **choices: nn.KernelRidge.from_labels(x, y, ridge=1e-2, **choices),
    "local": lambda x, y, **choices: nn.LocalKernelRidge.from_labels(x, y, num_neighbors=15, ridge=1e-2, **choices),
}
KINDS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def noisy(seed=0, count=200):
    """Three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return torch.eye(3)[labels] * 1.5 + torch.randn(count, 3, generator=generator), labels


@KINDS
def test_labels_are_one_hot_values(make):
    x, y = noisy()
    layer = make(x, y)
    assert torch.equal(layer.values, torch.eye(3)[y])
    assert make(x.double(), y.int(), num_classes=5).values.shape == (200, 5)
    assert make(x.double(), y).values.dtype == torch.float64


def test_number_of_classes_and_neighbors_by_position():
    layer = nn.LocalKernelRidge.from_labels(*noisy(), 4, 7, kernel="gaussian", trend="constant")
    assert (layer.out_features, layer.num_neighbors, layer.trend) == (4, 7, "constant")


@KINDS
def test_probabilities_are_the_softmax_at_the_temperature_of_leave_one_out(make):
    x, y = noisy()
    layer, query = make(x, y), noisy(1)[0]
    left_out = []
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        left_out.append(make(x[others], y[others], kernel=layer.kernel)(x[i : i + 1]))
    temperature = best_temperature(torch.cat(left_out).double(), layer.values.double())
    found = layer.predict_proba(query.reshape(2, 100, 3))
    assert found.shape == (2, 100, 3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.reshape(200, 3), torch.softmax(layer(query) / temperature, -1), rtol=1e-3, atol=1e-4)


@KINDS
def test_probabilities_are_worth_more_than_those_of_another_temperature(make):
    x, y = noisy(0, 600)
    query, truth = noisy(1, 600)
    layer = make(x, y)
    loss = torch.nn.functional.nll_loss(layer.predict_proba(query).log(), truth)
    for factor in (0.2, 5.0):
        other = torch.nn.functional.cross_entropy(layer(query) / (factor * layer.temperature), truth)
        assert loss < other
    assert loss < 1.0


@KINDS
def test_gradients_reach_the_query(make):
    x, y = noisy()
    query = x[:5].clone().requires_grad_()
    make(x, y).predict_proba(query)[:, 0].sum().backward()
    assert query.grad.abs().sum() > 0


@pytest.mark.parametrize("copied", ["state_dict", "deepcopy", "pickle"])
@KINDS
def test_the_temperature_is_found_once_and_goes_with_copies(make, copied, monkeypatch):
    x, y = noisy()
    layer, query = make(x, y), noisy(1)[0]
    assert layer.temperature is None
    assert "temperature" not in layer.state_dict()
    expected = layer.predict_proba(query)
    if copied == "state_dict":
        other = make(*noisy(5, 40), num_classes=3)
        other.predict_proba(query)
        other.load_state_dict(layer.state_dict())
    else:
        other = copy.deepcopy(layer) if copied == "deepcopy" else pickle.loads(pickle.dumps(layer))
    monkeypatch.setattr(labels_module, "best_temperature", lambda *_: pytest.fail("it was chosen again"))
    assert torch.equal(layer.predict_proba(query), expected)
    assert torch.equal(other.predict_proba(query), expected)


def test_the_temperature_follows_a_change():
    x, y = noisy()
    layer, query = MAKERS["local"](x, y), noisy(1)[0]
    first = layer.predict_proba(query)
    layer.remove(range(100))
    assert torch.equal(
        layer.predict_proba(query), MAKERS["local"](x[100:], y[100:], kernel=layer.kernel).predict_proba(query)
    )
    layer.ridge = 10.0
    assert "temperature" not in layer.state_dict()
    assert not torch.equal(layer.predict_proba(query), first)


def test_a_state_without_a_temperature_makes_it_anew():
    layer, query = MAKERS["local"](*noisy()), noisy(1)[0]
    expected = layer.predict_proba(query)
    other = copy.deepcopy(layer)
    other.load_state_dict({name: tensor for name, tensor in layer.state_dict().items() if name != "temperature"})
    assert other.temperature is None
    assert torch.equal(other.predict_proba(query), expected)


X, Y = noisy(0, 6)
REFUSED = {
    "floats": (X, Y.float(), None, InputTypeError, r"labels must have dtype torch\.int64, got torch\.float32"),
    "one-hot": (
        X,
        torch.eye(3).long()[Y],
        None,
        ShapeError,
        r"labels must have shape \(6,\), a class for each row, got \(6, 3\)",
    ),
    "too few": (X, Y[:5], None, ShapeError, r"labels must have shape \(6,\)"),
    "negative": (X, Y - 1, None, InputError, r"labels must lie between 0 and 1 .*Number the classes from 0"),
    "too large": (X, Y, 2, InputError, r"labels must lie between 0 and 1 \(there are 2 classes\), got values from 0 to 2"),
    "no classes": (X, Y, 0, InputError, r"num_classes must be at least 1, got 0"),
    "classes": (X, Y, "three", InputTypeError, r"num_classes must be an int, got 'three'"),
    "list": (X, Y.tolist(), None, InputTypeError, r"labels must be a torch\.Tensor, got list"),
    "empty": (X[:0], Y[:0], None, ShapeError, r"features is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_labels_are_refused(case):
    features, labels, num_classes, error, pattern = REFUSED[case]
    with pytest.raises(error, match=pattern):
        nn.LocalKernelRidge.from_labels(features, labels, num_classes)


@pytest.mark.parametrize("values", [Y, Y[:, None], Y.float()], ids=["labels", "integers", "one dimension"])
def test_values_that_are_labels_name_all_ways_out(values):
    with pytest.raises((InputTypeError, ShapeError)) as caught:
        nn.LocalKernelRidge(X, values)
    for way in ("LocalKernelRidge.from_labels", "one_hot(labels).to(dtype)", "values[:, None]"):
        assert way in str(caught.value)


def test_probabilities_need_classes_and_rows_to_leave_out():
    with pytest.raises(InputError, match=r"predict_proba needs values that are class prob.*LocalKernelRidge\.from_labels"):
        nn.LocalKernelRidge(X, torch.randn(6, 2)).predict_proba(X)
    with pytest.raises(InputError, match="needs one column of values per class, got 1"):
        nn.KernelRidge(X, torch.ones(6, 1)).predict_proba(X)
    with pytest.raises(ShapeError, match="leaving one out needs at least 2"):
        nn.LocalKernelRidge.from_labels(X[:1], Y[:1], 3).predict_proba(X)
    layer = nn.HierarchicalKernelRidge.from_labels(X, Y)
    with pytest.raises(InputError, match=r"none can be left out of it\. Use a LocalKernelRidge"):
        layer.predict_proba(X)
