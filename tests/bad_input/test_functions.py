"""Bad tensors and indices given to functions and layers: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.bad_input.tables import (
    BOUNDS,
    CONTINUOUS,
    DENSE,
    INF,
    LAYERS,
    LOCAL,
    NAN,
    NUM_CENTERS,
    POINTS,
    SOLVING,
    VALUES,
    Call,
    check_refused,
    good,
    search,
    with_first,
)
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import InputError, InputTypeError, ShapeError

CALLS = {**SOLVING, **BOUNDS, "nearest": Call(search, ("query", "centers"))}


@pytest.mark.parametrize("name", CALLS)
def test_the_good_call_of_the_tables_is_accepted(name):
    # Without this, a case could pass because of a mistake it does not name.
    tensors = [leaf for leaf in tree_leaves(CALLS[name].run(good())) if isinstance(leaf, Tensor)]
    assert tensors
    assert all(tensor.isfinite().all() for tensor in tensors)


def accepted(name: str, argument: str, defect: str) -> bool:
    """Spoiled tensors that are right here: leading dimensions, one row, no query, a feature count nothing else fixes."""
    call = CALLS[name]
    if argument == "query" and defect == "no_rows":
        return True
    if argument in call.batched and defect in ("three_dimensions", "one_dimension"):
        return defect == "three_dimensions" or call.is_module
    return "query" not in call.tensors and defect == "more_features"


def tensor_cases() -> Iterator[Any]:
    for name, call in CALLS.items():
        for argument in call.tensors:
            if argument not in ("query", "centers", "values"):
                continue  # indices have tables of their own
            table = VALUES if argument == "values" else POINTS
            for defect in table:
                if not accepted(name, argument, defect):
                    yield pytest.param(name, argument, defect, id=f"{name}-{argument}-{defect}")


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize(("name", "argument", "defect"), list(tensor_cases()))
def test_tensor_is_refused(name, argument, defect):
    spoil, error, pattern = (VALUES if argument == "values" else POINTS)[defect]
    arguments = good()
    arguments[argument] = spoil(arguments[argument])
    check_refused(lambda: CALLS[name].run(arguments), error, pattern.replace("{name}", argument))


@pytest.mark.parametrize("name", ["kernel_ridge", "cardinal_weights", "power_function"])
def test_leading_dimensions_that_do_not_broadcast(name):
    arguments = good(query=torch.rand(2, 3, 2), centers=torch.rand(3, 6, 2))
    check_refused(
        lambda: DENSE[name].run(arguments),
        ShapeError,
        r"leading dimensions must broadcast, but query has \(2,\), centers has \(3,\).*Expand or unsqueeze",
    )


@pytest.mark.parametrize("name", ["local_kernel_ridge", "local_path", "local_power_function"])
@pytest.mark.parametrize("argument", ["query", "centers"])
def test_a_bad_entry_is_found_at_its_own_place(name, argument):
    arguments = good()
    arguments[argument] = arguments[argument].clone()
    arguments[argument][2, 1] = NAN
    total = arguments[argument].numel()
    check_refused(lambda: LOCAL[name].run(arguments), InputError, rf"1 of {total} entries .*the first at \(2, 1\)")


@pytest.mark.parametrize("name", ["LocalKernelRidge.forward", "nearest", "local_kernel_ridge"])
@pytest.mark.parametrize("argument", ["query", "centers"])
def test_infinity_is_refused_even_where_the_transform_would_clip_it(name, argument, request):
    kernel = kernels.default_kernel(good()["centers"])
    arguments = good()
    arguments[argument] = with_first(INF)(arguments[argument])
    check_refused(
        lambda: CALLS[name].run(arguments, kernel=kernel), InputError, rf"{argument} must be finite.*Remove or impute"
    )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spoil", [lambda q: q[0, 0], lambda q: torch.cat((q, q), 1)], ids=["no_dimension", "features"])
def test_shape_errors_name_the_query_under_the_default_kernel(name, spoil, request):
    arguments = good(query=spoil(good()["query"]))
    check_refused(lambda: LAYERS[name].run(arguments, kernel=None), ShapeError, r"^query ")


SHAPE_OF_INDICES = r"neighbor_indices must have shape \(Q, M\) with one row for each of the 3 queries, got "


RANGE_OF_INDICES = (
    r"neighbor_indices must lie between 0 and 5 \(there are 6 centers\), got values from {}.*Search the neighbors again"
)


INDICES = {
    "float": (
        Tensor.float,
        InputTypeError,
        r"neighbor_indices must have dtype torch\.int64, got torch\.float32\. Use neighbor_indices\.long\(\)",
    ),
    "boolean": (
        Tensor.bool,
        InputTypeError,
        r"neighbor_indices must have dtype torch\.int64, got torch\.bool\. Use neighbor_indices\.long\(\)",
    ),
    "list": (Tensor.tolist, InputTypeError, r"neighbor_indices must be a torch\.Tensor, got list.*torch\.as_tensor"),
    "one_dimension": (lambda i: i[0], ShapeError, SHAPE_OF_INDICES + r"\(6,\)"),
    "three_dimensions": (lambda i: i[None], ShapeError, SHAPE_OF_INDICES + r"\(1, 3, 6\)"),
    "fewer_rows": (lambda i: i[:2], ShapeError, SHAPE_OF_INDICES + r"\(2, 6\)"),
    "no_columns": (
        lambda i: i[:, :0],
        ShapeError,
        r"neighbor_indices has no columns\. Give at least one neighbor per query",
    ),
    "too_large": (with_first(NUM_CENTERS), InputError, RANGE_OF_INDICES.format("0 to 6")),
    "minus_one": (with_first(-1), InputError, RANGE_OF_INDICES.format("-1 to 5")),
}


@pytest.mark.parametrize("defect", ["float", "list", "one_dimension", "no_columns", "too_large", "minus_one"])
def test_neighbor_indices_of_a_norm_are_refused(defect):
    spoil, error, _ = INDICES[defect]
    arguments = good(neighbor_indices=spoil(good()["neighbor_indices"]))
    check_refused(lambda: BOUNDS["local_rkhs_norm"].run(arguments), error, "neighbor_indices")


@pytest.mark.parametrize("name", [*LOCAL, "local_error_bound", "hierarchical_kernel_ridge"])
@pytest.mark.parametrize("defect", INDICES)
def test_neighbor_indices_are_refused(name, defect):
    spoil, error, pattern = INDICES[defect]
    arguments = good(neighbor_indices=spoil(good()["neighbor_indices"]))
    check_refused(lambda: CALLS[name].run(arguments), error, pattern)


def expected_shape(pattern: str) -> str:
    return rf"{{name}} must have shape {pattern}"


def outside(last: int, what: str) -> str:
    return rf"{{name}} must lie between 0 and {last} \(there are {last + 1} {what}\), got values from .*Search"


# What each takes: the pattern of its shape error, and of its range error.
CONTINUOUS_INDICES = {
    "anchor_indices": (expected_shape(r"\(n,\) with at least one row of the centers"), outside(5, "centers")),
    "anchor_neighbors": (expected_shape(r"\(3, M\), one row for each anchor"), outside(5, "centers")),
    "nearest_anchors": (expected_shape(r"\(Q, M\) with one row for each of the 3 queries"), outside(2, "anchors")),
    "coarse_indices": (expected_shape(r"\(n,\) with at least one row of the centers"), outside(5, "centers")),
}


def continuous_cases() -> Iterator[Any]:
    for name, call in CONTINUOUS.items():
        for argument in call.tensors:
            if argument in CONTINUOUS_INDICES:
                shape, range_ = CONTINUOUS_INDICES[argument]
                defects = {
                    "float": (Tensor.float, InputTypeError, r"{name} must have dtype torch\.int64.*Use {name}\.long\(\)"),
                    "list": (Tensor.tolist, InputTypeError, r"{name} must be a torch\.Tensor, got list"),
                    "meta": (lambda t: t.to("meta"), InputError, r"{name} must be on the device of the centers.*Move it"),
                    "too_large": (with_first(99), InputError, range_),
                    "negative": (with_first(-1), InputError, range_),
                    "other_shape": (lambda t: torch.stack((t, t)), ShapeError, r"{name} must have shape \("),
                }
                if not argument.endswith("indices"):
                    defects["fewer_rows"] = (lambda t: t[:1], ShapeError, shape)
                for defect, (spoil, error, pattern) in defects.items():
                    filled = pattern.replace("{name}", argument)
                    yield pytest.param(name, argument, spoil, error, filled, id=f"{name}-{argument}-{defect}")


@pytest.mark.parametrize(("name", "argument", "spoil", "error", "pattern"), list(continuous_cases()))
def test_indices_of_the_continuous_forms_are_refused(name, argument, spoil, error, pattern):
    check_refused(lambda: CONTINUOUS[name].run(good(**{argument: spoil(good()[argument])})), error, pattern)


@pytest.mark.parametrize("name", ["blended_kernel_ridge", "blended_power_function"])
def test_a_blend_with_one_column(name):
    pattern = r"nearest_anchors needs at least two columns, got 1.*Search one anchor more, or pass last_sets_radius=False"
    arguments = good(nearest_anchors=good()["nearest_anchors"][:, :1])
    check_refused(lambda: CONTINUOUS[name].run(arguments), ShapeError, pattern)
    CONTINUOUS[name].run(arguments, last_sets_radius=False)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3, 2)], ids=str)
def test_squared_distances_of_another_shape(shape):
    pattern = r"squared_distances must have shape \(Q, K \+ 1\), the last column for the radius, got "
    check_refused(lambda: F.blending_weights(torch.rand(shape)), ShapeError, pattern)


@pytest.mark.parametrize("name", LOCAL)
def test_neighbor_indices_on_another_device(name):
    arguments = good(neighbor_indices=good()["neighbor_indices"].to("meta"))
    check_refused(lambda: LOCAL[name].run(arguments), InputError, "neighbor_indices.*device")


@pytest.mark.parametrize("name", ["local_kernel_ridge", "local_cardinal_weights", "local_power_function"])
def test_fade_with_one_column(name):
    arguments = good(neighbor_indices=torch.zeros(3, 1, dtype=torch.int64))
    check_refused(
        lambda: LOCAL[name].run(arguments, fade=True),
        ShapeError,
        r"needs at least two columns of neighbor_indices, got 1.*Search num_neighbors \+ 1 neighbors",
    )


def test_path_with_fade():
    check_refused(
        lambda: LOCAL["local_path"].run(good(), fade=True),
        InputError,
        r"local_path cannot fade: the fading radius moves.*Call local_kernel_ridge once for each number of neighbors",
    )
