"""Every mistake a caller can make gets an error of this library that says what was expected and what to do.

The tables cross each public call with each way to get an argument wrong. A case marked by `bug` is a mistake whose error is
still missing or unclear; the mark is strict, so it must go when the error comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from torchkrr import errors, kernels, neighbors, nn, transforms
from torchkrr import functional as F
from torchkrr.errors import InputError, InputTypeError, NotFittedError, ShapeError

NAN, INF = float("nan"), float("inf")
NUM_QUERIES, NUM_CENTERS, NUM_FEATURES, NUM_NEIGHBORS = 3, 6, 2, 4


def refused(call: Callable[[], object], error: type[errors.KernelRidgeError], pattern: str) -> None:
    wrong = None
    try:
        with pytest.raises(errors.KernelRidgeError, match=pattern) as caught:
            call()
        assert type(caught.value) is error
    except (Exception, pytest.fail.Exception) as other:
        wrong = f"{type(other).__name__}: {other}"
    if wrong is not None:
        # One line instead of a traceback: in a table of hundreds of cases it is the message that matters.
        pytest.fail(f"wanted {error.__name__} matching {pattern!r}, got {wrong}", pytrace=False)


def good(**changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    query, centers = torch.rand(3, 2, generator=generator), torch.rand(6, 2, generator=generator)
    arguments = {
        "query": query,
        "centers": centers,
        "values": torch.rand(6, 1, generator=generator),
        # Every center is somebody's neighbor, so that a bad row anywhere is a row in use.
        "neighbor_indices": torch.arange(NUM_CENTERS).repeat(NUM_QUERIES, 1),
    }
    return {**arguments, **changes}


def exponential() -> kernels.Kernel:
    return kernels.Exponential()


# --- every call, as a function of named tensors and of choices ---


class Call(NamedTuple):
    run: Callable[..., Any]
    tensors: tuple[str, ...]
    # Any leading dimensions are allowed for these tensors.
    batched: tuple[str, ...] = ()
    is_module: bool = False


def functional(function: Callable[..., Any], *names: str, batched: bool) -> Call:
    def run(arguments: dict[str, Any], **choices: Any) -> Any:
        return function(*(arguments[name] for name in names), **{"kernel": exponential(), **choices})

    return Call(run, names, names if batched else ())


def dense_layer(arguments: dict[str, Any], **choices: Any) -> nn.KernelRidge:
    return nn.KernelRidge(arguments["centers"], arguments["values"], **{"kernel": exponential(), **choices})


def local_layer(arguments: dict[str, Any], num_neighbors: Any = NUM_NEIGHBORS, **choices: Any) -> nn.LocalKernelRidge:
    choices = {"kernel": exponential(), **choices}
    return nn.LocalKernelRidge(arguments["centers"], arguments["values"], num_neighbors, **choices)


def method(make: Callable[..., Any], name: str) -> Call:
    def run(arguments: dict[str, Any], **choices: Any) -> Any:
        return getattr(make(arguments, **choices), name)(arguments["query"])

    return Call(run, ("query", "centers", "values"), ("query",), is_module=True)


def search(arguments: dict[str, Any], **choices: Any) -> Tensor:
    return neighbors.nearest(arguments["query"], arguments["centers"], **{"num_neighbors": NUM_NEIGHBORS, **choices})


DENSE = {
    "kernel_ridge": functional(F.kernel_ridge, "query", "centers", "values", batched=True),
    "cardinal_weights": functional(F.cardinal_weights, "query", "centers", batched=True),
    "power_function": functional(F.power_function, "query", "centers", batched=True),
    "rkhs_norm": functional(F.rkhs_norm, "centers", "values", batched=True),
    "leave_one_out": functional(F.leave_one_out, "centers", "values", batched=True),
}
LOCAL = {
    "local_kernel_ridge": functional(F.local_kernel_ridge, "query", "centers", "values", "neighbor_indices", batched=False),
    "local_cardinal_weights": functional(F.local_cardinal_weights, "query", "centers", "neighbor_indices", batched=False),
    "local_power_function": functional(F.local_power_function, "query", "centers", "neighbor_indices", batched=False),
    "local_path": functional(F.local_path, "query", "centers", "values", "neighbor_indices", batched=False),
}
LAYERS = {
    "KernelRidge.forward": method(dense_layer, "forward"),
    "KernelRidge.power_function": method(dense_layer, "power_function"),
    "KernelRidge.cardinal_weights": method(dense_layer, "cardinal_weights"),
    "LocalKernelRidge.forward": method(local_layer, "forward"),
    "LocalKernelRidge.power_function": method(local_layer, "power_function"),
    "LocalKernelRidge.explain": method(local_layer, "explain"),
    "LocalKernelRidge.neighbors": method(local_layer, "neighbors"),
}
SOLVING = {**DENSE, **LOCAL, **LAYERS}
BOUNDS = {
    "error_bound": functional(partial(F.error_bound, norm=1.0), "query", "centers", batched=True),
    "error_indicator": functional(F.error_indicator, "query", "centers", "values", batched=True),
    "local_error_bound": functional(
        partial(F.local_error_bound, norm=1.0), "query", "centers", "neighbor_indices", batched=False
    ),
    "local_rkhs_norm": functional(F.local_rkhs_norm, "centers", "values", "neighbor_indices", batched=False),
}
CALLS = {**SOLVING, **BOUNDS, "nearest": Call(search, ("query", "centers"))}


@pytest.mark.parametrize("name", CALLS)
def test_the_good_call_of_the_tables_is_accepted(name):
    # Without this, a case could pass because of a mistake it does not name.
    CALLS[name].run(good())


# --- tensors ---


class Defect(NamedTuple):
    spoil: Callable[[Tensor], Any]
    error: type[errors.KernelRidgeError]
    pattern: str  # with {name} for the argument


def with_first(number: float) -> Callable[[Tensor], Tensor]:
    def spoil(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = number
        return tensor

    return spoil


NOT_FINITE = r"{name} must be finite, but \d+ of \d+ entries are NaN or infinite .*Remove or impute"
EMPTY = r"{name} is empty \(shape .*Give at least one row with at least one feature"
ANY_ARGUMENT = {
    "list": Defect(Tensor.tolist, InputTypeError, r"{name} must be a torch\.Tensor, got list\..*torch\.as_tensor\({name}\)"),
    "numpy": Defect(
        Tensor.numpy, InputTypeError, r"{name} must be a torch\.Tensor, got ndarray\..*torch\.as_tensor\({name}\)"
    ),
    "float64": Defect(
        Tensor.double, InputTypeError, r"must share one dtype, but .*torch\.float64.*Convert one of them, for instance"
    ),
    "float16": Defect(
        Tensor.half, InputTypeError, r"must share one dtype, but .*torch\.float16.*Convert one of them, for instance"
    ),
    "meta": Defect(lambda t: t.to("meta"), InputError, r"must be on one device, but .*meta.*Move one of them, for instance"),
    "nan": Defect(with_first(NAN), InputError, NOT_FINITE),
    "inf": Defect(with_first(INF), InputError, NOT_FINITE),
    "minus_inf": Defect(with_first(-INF), InputError, NOT_FINITE),
    "no_rows": Defect(lambda t: t[:0], ShapeError, EMPTY),
    "no_columns": Defect(lambda t: t[:, :0], ShapeError, EMPTY),
}
POINTS = {
    **ANY_ARGUMENT,
    "integer": Defect(
        Tensor.long, InputTypeError, r"{name} must have a floating dtype, got torch\.int64\..*{name}\.float\(\)"
    ),
    "boolean": Defect(
        Tensor.bool, InputTypeError, r"{name} must have a floating dtype, got torch\.bool\..*{name}\.float\(\)"
    ),
    "complex": Defect(
        lambda t: t.to(torch.complex64),
        InputTypeError,
        r"{name} must have a floating dtype, got torch\.complex64\..*{name}\.float\(\)",
    ),
    "one_dimension": Defect(
        lambda t: t[0], ShapeError, r"{name} must have shape \(.*rows, features\), got \(2,\)\..*{name}\[None, :\]"
    ),
    "no_dimension": Defect(
        lambda t: t[0, 0], ShapeError, r"{name} must have shape \(.*features\), got \(\)\..*two dimensions"
    ),
    "three_dimensions": Defect(
        lambda t: t[None], ShapeError, r"{name} must have shape \(rows, features\), got \(1, \d, 2\)\..*flatten {name}"
    ),
    "more_features": Defect(
        lambda t: torch.cat((t, t), 1), ShapeError, r"query has \d features but .*has \d\..*the same feature space"
    ),
}
ONE_HOT = r"values must have a floating dtype, got torch\.{dtype}\..*one_hot\(labels\)\.to\(dtype\)"
VALUES = {
    **ANY_ARGUMENT,
    "integer": Defect(Tensor.long, InputTypeError, ONE_HOT.replace("{dtype}", "int64")),
    "integer_labels": Defect(lambda t: t[:, 0].long(), InputTypeError, ONE_HOT.replace("{dtype}", "int64")),
    "boolean": Defect(Tensor.bool, InputTypeError, ONE_HOT.replace("{dtype}", "bool")),
    "one_dimension": Defect(
        lambda t: t[:, 0], ShapeError, r"values must have shape \(.*N, C\), got \(6,\)\..*values\[:, None\]"
    ),
    "three_dimensions": Defect(lambda t: t[None], ShapeError, r"values must have shape \(N, C\), got \(1, 6, 1\)\. Flatten"),
    "fewer_rows": Defect(
        lambda t: t[:4], ShapeError, r"centers has 6 rows but values has 4\. Each row of centers needs its row of values"
    ),
}


def accepted(name: str, argument: str, defect: str) -> bool:
    """Spoiled tensors that are right here: leading dimensions, one row, a feature count nothing else fixes."""
    call = CALLS[name]
    if argument in call.batched and defect in ("three_dimensions", "one_dimension"):
        return defect == "three_dimensions" or call.is_module
    return "query" not in call.tensors and defect == "more_features"


def tensor_cases() -> Iterator[Any]:
    for name, call in CALLS.items():
        for argument in call.tensors:
            table = {"values": VALUES, "neighbor_indices": {}}.get(argument, POINTS)
            for defect in table:
                if not accepted(name, argument, defect):
                    yield pytest.param(name, argument, defect, id=f"{name}-{argument}-{defect}")


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize(("name", "argument", "defect"), list(tensor_cases()))
def test_tensor_is_refused(name, argument, defect):
    spoil, error, pattern = (VALUES if argument == "values" else POINTS)[defect]
    arguments = good()
    arguments[argument] = spoil(arguments[argument])
    refused(lambda: CALLS[name].run(arguments), error, pattern.replace("{name}", argument))


@pytest.mark.parametrize("name", ["kernel_ridge", "cardinal_weights", "power_function"])
def test_leading_dimensions_that_do_not_broadcast(name):
    arguments = good(query=torch.rand(2, 3, 2), centers=torch.rand(3, 6, 2))
    refused(
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
    refused(lambda: LOCAL[name].run(arguments), InputError, rf"1 of {total} entries .*the first at \(2, 1\)")


@pytest.mark.parametrize("name", ["LocalKernelRidge.forward", "nearest", "local_kernel_ridge"])
@pytest.mark.parametrize("argument", ["query", "centers"])
def test_infinity_is_refused_even_where_the_transform_would_clip_it(name, argument, request):
    kernel = kernels.default_kernel(good()["centers"])
    arguments = good()
    arguments[argument] = with_first(INF)(arguments[argument])
    refused(lambda: CALLS[name].run(arguments, kernel=kernel), InputError, rf"{argument} must be finite.*Remove or impute")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spoil", [lambda q: q[0, 0], lambda q: torch.cat((q, q), 1)], ids=["no_dimension", "features"])
def test_shape_errors_name_the_query_under_the_default_kernel(name, spoil, request):
    arguments = good(query=spoil(good()["query"]))
    refused(lambda: LAYERS[name].run(arguments, kernel=None), ShapeError, r"^query ")


# --- neighbor indices ---

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
    refused(lambda: BOUNDS["local_rkhs_norm"].run(arguments), error, "neighbor_indices")


@pytest.mark.parametrize("name", [*LOCAL, "local_error_bound"])
@pytest.mark.parametrize("defect", INDICES)
def test_neighbor_indices_are_refused(name, defect):
    spoil, error, pattern = INDICES[defect]
    arguments = good(neighbor_indices=spoil(good()["neighbor_indices"]))
    refused(lambda: CALLS[name].run(arguments), error, pattern)


@pytest.mark.parametrize("name", LOCAL)
def test_neighbor_indices_on_another_device(name):
    arguments = good(neighbor_indices=good()["neighbor_indices"].to("meta"))
    refused(lambda: LOCAL[name].run(arguments), InputError, "neighbor_indices.*device")


@pytest.mark.parametrize("name", ["local_kernel_ridge", "local_cardinal_weights", "local_power_function"])
def test_fade_with_one_column(name):
    arguments = good(neighbor_indices=torch.zeros(3, 1, dtype=torch.int64))
    refused(
        lambda: LOCAL[name].run(arguments, fade=True),
        ShapeError,
        r"needs at least two columns of neighbor_indices, got 1.*Search num_neighbors \+ 1 neighbors",
    )


def test_path_with_fade():
    refused(
        lambda: LOCAL["local_path"].run(good(), fade=True),
        InputError,
        r"local_path cannot fade: the fading radius moves.*Call local_kernel_ridge once for each number of neighbors",
    )


# --- choices ---

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
    "trend_unknown": ({"trend": "linear"}, InputError, r"trend must be one of None, 'constant', got 'linear'"),
    "trend_true": ({"trend": True}, InputError, r"trend must be one of None, 'constant', got True"),
    "on_singular_unknown": (
        {"on_singular": "ignore"},
        InputError,
        r"on_singular must be one of 'warn', 'raise', got 'ignore'",
    ),
    "kernel_string": ({"kernel": "rbf"}, InputTypeError, r"kernel must be a kernel such as torchkrr\.kernels.*, got str"),
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


def choice_cases() -> Iterator[Any]:
    for name in SOLVING:
        for choice in CHOICES:
            yield pytest.param(name, choice, id=f"{name}-{choice}")


@pytest.mark.parametrize(("name", "choice"), list(choice_cases()))
def test_choice_is_refused(name, choice):
    choices, error, pattern = CHOICES[choice]
    refused(lambda: SOLVING[name].run(good(), **choices), error, pattern)


@pytest.mark.parametrize("name", [*DENSE, *LOCAL])
@pytest.mark.parametrize("number", [-1.0, NAN, INF])
def test_one_bad_ridge_among_those_of_the_centers(name, number, request):
    ridge = with_first(number)(torch.ones(NUM_CENTERS))
    refused(lambda: SOLVING[name].run(good(), ridge=ridge), InputError, RIDGE_RANGE.format(re.escape(str(number))))


@pytest.mark.parametrize("name", ["LocalKernelRidge.forward", "KernelRidge.forward"])
def test_layers_take_no_ridge_per_center(name):
    # Centers come and go by append and remove, so that one ridge each would have to follow them.
    refused(
        lambda: LAYERS[name].run(good(), ridge=torch.ones(NUM_CENTERS)),
        ShapeError,
        r"ridge must be a number or a 0-d tensor, got shape \(6,\)",
    )


def test_leave_one_out_with_a_trend_needs_two_centers():
    refused(
        lambda: F.leave_one_out(torch.rand(1, 2), torch.rand(1, 1), kernel=exponential(), trend="constant"),
        InputError,
        r"needs at least two centers, got 1\. Use trend=None",
    )


# --- number of neighbors ---

NUM_NEIGHBORS_RANGE = (
    r"num_neighbors must lie between 1 and the number of centers{} \({}\), got {}\. Lower num_neighbors, or use KernelRidge"
)
TAKES_NUM_NEIGHBORS = {
    "nearest": lambda count: search(good(), num_neighbors=count),
    "LocalKernelRidge": lambda count: local_layer(good(), count),
    "ExactIndex": lambda count: neighbors.ExactIndex().build(good()["centers"]).search(good()["query"], count),
    "FaissIndex": lambda count: faiss_index().build(good()["centers"]).search(good()["query"], count),
}


def faiss_index(*arguments: Any, **choices: Any) -> neighbors.FaissIndex:
    pytest.importorskip("faiss")
    return neighbors.FaissIndex(*arguments, **choices)


@pytest.mark.parametrize("name", TAKES_NUM_NEIGHBORS)
@pytest.mark.parametrize("count", [0, -1, NUM_CENTERS + 1])
def test_num_neighbors_out_of_range(name, count):
    refused(lambda: TAKES_NUM_NEIGHBORS[name](count), InputError, NUM_NEIGHBORS_RANGE.format("", NUM_CENTERS, count))


@pytest.mark.parametrize("name", TAKES_NUM_NEIGHBORS)
@pytest.mark.parametrize("count", [2.0, True, None, "3", torch.tensor(3)], ids=repr)
def test_num_neighbors_of_another_type(name, count):
    pattern = rf"num_neighbors must be an int, got {re.escape(repr(count))}"
    refused(lambda: TAKES_NUM_NEIGHBORS[name](count), InputTypeError, pattern)


def test_num_neighbors_from_numpy():
    assert search(good(), num_neighbors=np.int64(3)).shape == (NUM_QUERIES, 3)


def test_num_neighbors_with_one_center_excluded():
    centers = good()["centers"]
    refused(
        lambda: neighbors.nearest(centers, centers, NUM_CENTERS, exclude_self=True),
        InputError,
        NUM_NEIGHBORS_RANGE.format(" that are not excluded", NUM_CENTERS - 1, NUM_CENTERS),
    )


def test_too_few_centers_are_left_for_num_neighbors():
    layer = local_layer(good())
    layer.remove(torch.arange(NUM_NEIGHBORS))
    for use in (layer, layer.power_function, layer.explain, layer.neighbors):
        refused(lambda use=use: use(good()["query"]), InputError, NUM_NEIGHBORS_RANGE.format("", 2, NUM_NEIGHBORS))


# --- exclude ---

EXCLUDE = {
    "list": ([0, 1, 2], InputTypeError, r"exclude must be a torch\.Tensor, got list.*torch\.as_tensor\(exclude\)"),
    "float": (torch.zeros(3), InputTypeError, r"exclude must have dtype torch\.int64, got torch\.float32"),
    "boolean": (torch.zeros(3).bool(), InputTypeError, r"exclude must have dtype torch\.int64, got torch\.bool"),
    "too_short": (torch.tensor([0, 1]), ShapeError, r"exclude must have shape \(3,\), one row to leave out for each query"),
    "two_dimensions": (torch.zeros(3, 1).long(), ShapeError, r"exclude must have shape \(3,\), .*got \(3, 1\)"),
    "too_large": (torch.tensor([0, 1, 6]), InputError, r"exclude must lie between 0 and 5 .*got values from 0 to 6"),
    "negative": (torch.tensor([-1, 0, 1]), InputError, r"exclude must lie between 0 and 5 .*got values from -1 to 1"),
}


@pytest.mark.parametrize("name", ["nearest", "ExactIndex", "FaissIndex"])
@pytest.mark.parametrize("defect", EXCLUDE)
def test_exclude_is_refused(name, defect):
    exclude, error, pattern = EXCLUDE[defect]
    query, centers = good()["query"], good()["centers"]
    if name == "nearest":
        refused(lambda: neighbors.nearest(query, centers, 2, exclude=exclude), error, pattern)
    else:
        index = (neighbors.ExactIndex() if name == "ExactIndex" else faiss_index()).build(centers)
        refused(lambda: index.search(query, 2, exclude=exclude), error, pattern)


@pytest.mark.parametrize(
    "spoil", [lambda x: x[:3], lambda x: x.flip(0), lambda x: x + 1], ids=["fewer_rows", "other_order", "moved"]
)
def test_exclude_self_needs_query_equal_to_centers(spoil):
    centers = good()["centers"]
    refused(
        lambda: neighbors.nearest(spoil(centers), centers, 2, exclude_self=True),
        InputError,
        r"exclude_self=True needs query equal to centers, row by row\. For another query set name .*with exclude=",
    )


def test_exclude_self_together_with_exclude():
    centers = good()["centers"]
    refused(
        lambda: neighbors.nearest(centers, centers, 2, exclude_self=True, exclude=torch.arange(NUM_CENTERS)),
        InputError,
        r"Give exclude_self or exclude, not both",
    )


@pytest.mark.parametrize(
    ("kernel", "error", "pattern"),
    [
        pytest.param("rbf", InputTypeError, "kernel must be", id="string"),
        pytest.param(
            kernels.Exponential(input_transform=transforms.StandardMean()),
            NotFittedError,
            r"UnitCube is not fitted\. Call UnitCube\(\)\.fit\(x\)",
            id="unfitted",
        ),
        pytest.param(
            kernels.Wendland(dimension=1),
            InputError,
            r"not positive definite in 2 .*Construct it with dimension=2",
            id="wendland",
        ),
    ],
)
def test_kernel_of_a_search_is_refused(kernel, error, pattern):
    refused(lambda: search(good(), kernel=kernel), error, pattern)


# --- indexes ---

INDEXES = {"ExactIndex": neighbors.ExactIndex, "FaissIndex": faiss_index}
USES_OF_AN_INDEX = {
    "search": lambda index: index.search(good()["query"], 2),
    "append": lambda index: index.append(good()["query"]),
    "remove": lambda index: index.remove(torch.tensor([0])),
}
POINTS_OF_AN_INDEX = {
    defect: POINTS[defect]
    for defect in ("list", "nan", "inf", "no_rows", "no_columns", "integer", "one_dimension", "three_dimensions")
}
ROWS = r"indices must be a non-empty 1-D integer tensor of rows to remove, got .*For a mask use mask\.nonzero\(\)\.squeeze"
REMOVED = {
    "list": ([0], InputTypeError, r"indices must be a torch\.Tensor, got list.*torch\.as_tensor\(indices\)"),
    "float": (torch.tensor([0.0]), InputTypeError, ROWS),
    "mask": (torch.zeros(NUM_CENTERS).bool(), InputTypeError, ROWS),
    "two_dimensions": (torch.tensor([[0]]), InputTypeError, ROWS),
    "no_dimension": (torch.tensor(0), InputTypeError, ROWS),
    "none": (torch.tensor([]).long(), InputTypeError, ROWS),
    "too_large": (torch.tensor([NUM_CENTERS]), InputError, r"indices must lie between 0 and 5 .*got values from 6 to 6"),
    "negative": (torch.tensor([-1]), InputError, r"indices must lie between 0 and 5 .*got values from -1 to -1"),
    "everything": (
        torch.arange(NUM_CENTERS),
        ShapeError,
        r"Removing all 6 rows would leave nothing to predict from\. Keep at least one",
    ),
}


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("use", USES_OF_AN_INDEX)
def test_index_that_is_not_built(kind, use):
    index = INDEXES[kind]()
    refused(lambda: USES_OF_AN_INDEX[use](index), NotFittedError, rf"{kind} is not built\. Call build\(points\) first")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("defect", POINTS_OF_AN_INDEX)
@pytest.mark.parametrize("argument", ["build", "append", "search"])
def test_points_of_an_index_are_refused(kind, argument, defect):
    spoil, error, pattern = POINTS_OF_AN_INDEX[defect]
    index, points = INDEXES[kind](), good()["centers"]
    pattern = pattern.replace("{name}", "query" if argument == "search" else "points")
    if argument == "build":
        refused(lambda: index.build(spoil(points)), error, pattern)
        return
    index.build(points)
    use = index.append if argument == "append" else lambda query: index.search(query, 2)
    refused(lambda: use(spoil(points)), error, pattern)


@pytest.mark.parametrize("kind", INDEXES)
def test_features_and_dtype_of_an_index_are_those_it_was_built_with(kind):
    index = INDEXES[kind]().build(good()["centers"])
    features = r"has 3 features but the index has 2\..*the same feature space"
    refused(lambda: index.search(torch.rand(3, 3), 2), ShapeError, "query " + features)
    refused(lambda: index.append(torch.rand(3, 3)), ShapeError, "points " + features)
    refused(
        lambda: index.search(good()["query"].double(), 2),
        InputTypeError,
        r"query, points must share one dtype, but query is torch\.float64 .*Convert one of them",
    )


@pytest.mark.parametrize("kind", INDEXES)
def test_appending_another_dtype_to_an_index(kind):
    index = INDEXES[kind]().build(good()["centers"])
    refused(lambda: index.append(good()["query"].double()), InputTypeError, "share one dtype")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("use", ["append", "search"])
def test_another_device_than_that_of_the_index(kind, use):
    index = INDEXES[kind]().build(good()["centers"])
    elsewhere = good()["query"].to("meta")
    call = {"append": lambda: index.append(elsewhere), "search": lambda: index.search(elsewhere, 2)}[use]
    refused(call, InputError, r"must be on one device")


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("defect", REMOVED)
def test_rows_to_remove_from_an_index_are_refused(kind, defect):
    rows, error, pattern = REMOVED[defect]
    index = INDEXES[kind]().build(good()["centers"])
    refused(lambda: index.remove(rows), error, pattern)
    assert len(index.points) == NUM_CENTERS


FACTORIES = {
    "unknown": ("nonsense", {}, InputError, r"faiss does not know the index 'nonsense'"),
    "too_many_lists": (
        "IVF7,Flat",
        {},
        InputError,
        r"'IVF7,Flat' has 7 lists but there are only 6 points\. Use fewer lists \(about the square root.*or ExactIndex",
    ),
}


@pytest.mark.parametrize("case", FACTORIES)
def test_faiss_factory_is_refused(case):
    factory, choices, error, pattern = FACTORIES[case]
    refused(lambda: faiss_index(factory, **choices).build(good()["centers"]), error, pattern)


@pytest.mark.parametrize(
    ("factory", "choices"),
    [
        pytest.param("IVF2,Flat", {"nprobe": 0}, id="nprobe_zero"),
        pytest.param("PQ2", {}, id="too_few_points_to_train"),
        pytest.param("IDMap,Flat", {}, id="ids_given_twice"),
        pytest.param("IVF2,Flat,RFlat", {}, id="cannot_keep_ids"),
    ],
)
def test_faiss_errors_are_translated(factory, choices):
    refused(lambda: faiss_index(factory, **choices).build(good()["centers"]).search(good()["query"], 2), InputError, ".")


def test_faiss_index_whose_build_failed_is_not_built():
    index = faiss_index("IVF7,Flat")
    with pytest.raises(InputError, match="7 lists but there are only 6 points"):
        index.build(good()["centers"])
    refused(lambda: index.search(good()["query"], 2), NotFittedError, "not built")


# --- layers ---

MAKE = {"KernelRidge": dense_layer, "LocalKernelRidge": local_layer}
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


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("defect", NEW)
def test_what_is_appended_is_refused_and_changes_nothing(kind, defect):
    argument, spoil, error, pattern = NEW[defect]
    layer, new = MAKE[kind](good()), good()
    before = layer(new["query"])
    new[argument] = spoil(new[argument])
    refused(lambda: layer.append(new["centers"], new["values"]), error, pattern)
    assert layer.num_centers == NUM_CENTERS
    assert torch.equal(layer(good()["query"]), before)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("defect", REMOVED)
def test_rows_to_remove_are_refused_and_nothing_changes(kind, defect):
    rows, error, pattern = REMOVED[defect]
    layer = MAKE[kind](good())
    before = layer(good()["query"])
    refused(lambda: layer.remove(rows), error, pattern)
    assert torch.equal(layer(good()["query"]), before)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("verb", ["append", "remove"])
@pytest.mark.parametrize("learned", ["centers", "values", "centers and values"])
def test_learned_tensors_neither_grow_nor_shrink(kind, verb, learned):
    layer = MAKE[kind](good(), **{f"learn_{name}": True for name in learned.split(" and ")})
    arguments = (good()["centers"], good()["values"]) if verb == "append" else (torch.tensor([0]),)
    refused(
        lambda: getattr(layer, verb)(*arguments),
        InputError,
        rf"Cannot {verb}: {learned} of this layer are learned, and an optimizer may hold them\. Build a new layer",
    )


@pytest.mark.parametrize("index", ["Flat", neighbors.ExactIndex, object()], ids=["string", "class", "object"])
def test_index_of_a_layer_is_refused(index):
    pattern = r"index must be a torchkrr\.neighbors index or None, got \w+"
    refused(lambda: local_layer(good(), index=index), InputTypeError, pattern)


@pytest.mark.parametrize("kind", MAKE)
def test_checkpoint_whose_centers_and_values_do_not_fit(kind):
    layer = MAKE[kind](good())
    layer.load_state_dict({**layer.state_dict(), "centers": torch.rand(4, 2)})
    refused(lambda: layer(good()["query"]), ShapeError, r"centers has 4 rows but values has 6\. Each row of centers needs")


# --- kernels ---

KERNELS = {
    "Exponential": kernels.Exponential,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "Gaussian": kernels.Gaussian,
    "RationalQuadratic": kernels.RationalQuadratic,
    "InverseMultiquadric": kernels.InverseMultiquadric,
    "Wendland": lambda *arguments, **choices: kernels.Wendland(*arguments, dimension=3, **choices),
}
POSITIVE = r"lengthscale must be positive and finite, got {}"
LENGTHSCALES = {
    "zero": (0.0, InputError, POSITIVE.format(r"0\.0")),
    "negative": (-1.0, InputError, POSITIVE.format(r"-1\.0")),
    "nan": (NAN, InputError, POSITIVE.format("nan")),
    "inf": (INF, InputError, POSITIVE.format("inf")),
    "one_negative": ([1.0, -1.0], InputError, POSITIVE.format(r"-1\.0")),
    "one_nan": ([1.0, NAN], InputError, POSITIVE.format("nan")),
    "empty": ([], ShapeError, r"lengthscale must be a number or one per feature, got shape \(0,\)"),
    "two_dimensions": (torch.ones(2, 2), ShapeError, r"lengthscale must be a number or one per feature, got shape \(2, 2\)"),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", LENGTHSCALES)
def test_lengthscale_is_refused(name, case):
    lengthscale, error, pattern = LENGTHSCALES[case]
    refused(lambda: KERNELS[name](lengthscale), error, pattern)


def test_infinite_lengthscale_among_finite_ones():
    refused(lambda: kernels.Exponential([1.0, INF]), InputError, POSITIVE.format("inf"))


@pytest.mark.parametrize("lengthscale", [None, "1", 1j], ids=repr)
def test_lengthscale_of_another_type(lengthscale):
    refused(lambda: kernels.Exponential(lengthscale), InputTypeError, "lengthscale must be")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("transform", ["StandardMean", transforms.StandardMean, abs], ids=["string", "class", "function"])
def test_input_transform_is_refused(name, transform):
    pattern = r"input_transform must be a transform such as StandardMean\(\)\.fit\(x\), got \w+"
    refused(lambda: KERNELS[name](input_transform=transform), InputTypeError, pattern)


@pytest.mark.parametrize("alpha", [0.0, -1.0, NAN, INF])
def test_alpha_is_refused(alpha):
    pattern = rf"alpha must be positive and finite, got {alpha}"
    refused(lambda: kernels.RationalQuadratic(alpha=alpha), InputError, pattern)


@pytest.mark.parametrize("alpha", [None, "1", [1.0, 2.0], torch.ones(3)], ids=["none", "string", "list", "vector"])
def test_alpha_of_another_type(alpha):
    with pytest.raises(InputError, match="alpha must be"):
        kernels.RationalQuadratic(alpha=alpha)


@pytest.mark.parametrize("smoothness", [-1, 4, 1.5, None])
def test_smoothness_is_refused(smoothness):
    pattern = rf"smoothness must be one of 0, 1, 2, 3, got {re.escape(repr(smoothness))}"
    refused(lambda: kernels.Wendland(dimension=2, smoothness=smoothness), InputError, pattern)


@pytest.mark.parametrize("dimension", [0, -1, NAN])
def test_dimension_is_refused(dimension):
    refused(lambda: kernels.Wendland(dimension=dimension), InputError, r"dimension must be positive and finite, got")


@pytest.mark.parametrize("dimension", [2.5, None, "2"])
def test_dimension_of_another_type(dimension):
    with pytest.raises(InputTypeError, match="dimension must be"):
        kernels.Wendland(dimension=dimension)


def test_wendland_sees_the_features_of_the_embedding():
    transform = transforms.Linear(torch.ones(3, 2))
    kernel = kernels.Wendland(dimension=2, input_transform=transform)
    pattern = r"Wendland\(dimension=2\) is not positive definite in 3 .*dimension=3, or reduce the features"
    refused(lambda: kernel(torch.rand(4, 2), torch.rand(4, 2)), InputError, pattern)


OPERANDS = [name for name in POINTS if name not in ("nan", "inf", "minus_inf", "three_dimensions", "more_features")]


def operand_cases() -> Iterator[Any]:
    for argument in ("a", "b"):
        for defect in OPERANDS:
            yield pytest.param(argument, defect, id=f"{argument}-{defect}")


@pytest.mark.parametrize(("argument", "defect"), list(operand_cases()))
def test_operand_of_a_kernel_is_refused(argument, defect):
    spoil, error, pattern = POINTS[defect]
    operands = {"a": torch.rand(3, 2), "b": torch.rand(6, 2)}
    operands[argument] = spoil(operands[argument])
    refused(lambda: kernels.Gaussian()(**operands), error, pattern.replace("{name}", argument))


def test_operands_of_a_kernel_have_the_same_features():
    pattern = r"a has 2 features but b has 3\..*the same feature space"
    refused(lambda: kernels.Gaussian()(torch.rand(3, 2), torch.rand(3, 3)), ShapeError, pattern)


def test_operands_of_a_kernel_whose_leading_dimensions_do_not_broadcast():
    pattern = "leading dimensions must broadcast"
    refused(lambda: kernels.Gaussian()(torch.rand(3, 2, 2), torch.rand(2, 2, 2)), ShapeError, pattern)


@pytest.mark.parametrize("spoil", [Tensor.tolist, Tensor.long], ids=["list", "integer"])
def test_what_a_kernel_embeds_is_refused(spoil):
    pattern = r"x must .*(torch\.as_tensor\(x\)|x\.float\(\))"
    refused(lambda: kernels.Gaussian().embed(spoil(torch.rand(3, 2))), InputTypeError, pattern)


# --- transforms ---

TRANSFORMS = {
    "Standardize": transforms.Standardize,
    "UnitCube": transforms.UnitCube,
    "ErfInv": transforms.ErfInv,
    "MeanDistance": transforms.MeanDistance,
    "MinDistance": transforms.MinDistance,
    "UnitNorm": transforms.UnitNorm,
    "StandardMean": transforms.StandardMean,
    "Compose": lambda: transforms.Compose(transforms.UnitNorm(), transforms.Standardize()),
    "Linear": lambda: transforms.Linear(torch.eye(2)),
}
FITTED = ["Standardize", "UnitCube", "MeanDistance", "MinDistance"]
FIT = [name for name in POINTS if name not in ("float64", "float16", "meta", "more_features")]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("defect", FIT)
def test_points_to_fit_are_refused(name, defect):
    spoil, error, pattern = POINTS[defect]
    refused(lambda: TRANSFORMS[name]().fit(spoil(torch.rand(6, 2))), error, pattern.replace("{name}", "x"))


@pytest.mark.parametrize("name", FITTED)
def test_unfitted_transform(name):
    pattern = rf"{name} is not fitted\. Call {name}\(\)\.fit\(x\) on the training points, or load a state"
    refused(lambda: TRANSFORMS[name]()(torch.rand(3, 2)), NotFittedError, pattern)


@pytest.mark.parametrize("name", ["Standardize", "UnitCube", "StandardMean"])
def test_transform_of_other_features(name):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    pattern = r"x has 3 features but the data \w+ was fitted on has 2\..*the same feature space"
    refused(lambda: fitted(torch.rand(3, 3)), ShapeError, pattern)


def test_linear_of_other_features():
    linear = transforms.Linear(torch.ones(4, 5))
    refused(lambda: linear(torch.rand(3, 2)), ShapeError, r"x has 2 features but Linear takes 5")


@pytest.mark.parametrize("defect", FIT)
def test_weight_of_linear_is_refused(defect):
    spoil, error, pattern = POINTS[defect]
    refused(lambda: transforms.Linear(spoil(torch.rand(6, 2))), error, pattern.replace("{name}", "weight"))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("spoil", [Tensor.tolist, lambda x: (9 * x).long()], ids=["list", "integer"])
def test_what_a_transform_is_called_on_is_refused(name, spoil):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    refused(lambda: fitted(spoil(torch.rand(3, 2))), InputTypeError, "x must")


@pytest.mark.parametrize("name", ["Standardize", "UnitCube", "StandardMean"])
def test_transform_on_another_device(name):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    refused(lambda: fitted(torch.rand(3, 2, device="meta")), InputError, "device")


@pytest.mark.parametrize("part", ["UnitNorm", transforms.UnitNorm, [transforms.UnitNorm()]], ids=["string", "class", "list"])
def test_part_of_compose_is_refused(part):
    refused(lambda: transforms.Compose(part), InputTypeError, "transform")


# --- norms, greedy selection, transport ---


@pytest.mark.parametrize("name", ["error_bound", "local_error_bound"])
@pytest.mark.parametrize("norm", [0.0, -1.0, NAN, INF, torch.tensor(-1.0)], ids=str)
def test_norm_is_refused(name, norm):
    # `functional` gave the good norm already; a later keyword stands in its place.
    pattern = rf"norm must be positive and finite, got {re.escape(str(float(norm)))}"
    refused(lambda: BOUNDS[name].run(good(), norm=norm), InputError, pattern)


@pytest.mark.parametrize("norm", [None, "1"], ids=repr)
def test_norm_of_another_type(norm):
    refused(lambda: BOUNDS["error_bound"].run(good(), norm=norm), InputTypeError, "norm must be")


def greedy(points: Any = None, values: Any = None, num_points: Any = 3, **choices: Any) -> dict[str, Callable[[], Tensor]]:
    points = good()["centers"] if points is None else points
    values = good()["values"] if values is None else values
    with_kernel = {"kernel": exponential(), **choices}
    return {
        "farthest_points": lambda: F.farthest_points(points, num_points, **choices),
        "power_greedy": lambda: F.power_greedy(points, num_points, **with_kernel),
        "residual_greedy": lambda: F.residual_greedy(points, values, num_points, **with_kernel),
    }


@pytest.mark.parametrize("name", greedy())
@pytest.mark.parametrize("defect", FIT)
def test_points_to_choose_from_are_refused(name, defect):
    spoil, error, pattern = POINTS[defect]
    refused(greedy(spoil(good()["centers"]))[name], error, pattern.replace("{name}", "points"))


@pytest.mark.parametrize("defect", [name for name in VALUES if name not in ("minus_inf", "numpy")])
def test_values_of_a_greedy_choice_are_refused(defect, request):
    spoil, error, pattern = VALUES[defect]
    pattern = pattern.replace("{name}", "values").replace("centers", "points")
    refused(greedy(values=spoil(good()["values"]))["residual_greedy"], error, pattern)


@pytest.mark.parametrize("name", greedy())
@pytest.mark.parametrize("count", [0, -1, NUM_CENTERS + 1, 2.0, True, None], ids=repr)
def test_num_points_is_refused(name, count):
    is_int = isinstance(count, int) and not isinstance(count, bool)
    pattern = r"num_points must (lie between 1 and the number of points \(6\)|be an int), got " + re.escape(repr(count))
    refused(greedy(num_points=count)[name], InputError if is_int else InputTypeError, pattern)


@pytest.mark.parametrize("name", ["farthest_points", "power_greedy"])
@pytest.mark.parametrize("start", [-1, NUM_CENTERS, 1.5, None], ids=repr)
def test_start_is_refused(name, start, request):
    refused(
        greedy(start=start)[name], InputError if isinstance(start, int) else InputTypeError, rf"start must .*, got {start}"
    )


@pytest.mark.parametrize("kernel", ["rbf", kernels.Gaussian], ids=["string", "class"])
@pytest.mark.parametrize("name", ["power_greedy", "residual_greedy"])
def test_kernel_of_a_greedy_choice_is_refused(name, kernel):
    refused(greedy(kernel=kernel)[name], InputTypeError, "kernel must be")


TRANSPORT: dict[str, Callable[..., Tensor]] = {
    "assignment": F.assignment,
    "monge_cost": F.monge_cost,
    "gromov_monge": F.gromov_monge,
    "MongeLoss": nn.MongeLoss(),
    "GromovMongeLoss": nn.GromovMongeLoss(),
}
MOVED = [name for name in POINTS if name not in ("more_features", "minus_inf", "numpy")]


@pytest.mark.parametrize("name", TRANSPORT)
@pytest.mark.parametrize("argument", ["x", "y"])
@pytest.mark.parametrize("defect", MOVED)
def test_points_to_transport_are_refused(name, argument, defect, request):
    spoil, error, pattern = POINTS[defect]
    points = {"x": torch.rand(6, 2), "y": torch.rand(6, 2)}
    points[argument] = spoil(points[argument])
    refused(lambda: TRANSPORT[name](**points), error, pattern.replace("{name}", argument))


@pytest.mark.parametrize("name", TRANSPORT)
def test_as_many_points_on_either_side(name):
    pattern = r"x has 6 rows but y has 4\. Each row of x needs its row of y"
    refused(lambda: TRANSPORT[name](torch.rand(6, 2), torch.rand(4, 2)), ShapeError, pattern)


@pytest.mark.parametrize("name", ["assignment", "monge_cost", "MongeLoss"])
def test_one_space_for_both_sides_of_an_assignment(name):
    pattern = r"x has 2 features but y has 3\..*the same feature space"
    refused(lambda: TRANSPORT[name](torch.rand(6, 2), torch.rand(6, 3)), ShapeError, pattern)


@pytest.mark.parametrize("name", ["assignment", "monge_cost"])
def test_cost_of_another_shape(name):
    pattern = r"cost must give one number for each pair, shape \(6, 6\), got \(6,\)"
    x = torch.rand(6, 2)
    refused(lambda: TRANSPORT[name](x, x, cost=lambda a, b: (a - b).sum(1)), ShapeError, pattern)


@pytest.mark.parametrize("cost", [lambda a, b: (a - b).sum(1), lambda a, b: (a - b).sum()], ids=["row", "scalar"])
def test_cost_inside_a_space_of_another_shape(cost):
    x = torch.rand(6, 2)
    refused(lambda: F.gromov_monge(x, x[:, :1], cost_x=cost), ShapeError, "cost_x must give one number for each pair")


def test_cost_that_is_not_finite():
    x = torch.rand(6, 2)
    refused(lambda: F.monge_cost(x, x, cost=lambda a, b: torch.full((6, 6), NAN)), InputError, "cost")


@pytest.mark.parametrize("size", [1, 0, -1, 7, 2.0], ids=repr)
def test_sample_size_is_refused(size):
    pattern = rf"sample_size must (lie between 2 and the number of points \(6\)|be an int), got {size}"
    error = InputError if isinstance(size, int) else InputTypeError
    refused(lambda: F.gromov_monge(torch.rand(6, 2), torch.rand(6, 1), sample_size=size), error, pattern)


# --- the tree of errors ---


def test_every_error_has_one_base_and_keeps_the_builtin_one():
    builtin = {
        "InputError": ValueError,
        "ShapeError": ValueError,
        "InputTypeError": TypeError,
        "NotFittedError": RuntimeError,
        "SearchError": RuntimeError,
        "SolveError": RuntimeError,
        "MissingExtraError": ImportError,
    }
    found = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    raised = {n for n, c in found.items() if not issubclass(c, Warning)}
    assert raised == {"KernelRidgeError", *builtin}
    for name, base in builtin.items():
        assert issubclass(found[name], errors.KernelRidgeError)
        assert issubclass(found[name], base)
    assert issubclass(errors.RidgeRaisedWarning, errors.KernelRidgeWarning)
