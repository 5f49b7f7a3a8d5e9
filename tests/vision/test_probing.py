"""One call in a notebook: what it gives, what it leaves alone, what it says about bad input."""

import pytest
import torch
from tests.vision.labeled import digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchkrr
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.vision.probing import probe


@pytest.fixture
def network():
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 2)]
    return nn.Sequential(*parts)


def loader(count, start=0, shuffle=False):
    return DataLoader(TensorDataset(*digits(count, start)), batch_size=50, shuffle=shuffle)


def quick(network, batches, **choices):
    return probe(
        network, batches, **{"layers": ["0", "2", "3"], "sizes": (60, None), "seeds": 2, "readouts": ("sk",), **choices}
    )


def test_the_result_is_a_table_a_figure_and_numbers(network):
    result = quick(network, loader(300), test=loader(100, start=300), readouts=("sk", "knn"))
    assert [(cell.discarded, cell.layer, cell.num_features) for cell in result.cells[::4]] == [
        (0, "3", 2),
        (1, "2", 32),
        (2, "0", 64),
    ]
    assert len(result.records) == 3 * (2 + 1) * 2
    sizes = {(cell.budget, cell.num_seeds) for cell in result.cells}
    assert sizes == {(60, 2), (300, 1)}
    assert result.best.layer in ("0", "2")  # two numbers hold less
    assert result.best.cell.accuracy == result.best.accuracy
    assert result.best.accuracy == max(cell.accuracy for cell in result.cells if cell.budget == 300) > 0.8
    assert "accuracy in % with 300 training examples" in result.table
    assert result.table in repr(result)
    assert "pooling: mean" in repr(result)
    assert result._repr_html_().count("<table>") == 2
    assert len(result.plot().axes) == 3


def test_features_are_those_of_the_layers_in_eval_mode(network):
    network[0].eval()
    before = [module.training for module in network.modules()]
    statistics = network[0][1].running_mean.clone()
    result = quick(network, loader(200), sizes=(None,), test=loader(50, start=200))
    assert [module.training for module in network.modules()] == before
    assert torch.equal(network[0][1].running_mean, statistics)
    (x, labels), (queries, truth) = digits(200), digits(50, start=200)
    network.eval()
    with torch.no_grad():
        layer = torchkrr.nn.LocalKernelRidge(network[0](x), nn.functional.one_hot(labels, 10).float(), 100)
        right = layer(network[0](queries)).argmax(1) == truth
    record = next(record for record in result.records if record["layer"] == "0")
    assert record["accuracy"] == pytest.approx(float(right.double().mean()))
    assert record["num_test"] == 50


def test_without_test_batches_a_share_of_every_class_is_held_back(network):
    result = quick(network, loader(200), sizes=(None,), test_share=0.25)
    assert {(record["budget"], record["num_test"]) for record in result.records} == {(150, 50)}


def test_the_network_is_called_once_for_each_batch(network):
    calls = []
    network[0].register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    quick(network, loader(120), test=loader(30, start=120))
    assert calls == [50, 50, 20, 30]


def test_inputs_of_other_sizes_are_not_mixed_up():
    flat = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    small, large = ([(torch.randn(20, 1, size, size), torch.arange(20) % 2)] for size in (6, 8))
    choices = {"layers": ["1"], "sizes": (None,), "readouts": ("sk",), "pooling": "flatten"}
    with pytest.raises(ShapeError, match=r"\[32\] features for batches of loader, but \[72\] for those of test"):
        probe(flat, small, test=large, **choices)
    with pytest.raises(ShapeError, match=r"\[72\] features for a batch, but \[32\]"):
        probe(flat, small + large, **choices)


@pytest.mark.parametrize("share", [0, 1, 20, -0.5])
def test_a_share_lies_between_none_and_all(network, share):
    with pytest.raises(InputError, match="test_share must lie between 0 and 1"):
        quick(network, loader(50), test_share=share)


def test_one_example_is_not_enough(network):
    with pytest.raises(InputError, match="One example is left to train on"):
        quick(network, [(torch.randn(1, 64), torch.tensor([0]))], test=loader(10), sizes=(None,))


def test_the_top_level_name_is_the_same():
    assert torchkrr.probe is probe
    assert torchkrr.vision.probe is probe


@pytest.mark.parametrize(
    ("batches", "error", "words"),
    [
        ([], InputError, "no batches"),
        ([torch.zeros(3, 64)], InputTypeError, r"batches \(inputs, labels\), got Tensor"),
        ([(torch.zeros(3, 64), torch.zeros(3))], InputTypeError, r"whole numbers, got torch.float32 of shape \(3,\)"),
        ([(torch.zeros(3, 64), [0, 1, 2])], InputTypeError, "got list"),
        ([(torch.zeros(3, 64), torch.tensor([0, 1]))], ShapeError, "2 labels, but features of 3"),
        ([(torch.zeros(3, 64), torch.tensor([0, -1, 1]))], InputError, "the least one is -1"),
        ([(torch.full((3, 64), torch.nan), torch.tensor([0, 1, 1]))], InputError, "features of a batch"),
    ],
)
def test_batches_that_cannot_be_used_are_errors(network, batches, error, words):
    with pytest.raises(error, match=words):
        quick(network, batches)
    assert network.training


def test_an_unknown_network_needs_layers(network):
    with pytest.raises(InputError, match=r"stages of Sequential end is not known here.*layers=\[...\]"):
        probe(network, loader(50))
