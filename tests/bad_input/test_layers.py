"""Bad input to append, remove and checkpoints of layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tests.bad_input.tables import (
    INF,
    NAN,
    NUM_CENTERS,
    REMOVED,
    blended_layer,
    check_refused,
    dense_layer,
    good,
    hierarchical_layer,
    local_layer,
    with_first,
)
from torch import Tensor

from torchkrr import neighbors, nn
from torchkrr.errors import InputError, InputTypeError, ShapeError

MAKE = {
    "KernelRidge": dense_layer,
    "LocalKernelRidge": local_layer,
    "BlendedKernelRidge": blended_layer,
    "HierarchicalKernelRidge": hierarchical_layer,
}


NEW = {
    "centers_list": ("centers", Tensor.tolist, InputTypeError, r"centers must be a torch\.Tensor, got list.*as_tensor"),
    "centers_integer": ("centers", Tensor.long, InputTypeError, r"centers must have a floating dtype.*centers\.float\(\)"),
    "centers_one_dimension": ("centers", lambda t: t[0], ShapeError, r"centers must have shape \(rows, features\).*None, :"),
    "centers_nan": ("centers", with_first(NAN), InputError, r"centers must be finite.*Remove or impute"),
    "centers_inf": ("centers", with_first(INF), InputError, r"centers must be finite.*Remove or impute"),
    "centers_empty": ("centers", lambda t: t[:0], ShapeError, r"centers is empty.*Give at least one row"),
    "centers_features": (
        "centers",
        lambda t: torch.cat((t, t), 1),
        ShapeError,
        r"centers has 4 features but the centers of the layer has 2\.",
    ),
    "centers_rows": ("centers", lambda t: t[:2], ShapeError, r"centers has 2 rows but values has 6\. Each row"),
    "centers_float64": ("centers", Tensor.double, InputTypeError, r"must share one dtype.*Convert one of them"),
    "centers_meta": ("centers", lambda t: t.to("meta"), InputError, r"must be on one device.*Move one of them"),
    "values_integer": ("values", Tensor.long, InputTypeError, r"values must have a floating dtype.*one_hot\(labels\)"),
    "values_one_dimension": ("values", lambda t: t[:, 0], ShapeError, r"values must have shape.*values\[:, None\]"),
    "values_nan": ("values", with_first(NAN), InputError, r"values must be finite.*Remove or impute"),
    "values_outputs": (
        "values",
        lambda t: torch.cat((t, t), 1),
        ShapeError,
        r"values has 2 \w+ but the values of the layer has 1\.",
    ),
    "values_float64": ("values", Tensor.double, InputTypeError, r"must share one dtype.*Convert one of them"),
    "values_meta": ("values", lambda t: t.to("meta"), InputError, r"must be on one device.*Move one of them"),
}


@pytest.mark.parametrize("wrap", [list, np.array, lambda names: np.array(names, dtype=object), pd.Series])
def test_text_as_values_is_to_be_numbered(wrap):
    names, centers = wrap(["cat", "dog"] * 25), torch.randn(50, 3)
    check_refused(
        lambda: nn.LocalKernelRidge(centers, names, 5), InputTypeError, r"text 'cat'.*Number the classes.*one_hot\("
    )
    # The remedy works as it is written.
    _, labels = np.unique(names, return_inverse=True)
    values = torch.nn.functional.one_hot(torch.as_tensor(labels)).to(centers.dtype)
    assert nn.LocalKernelRidge(centers, values, 5)(centers).shape == (50, 2)
    check_refused(
        lambda: nn.LocalKernelRidge([["red"], ["blue"]], values, 5), InputTypeError, r"centers.*text 'red'.*into numbers"
    )


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("defect", NEW)
def test_what_is_appended_is_refused_and_changes_nothing(kind, defect):
    argument, spoil, error, pattern = NEW[defect]
    layer, new = MAKE[kind](good()), good()
    before = layer(new["query"])
    new[argument] = spoil(new[argument])
    check_refused(lambda: layer.append(new["centers"], new["values"]), error, pattern)
    assert layer.num_centers == NUM_CENTERS
    assert torch.equal(layer(good()["query"]), before)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("defect", REMOVED)
def test_rows_to_remove_are_refused_and_nothing_changes(kind, defect):
    rows, error, pattern = REMOVED[defect]
    layer = MAKE[kind](good())
    before = layer(good()["query"])
    check_refused(lambda: layer.remove(rows), error, pattern)
    assert torch.equal(layer(good()["query"]), before)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("verb", ["append", "remove"])
@pytest.mark.parametrize("learned", ["centers", "values", "centers and values"])
def test_learned_tensors_neither_grow_nor_shrink(kind, verb, learned):
    layer = MAKE[kind](good(), **{f"learn_{name}": True for name in learned.split(" and ")})
    arguments = (good()["centers"], good()["values"]) if verb == "append" else (torch.tensor([0]),)
    check_refused(
        lambda: getattr(layer, verb)(*arguments),
        InputError,
        rf"Cannot {verb}: {learned} of this layer are learned, and an optimizer may hold them\. Build a new layer",
    )


@pytest.mark.parametrize("index", ["Flat", neighbors.ExactIndex, object()], ids=["string", "class", "object"])
@pytest.mark.parametrize("make", [local_layer, blended_layer])
def test_index_of_a_layer_is_refused(index, make):
    pattern = r"index must be a torchkrr\.neighbors index, \"auto\" or None, got .*use torchkrr\.neighbors\.FaissIndex"
    check_refused(lambda: make(good(), index=index), InputTypeError, pattern)


COUNTS = {
    "num_blended": (blended_layer, 0, InputError, r"num_blended must be at least 1, got 0\. A typical value is 8"),
    "num_blended_type": (blended_layer, 2.0, InputTypeError, r"num_blended must be an int, got 2\.0"),
    "num_anchors": (blended_layer, 0, InputError, r"num_anchors must lie between 1 and the number of points \(6\), got 0"),
    "num_anchors_many": (blended_layer, 7, InputError, r"num_anchors must lie between 1 and the number of points .*got 7"),
    "num_anchors_type": (blended_layer, "3", InputTypeError, r"num_anchors must be an int, got '3'"),
    "num_coarse": (hierarchical_layer, 0, InputError, r"num_coarse must be at least 1, got 0\. A typical value is 1000"),
    "num_coarse_type": (hierarchical_layer, None, InputTypeError, r"num_coarse must be an int, got None"),
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts_of_the_continuous_layers_are_refused(case):
    make, count, error, pattern = COUNTS[case]
    name = "_".join(case.split("_")[:2])
    check_refused(lambda: make(good(), **{name: count}), error, pattern)


@pytest.mark.parametrize("kind", MAKE)
def test_checkpoint_whose_centers_and_values_do_not_fit(kind):
    layer = MAKE[kind](good())
    layer.load_state_dict({**layer.state_dict(), "centers": torch.rand(4, 2)})
    check_refused(
        lambda: layer(good()["query"]), ShapeError, r"centers has 4 rows but values has 6\. Each row of centers needs"
    )
