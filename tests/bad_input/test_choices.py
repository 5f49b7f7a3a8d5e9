"""Bad choices (kernel, ridge, trend, num_neighbors) given to functions and layers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.bad_input.tables import (
    CONTINUOUS,
    DENSE,
    INF,
    LAYERS,
    LOCAL,
    NAN,
    NUM_CENTERS,
    NUM_QUERIES,
    SOLVING,
    blended_layer,
    check_refused,
    exponential,
    faiss_index,
    good,
    hierarchical_layer,
    local_layer,
    search,
    with_first,
)

from torchkrr import functional as F
from torchkrr import kernels, neighbors, transforms
from torchkrr.errors import InputError, InputTypeError, NotFittedError, ShapeError

RIDGE_RANGE = r"ridge must be finite and not negative, got {}\. A typical value is 1e-9"


CHOICES = {
    "ridge_negative": ({"ridge": -1e-3}, InputError, RIDGE_RANGE.format(r"-0\.001")),
    "ridge_nan": ({"ridge": NAN}, InputError, RIDGE_RANGE.format("nan")),
    "ridge_inf": ({"ridge": INF}, InputError, RIDGE_RANGE.format("inf")),
    "ridge_tensor_negative": ({"ridge": torch.tensor(-1.0)}, InputError, RIDGE_RANGE.format(r"-1\.0")),
    "ridge_tensor_nan": ({"ridge": torch.tensor(NAN)}, InputError, RIDGE_RANGE.format("nan")),
    "ridge_integer_tensor": (
        {"ridge": torch.tensor(1)},
        InputTypeError,
        r"ridge must have a floating dtype, got torch\.int64\..*ridge\.float\(\)",
    ),
    "ridge_none": ({"ridge": None}, InputTypeError, r"ridge must be a number or a tensor, got NoneType"),
    "ridge_string": ({"ridge": "1e-9"}, InputTypeError, r"ridge must be a number or a tensor, got str"),
    "ridge_boolean": ({"ridge": True}, InputTypeError, r"ridge must be a number or a tensor, got bool"),
    "ridge_wrong_length": (
        {"ridge": torch.ones(NUM_CENTERS - 1)},
        ShapeError,
        r"ridge must be a number or a 0-d tensor.*, got shape \(5,\)",
    ),
    "ridge_two_dimensions": (
        {"ridge": torch.ones(NUM_CENTERS, 1)},
        ShapeError,
        r"ridge must be a number or a 0-d tensor.*, got shape \(6, 1\)",
    ),
    "trend_unknown": (
        {"trend": "quadratic"},
        InputError,
        r"trend must be one of None, 'constant', 'linear', or .*, got 'quadratic'",
    ),
    "trend_true": ({"trend": True}, InputError, r"trend must be one of None, 'constant', 'linear', or .*, got True"),
    "on_singular_unknown": (
        {"on_singular": "ignore"},
        InputError,
        r"on_singular must be one of 'warn', 'raise', got 'ignore'",
    ),
    "kernel_class": (
        {"kernel": kernels.Gaussian},
        InputTypeError,
        r"kernel must be a kernel such as torchkrr\.kernels.*, got the class Gaussian",
    ),
    "transform_unfitted": (
        {"kernel": kernels.Exponential(input_transform=transforms.StandardMean())},
        NotFittedError,
        r"UnitCube is not fitted\. Call UnitCube\(\)\.fit\(x\) on the training points, or load a state",
    ),
    "transform_other_features": (
        {"kernel": kernels.Exponential(input_transform=transforms.Standardize().fit(torch.rand(5, 3)))},
        ShapeError,
        r"has 2 features but the data Standardize was fitted on has 3\..*the same feature space",
    ),
    "lengthscale_other_features": (
        {"kernel": kernels.Exponential([1.0, 2.0, 3.0])},
        ShapeError,
        r"has 2 features but lengthscale has 3\.",
    ),
    "wendland_dimension": (
        {"kernel": kernels.Wendland(dimension=1)},
        InputError,
        r"Wendland\(dimension=1\) is not positive definite in 2 .*Construct it with dimension=2, or reduce the features",
    ),
    "transform_elsewhere": (
        {"kernel": kernels.Exponential(input_transform=transforms.Standardize().fit(torch.rand(5, 2))).to("meta")},
        InputError,
        r"device",
    ),
}


@pytest.mark.parametrize("name", [*DENSE, *LOCAL, *CONTINUOUS])
def test_functions_take_no_name_of_a_kernel(name):
    pattern = r"kernel must be a kernel such as torchkrr\.kernels.*, got str"
    check_refused(lambda: SOLVING[name].run(good(), kernel="gaussian"), InputTypeError, pattern)


@pytest.mark.parametrize("name", [name for name in LAYERS if name.endswith("forward")])
@pytest.mark.parametrize(
    ("kernel", "remedy"), [("gausian", "Did you mean 'gaussian'?"), ("rbf", "Or give a kernel such as")]
)
def test_layers_suggest_the_nearest_name_of_a_kernel(name, kernel, remedy):
    pattern = rf"kernel must be one of 'exponential', .*'rational_quadratic', .*, got '{kernel}'\. {re.escape(remedy)}"
    check_refused(lambda: LAYERS[name].run(good(), kernel=kernel), InputError, pattern)


def choice_cases() -> Iterator[Any]:
    for name in SOLVING:
        for choice in CHOICES:
            yield pytest.param(name, choice, id=f"{name}-{choice}")


@pytest.mark.parametrize(("name", "choice"), list(choice_cases()))
def test_choice_is_refused(name, choice):
    choices, error, pattern = CHOICES[choice]
    check_refused(lambda: SOLVING[name].run(good(), **choices), error, pattern)


@pytest.mark.parametrize("name", [*DENSE, *LOCAL, *CONTINUOUS])
@pytest.mark.parametrize("number", [-1.0, NAN, INF])
def test_one_bad_ridge_among_those_of_the_centers(name, number, request):
    ridge = with_first(number)(torch.ones(NUM_CENTERS))
    check_refused(lambda: SOLVING[name].run(good(), ridge=ridge), InputError, RIDGE_RANGE.format(re.escape(str(number))))


@pytest.mark.parametrize("name", [name for name in LAYERS if name.endswith("forward")])
def test_layers_take_no_ridge_per_center(name):
    # Centers come and go by append and remove, so that one ridge each would have to follow them.
    check_refused(
        lambda: LAYERS[name].run(good(), ridge=torch.ones(NUM_CENTERS)),
        ShapeError,
        r"ridge must be a number or a 0-d tensor, got shape \(6,\)",
    )


def test_leave_one_out_with_a_trend_needs_two_centers():
    check_refused(
        lambda: F.leave_one_out(torch.rand(1, 2), torch.rand(1, 1), kernel=exponential(), trend="constant"),
        InputError,
        r"needs at least two centers, got 1\. Use trend=None",
    )


NUM_NEIGHBORS_RANGE = (
    r"num_neighbors must lie between 1 and the number of centers{} \({}\), got {}\. Lower num_neighbors, or use KernelRidge"
)


SEARCHES = {
    "nearest": lambda count: search(good(), num_neighbors=count),
    "ExactIndex": lambda count: neighbors.ExactIndex().build(good()["centers"]).search(good()["query"], count),
    "FaissIndex": lambda count: faiss_index().build(good()["centers"]).search(good()["query"], count),
}
TAKES_NUM_NEIGHBORS = {
    **SEARCHES,
    "LocalKernelRidge": lambda count: local_layer(good(), count),
    "BlendedKernelRidge": lambda count: blended_layer(good(), count),
    "HierarchicalKernelRidge": lambda count: hierarchical_layer(good(), count),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("count", [0, -1, NUM_CENTERS + 1])
def test_num_neighbors_out_of_range(name, count):
    check_refused(lambda: SEARCHES[name](count), InputError, NUM_NEIGHBORS_RANGE.format("", NUM_CENTERS, count))


@pytest.mark.parametrize("name", sorted(TAKES_NUM_NEIGHBORS.keys() - SEARCHES))
@pytest.mark.parametrize("count", [0, -1])
def test_num_neighbors_of_a_layer_below_one(name, count):
    check_refused(lambda: TAKES_NUM_NEIGHBORS[name](count), InputError, rf"num_neighbors must be at least 1, got {count}")


@pytest.mark.parametrize("name", TAKES_NUM_NEIGHBORS)
@pytest.mark.parametrize("count", [2.0, True, None, "3", torch.tensor(3)], ids=repr)
def test_num_neighbors_of_another_type(name, count):
    pattern = rf"num_neighbors must be an int, got {re.escape(repr(count))}"
    check_refused(lambda: TAKES_NUM_NEIGHBORS[name](count), InputTypeError, pattern)


def test_num_neighbors_from_numpy():
    assert search(good(), num_neighbors=np.int64(3)).shape == (NUM_QUERIES, 3)


def test_num_neighbors_with_one_center_excluded():
    centers = good()["centers"]
    check_refused(
        lambda: neighbors.nearest(centers, centers, NUM_CENTERS, exclude_self=True),
        InputError,
        NUM_NEIGHBORS_RANGE.format(" that are not excluded", NUM_CENTERS - 1, NUM_CENTERS),
    )


@pytest.mark.parametrize("make", [local_layer, blended_layer, functools.partial(hierarchical_layer, num_coarse=1)])
def test_num_neighbors_set_below_one(make):
    layer = make(good())
    layer.num_neighbors = 0
    for use in (layer, layer.power_function, layer.explain, *([layer.neighbors] if make is local_layer else [])):
        check_refused(lambda use=use: use(good()["query"]), InputError, r"num_neighbors must be at least 1, got 0")
