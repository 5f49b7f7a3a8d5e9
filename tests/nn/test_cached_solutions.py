"""What continuous layers keep: solved once, only where needed, never stale, and the same as solving anew."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.nn.layers import (
    CONTINUOUS,
    NUM_NEIGHBORS,
    data,
    grown,
    make,
    predicts_as_rebuilt,
    queries,
    rebuilt,
    refitted,
    shrunk,
)
from tests.nn.test_base import EDITS, ONLY_FIXED, edited_behind_the_back, edited_in_numpy, embedding_kernel, stepped
from torch import Tensor

from torchkrr import kernels, neighbors, nn
from torchkrr.core import local
from torchkrr.errors import RidgeRaisedWarning, SolveError

CHOICES = {
    "blended": ("blended", {}),
    "blended, few anchors": ("blended", {"num_anchors": 20}),
    "blended, all anchors": ("blended", {"num_blended": 99}),
    "hierarchical": ("hierarchical", {}),
    "hierarchical, one point": ("hierarchical", {"num_coarse": 1}),
    "hierarchical, interpolate": ("hierarchical", {"coarse": "interpolate"}),
    "hierarchical, all coarse": ("hierarchical", {"num_coarse": 1000}),
}


# Rows came or went, or a checkpoint brought a coarse part of its own.
KEEPS_COARSE = {"grown", "shrunk", "grown_and_shrunk", "loaded", "loaded_by_assignment"}


@pytest.fixture
def solved(monkeypatch) -> list[int]:
    """How many local systems each solve had."""
    counts: list[int] = []
    plain = local.solve_embedded

    def counting(*arguments):
        counts.append(len(arguments[0].query))
        return plain(*arguments)

    monkeypatch.setattr(local, "solve_embedded", counting)
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("kernel", [kernels.Exponential(2.0), kernels.Matern52(2.0), kernels.Gaussian(2.0), None], ids=str)
@pytest.mark.parametrize("choice", CHOICES)
def test_with_and_without_gradients_the_prediction_is_the_same(choice, kernel, trend, dtype):
    kind, choices = CHOICES[choice]
    centers, values = (tensor.to(dtype) for tensor in data(3, 200))
    layer = make(kind, centers, centers.sin() @ values[:3], kernel=kernel, trend=trend, ridge=1e-9, **choices)
    query = queries(40).to(dtype)
    kept = layer(query)
    anew = layer(query.clone().requires_grad_())
    assert anew.requires_grad
    assert not kept.requires_grad
    truth = make(kind, centers.double(), layer.values.double(), kernel=layer.kernel, trend=trend, ridge=1e-9, **choices)
    tolerance = 1e-7 if dtype == torch.float64 else 2e-4
    for found in (kept, anew.detach()):
        torch.testing.assert_close(found.double(), truth(query.double()), rtol=tolerance, atol=tolerance)


def test_only_what_queries_meet_is_solved_and_only_once(solved):
    centers, values = data(1, 300)
    layer = make("blended", centers, values)
    query = queries(5)
    met = neighbors.nearest(query, centers, 3).unique().numel()
    layer(query)
    assert solved == [met]
    layer(query)
    layer(query[:2])
    layer(query.flip(0))
    assert solved == [met]
    more = torch.cat((query, queries(3, seed=7)))
    fresh = rebuilt(layer)(more)
    solved.clear()
    torch.testing.assert_close(layer(more), fresh, rtol=1e-5, atol=1e-6)
    assert 0 < sum(solved) <= 9


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_queries_one_at_a_time_give_what_they_give_together(kind):
    layer, query = make(kind), queries(60)
    single = torch.cat([layer(row) for row in query.split(1)])
    torch.testing.assert_close(single, rebuilt(layer)(query), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("edit", "learned"),
    [(edit, learned) for edit in EDITS for learned in (False, True) if not (learned and edit in ONLY_FIXED)],
)
@pytest.mark.parametrize("choice", ["blended", "blended, few anchors", "hierarchical"])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_predictions_follow_every_change(choice, edit, learned, grad):
    kind, choices = CHOICES[choice]
    layer = make(kind, kernel=embedding_kernel(), learn_centers=learned, **choices)
    with torch.set_grad_enabled(grad):
        before = layer(queries()).detach()
        EDITS[edit](layer)
        if edit in KEEPS_COARSE:
            refitted(layer)
        assert predicts_as_rebuilt(layer)
        # Or the test could not tell.
        assert not torch.allclose(layer(queries()), before, rtol=1e-4, atol=1e-5)


def values_edited(layer):
    layer.values.data.mul_(2)


def values_replaced(layer):
    layer.values = data(8)[1]


def one_value_edited_in_numpy(layer):
    # Of a center that counts.
    row = int(layer.explain(queries()).indices[0, 0])
    layer.values.detach().numpy()[row] += 1


def ridge_changed(layer):
    layer.ridge = 0.1


def ridge_edited(layer):
    layer.ridge.fill_(0.1)


def trend_changed(layer):
    layer.trend = "constant"


def fewer_neighbors(layer):
    layer.num_neighbors = 4


def fewer_anchors(layer):
    if isinstance(layer, nn.BlendedKernelRidge):
        layer.num_anchors = 9
    else:
        layer.num_coarse = 4


CHANGES = [
    values_edited,
    values_replaced,
    one_value_edited_in_numpy,
    ridge_changed,
    ridge_edited,
    trend_changed,
    fewer_anchors,
    edited_behind_the_back,
    edited_in_numpy,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_predictions_follow_changes_of_values_and_choices(kind, change):
    layer = make(kind, ridge=torch.tensor(1e-3))
    before = layer(queries())
    change(layer)
    assert predicts_as_rebuilt(layer)
    assert not torch.allclose(layer(queries()), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_predictions_follow_the_number_of_neighbors(kind):
    centers, values = data()
    layer = make(kind, num_coarse=4) if kind == "hierarchical" else make(kind)
    before = layer(queries())
    fewer_neighbors(layer)
    own = {"num_coarse": 4} if kind == "hierarchical" else {"num_blended": 3}
    other = type(layer)(centers, values, 4, kernel=layer.kernel, ridge=1e-4, **own)
    torch.testing.assert_close(layer(queries()), other(queries()))
    assert not torch.allclose(layer(queries()), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_predictions_follow_the_optimizer(kind):
    layer = make(kind, learn_centers=True)
    for _ in range(3):
        stepped(layer)
        with torch.no_grad():
            assert predicts_as_rebuilt(layer)


@pytest.mark.parametrize("kind", CONTINUOUS)
@pytest.mark.parametrize("change", [grown, shrunk])
def test_after_append_and_remove_it_is_a_new_layer(kind, change):
    layer = make(kind)
    layer(queries())
    change(layer)
    assert torch.equal(refitted(layer)(queries()), rebuilt(layer)(queries()))


def test_the_layout_is_kept_while_only_query_and_values_are_learned():
    layer = make("blended", learn_values=True)
    layer(queries())
    layout = layer._layout
    layer(queries().requires_grad_()).sum().backward()
    assert layer._layout is layout is not None


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_singular_cells_warn_when_solved_and_raise_if_asked_to(kind):
    centers, values = data()
    centers[30:] = centers[:30]  # every center twice
    layer = make(kind, centers, values, ridge=0.0)
    with pytest.warns(RidgeRaisedWarning):
        layer(queries())
    if kind == "blended":  # which keeps what it has solved
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(queries())
    layer.on_singular = "raise"
    for query in (queries(), queries().requires_grad_()):
        with pytest.raises(SolveError, match="cannot be solved in float64"):
            layer(query)


def test_errors_name_the_query():
    centers, values = data()
    centers[1] = centers[0]
    layer = make("blended", centers, values, ridge=0.0, on_singular="raise", num_blended=2)
    lists = neighbors.nearest(centers, centers, NUM_NEIGHBORS)
    alone = ~((lists == 0).any(1) & (lists == 1).any(1))
    good = queries(60)[alone[neighbors.nearest(queries(60), centers, 2)].all(1)][:3]
    layer(good)
    for query in (torch.cat((good, centers[:1])), torch.cat((good, centers[:1])).requires_grad_()):
        with pytest.raises(SolveError, match="The first is query 3;"):
            layer(query)


def test_memory_of_a_prediction_is_bounded(monkeypatch):
    largest = 0
    plain = torch.Tensor.square_

    def watching(tensor: Tensor) -> Tensor:
        nonlocal largest
        if tensor.ndim == 3 and tensor.shape[1] == NUM_NEIGHBORS:  # queries and the centers of their anchors
            largest = max(largest, tensor.numel() * tensor.element_size())
        return plain(tensor)

    centers, values = data(1, 500)
    layer, query = make("blended", centers, values), queries(400)
    expected = layer(query)
    monkeypatch.setattr("torchkrr._chunking.CPU_CHUNK_BYTES", 50_000)
    monkeypatch.setattr(torch.Tensor, "square_", watching)
    torch.testing.assert_close(layer(query), expected)
    assert 0 < largest < 50_000


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_predictions_explanations_and_powers_do_not_depend_on_the_chunks(kind, monkeypatch):
    data_of_all, query = data(1, 300), queries(50)
    layer = make(kind, *data_of_all)
    mean, (indices, weights), power = layer(query), layer.explain(query), layer.power_function(query)
    monkeypatch.setattr("torchkrr.functional.hierarchical.SEARCH_BYTES", 30_000)
    monkeypatch.setattr("torchkrr.core.least_squares.BLOCK", 77)
    monkeypatch.setattr("torchkrr._chunking.CPU_CHUNK_BYTES", 30_000)
    torch.testing.assert_close(make(kind, *data_of_all)(query), mean, rtol=1e-4, atol=1e-5)
    again = layer.explain(query)
    assert torch.equal(again.indices, indices)
    torch.testing.assert_close(again.weights, weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.power_function(query), power, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_the_number_of_threads_does_not_change_predictions(kind):
    query, before = queries(300), torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(make(kind, *data(1, 500))(query))
    torch.set_num_threads(before)
    torch.testing.assert_close(*results)
