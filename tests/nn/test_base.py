"""What a layer keeps is never stale, and is kept while nothing changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import INDEXES, NUM_FEATURES, Layer, data, grown, make, moved, predicts_as_rebuilt, queries, shrunk

from torchkrr import kernels, neighbors, transforms
from torchkrr.nn.base import Fingerprint


def stepped(layer: Layer) -> None:
    optimizer = torch.optim.SGD([layer.centers], lr=0.1)
    with torch.enable_grad():
        layer(queries()).square().sum().backward()
    optimizer.step()
    layer.centers.grad = None


def loaded(layer: Layer) -> None:
    layer.load_state_dict({**layer.state_dict(), "centers": data(5)[0]})


def loaded_by_assignment(layer: Layer) -> None:
    centers = data(5)[0]
    learned = isinstance(layer.centers, torch.nn.Parameter)
    state = {**layer.state_dict(), "centers": torch.nn.Parameter(centers) if learned else centers}
    layer.load_state_dict(state, assign=True)


def replaced(layer: Layer) -> None:
    centers = data(5)[0]
    layer.centers = torch.nn.Parameter(centers) if isinstance(layer.centers, torch.nn.Parameter) else centers


def given_other_data(layer: Layer) -> None:
    layer.centers.data = data(5)[0]


def lengthscale_edited(layer: Layer) -> None:
    with torch.no_grad():
        layer.kernel.log_lengthscale.add_(torch.tensor([2.0, 0.0, -2.0]))


def lengthscale_replaced(layer: Layer) -> None:
    layer.kernel.load_state_dict(
        {**layer.kernel.state_dict(), "log_lengthscale": torch.tensor([2.0, 0.0, -2.0], dtype=torch.float64)}
    )


def transform_fitted_again(layer: Layer) -> None:
    layer.kernel.input_transform.fit(data(6)[0] * torch.tensor([0.1, 1.0, 10.0]))


def transform_edited(layer: Layer) -> None:
    layer.kernel.input_transform.std.mul_(torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))


def kernel_replaced(layer: Layer) -> None:
    layer.kernel = kernels.Matern32([0.3, 1.0, 4.0])


def grown_and_shrunk(layer: Layer) -> None:
    grown(layer)
    layer.remove(torch.arange(0, 40, 3))
    grown(layer)


def index_used_by_another(layer: Layer) -> None:
    other = make("local", 3 * data(8)[0], index=layer.index)
    other(queries())
    moved(layer)


EDITS: dict[str, Callable[[Layer], None]] = {
    edit.__name__: edit
    for edit in (
        moved,
        loaded,
        loaded_by_assignment,
        replaced,
        given_other_data,
        lengthscale_edited,
        lengthscale_replaced,
        transform_fitted_again,
        transform_edited,
        kernel_replaced,
        grown,
        shrunk,
        grown_and_shrunk,
        index_used_by_another,
    )
}


# Learned centers neither grow nor shrink.
ONLY_FIXED = {"grown", "shrunk", "grown_and_shrunk"}


def embedding_kernel() -> kernels.Kernel:
    transform = transforms.Standardize().fit(data()[0])
    return kernels.Matern32([1.5, 1.0, 0.7], input_transform=transform)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize(
    ("edit", "learned"),
    [(edit, learned) for edit in EDITS for learned in (False, True) if not (learned and edit in ONLY_FIXED)],
)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_predictions_follow_every_change(index, edit, learned, grad):
    layer = make("local", kernel=embedding_kernel(), index=INDEXES[index](), learn_centers=learned)
    with torch.set_grad_enabled(grad):
        before = layer(queries()).detach()
        EDITS[edit](layer)
        assert predicts_as_rebuilt(layer)
        # Or the test could not tell.
        assert not torch.equal(layer(queries()), before)


@pytest.mark.parametrize("index", INDEXES)
def test_predictions_follow_the_optimizer(index):
    layer = make("local", learn_centers=True, index=INDEXES[index]())
    for _ in range(3):
        with torch.no_grad():
            before = layer(queries())
        stepped(layer)
        with torch.no_grad():
            assert predicts_as_rebuilt(layer)
            assert not torch.equal(layer(queries()), before)


def test_predictions_follow_a_learned_kernel():
    kernel = kernels.Matern32(1.5, learn_lengthscale=True, input_transform=transforms.Linear(torch.eye(3), learn=True))
    layer = make("local", kernel=kernel)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        layer(queries()).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_predictions_follow_the_dtype(dtype):
    layer = make("local")
    layer(queries())
    layer.to(dtype)
    assert predicts_as_rebuilt(layer)
    layer.float()
    assert predicts_as_rebuilt(layer)


def test_predictions_follow_the_device():
    layer = make("local")
    layer(queries())
    layer.to("meta")
    layer.to_empty(device="cpu")
    layer.load_state_dict(make("local", *data(1)).state_dict())
    assert torch.equal(layer(queries()), make("local", *data(1))(queries()))


def transform_given(layer: Layer) -> None:
    layer.kernel.input_transform = transforms.UnitNorm()


def edited_behind_the_back(layer: Layer) -> None:
    layer.centers.data.mul_(torch.tensor([5.0, 1.0, 0.2]))


def edited_in_numpy(layer: Layer) -> None:
    layer.centers.detach().numpy()[:] = data(5)[0].numpy()


@pytest.mark.parametrize(
    ("edit", "learned"),
    [
        pytest.param(transform_given, False),
        # Polyak averaging of target networks is usually written so.
        pytest.param(edited_behind_the_back, True),
        pytest.param(edited_behind_the_back, False),
        pytest.param(edited_in_numpy, False),
    ],
)
def test_predictions_follow_changes_that_torch_does_not_count(edit, learned):
    layer = make("local", learn_centers=learned)
    with torch.no_grad():
        layer(queries())
        edit(layer)
        assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", ["local", "blended"])
@pytest.mark.parametrize("index", INDEXES)
def test_two_layers_share_one_index(index, kind):
    shared = INDEXES[index]()
    first, second = make(kind, *data(1), index=shared), make(kind, 2 * data(2)[0], data(2)[1], index=shared)
    for _ in range(2):
        assert predicts_as_rebuilt(first)
        assert predicts_as_rebuilt(second)
    for layer in (first, second, first):
        layer.append(queries() + 0.1, data(3, 9)[1])
        layer.remove(torch.tensor([0, 5]))
    assert predicts_as_rebuilt(first)
    assert predicts_as_rebuilt(second)


def test_an_index_built_by_the_caller_for_something_else_is_built_again():
    index = neighbors.ExactIndex()
    layer = make("local", index=index)
    layer(queries())
    index.build(torch.randn(100, NUM_FEATURES))
    assert predicts_as_rebuilt(layer)
    index.append(torch.randn(5, NUM_FEATURES))
    assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("index", INDEXES)
def test_embedded_centers_are_kept_while_nothing_changed(learned, index):
    layer = make("local", learn_centers=learned, learn_values=True, kernel=None, index=INDEXES[index]())
    with torch.no_grad():
        layer(queries())
        points = layer.index.points
        layer(queries())
        layer.power_function(queries())
        layer.explain(queries())
        layer.neighbors(queries())
        layer.eval()
        layer.state_dict()
        layer.values.add_(1)
        layer(queries(2, 3))
    assert layer.index.points is points


def test_embedded_centers_are_kept_while_only_query_and_values_are_learned():
    layer = make("local", learn_values=True)
    layer(queries())
    points = layer.index.points
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        layer(queries().requires_grad_()).sum().backward()
        optimizer.step()
    assert layer.index.points is points


def test_appending_embeds_only_what_is_new(monkeypatch):
    layer = make("local")
    layer(queries())
    embedded = []
    embed = layer.kernel.embed
    monkeypatch.setattr(layer.kernel, "embed", lambda x: embedded.append(len(x)) or embed(x))
    layer.append(*data(1, 5))
    layer.remove(torch.tensor([3]))
    assert embedded == [5]
    layer(queries())
    assert set(embedded[1:]) == {9}, "more than the queries was embedded"


class Power(kernels.Kernel):
    """A kernel with a number that is no tensor."""

    exponent = 1.0

    def profile(self, distance):
        return torch.exp(-(distance**self.exponent))


@pytest.mark.parametrize("kind", ["local", "blended", "hierarchical"])
def test_an_edit_beside_a_huge_column_is_seen(kind):
    """A time stamp, say: beside it, sums of floats would lose the other columns."""
    centers, values = data()
    centers = torch.cat((1.6e9 + 1e3 * torch.arange(len(centers))[:, None], centers[:, 1:]), 1)
    layer = make(kind, centers.clone(), values.clone(), kernel=kernels.Matern32([1e4, 1.0, 1.0]))
    query = centers[:5] + 0.1
    layer(query)
    layer.centers[:, 1] = layer.centers[:, 1].flip(0)
    assert predicts_as_rebuilt(layer, query)


@pytest.mark.parametrize("kind", ["local", "blended", "hierarchical"])
def test_an_edit_of_values_beside_huge_ones_is_seen(kind):
    centers, values = data()
    values = torch.cat((torch.full((len(values), 1), 1e8), values[:, 1:]), 1)
    layer = make(kind, centers, values)
    layer(queries())
    layer.values[:, 1] += 1.0
    fresh = make(kind, centers, layer.values.clone())
    torch.testing.assert_close(layer(queries())[:, 1], fresh(queries())[:, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["local", "blended", "hierarchical"])
def test_a_number_of_the_kernel_that_is_no_tensor(kind):
    layer = make(kind, kernel=Power(2.0))
    before = layer(queries())
    layer.kernel.exponent = 0.7
    assert not torch.allclose(layer(queries()), before)
    assert predicts_as_rebuilt(layer)


def test_every_counted_edit_of_one_number_is_seen():
    rows, kernel = torch.randn(500, 20), kernels.Exponential()
    for row in (0, 1, 250, 499):
        before = Fingerprint([rows], kernel)
        assert before.matches([rows], kernel)
        rows[row, 3] += 1
        assert not before.matches([rows], kernel)


def test_a_copy_at_another_place_is_not_the_same_tensor():
    rows, kernel = torch.randn(500, 20), kernels.Exponential()
    assert not Fingerprint([rows], kernel).matches([rows.clone()], kernel)
    assert not Fingerprint([rows], kernel).matches([rows[:]], kernel)


def test_a_copied_fingerprint_compares_the_sample():
    rows, kernel = torch.randn(500, 20), kernels.Exponential()
    fingerprint, copied, kernel = copy.deepcopy((Fingerprint([rows], kernel), rows, kernel))
    assert fingerprint.matches([copied], kernel)
    assert not fingerprint.matches([copied + 1], kernel)
    assert not fingerprint.matches([copied[:-1]], kernel)


@pytest.mark.parametrize("kind", ["local", "blended", "hierarchical"])
def test_refresh_follows_an_edit_that_neither_counter_nor_sample_sees(kind):
    centers, values = torch.randn(3000, 3), torch.randn(3000, 2)
    layer = make(kind, centers, values, kernel=kernels.Matern32(1.5))
    query = centers[1:2] + 0.01
    before = layer(query)
    with torch.no_grad():
        layer.centers.data[1] += 5
        assert torch.equal(layer(query), before) or kind != "local"
    layer.refresh()
    assert predicts_as_rebuilt(layer, query)
    assert not torch.equal(layer(query), before)


@pytest.mark.parametrize("features", [20, 2000, 40_000])
@pytest.mark.parametrize("row", [0, -1])
def test_an_edit_that_no_counter_sees_is_in_the_sample_however_wide(features, row):
    rows, kernel = torch.randn(210, features), kernels.Exponential()
    fingerprint = Fingerprint([rows], kernel)
    assert fingerprint.matches([rows], kernel)
    rows.data[row, -1] += 1
    assert not fingerprint.matches([rows], kernel)


def test_a_call_reads_no_more_of_many_centers_than_of_few():
    sizes = []
    for count in (1_000, 100_000):
        mark = Fingerprint([torch.randn(count, 20)], kernels.Exponential())
        sizes.append(sum(one.sample.numel() for one in mark._marks))
    assert sizes[0] == sizes[1] == 64 * 20 + 1
