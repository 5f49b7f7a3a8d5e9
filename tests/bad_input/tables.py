"""Every public call as a function of named tensors, good arguments for it, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from torchkrr import errors, kernels, neighbors, nn
from torchkrr import functional as F
from torchkrr.errors import InputError, InputTypeError, ShapeError

NAN, INF = float("nan"), float("inf")


NUM_QUERIES, NUM_CENTERS, NUM_FEATURES, NUM_NEIGHBORS = 3, 6, 2, 4


def check_refused(call: Callable[[], object], error: type[errors.KernelRidgeError], pattern: str) -> None:
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
        "anchor_indices": torch.tensor([0, 2, 3]),
        "anchor_neighbors": torch.arange(NUM_CENTERS).repeat(3, 1),
        "nearest_anchors": torch.tensor([[0, 1, 2], [1, 2, 0], [2, 1, 0]]),
        "coarse_indices": torch.tensor([0, 3]),
    }
    return {**arguments, **changes}


def exponential() -> kernels.Kernel:
    return kernels.Exponential()


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


def blended_layer(arguments: dict[str, Any], num_neighbors: Any = NUM_NEIGHBORS, **choices: Any) -> nn.BlendedKernelRidge:
    choices = {"kernel": exponential(), "num_blended": 2, **choices}
    return nn.BlendedKernelRidge(arguments["centers"], arguments["values"], num_neighbors, **choices)


def hierarchical_layer(
    arguments: dict[str, Any], num_neighbors: Any = NUM_NEIGHBORS, **choices: Any
) -> nn.HierarchicalKernelRidge:
    choices = {"kernel": exponential(), "num_coarse": 2, **choices}
    return nn.HierarchicalKernelRidge(arguments["centers"], arguments["values"], num_neighbors, **choices)


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


BLEND = ("anchor_indices", "anchor_neighbors", "nearest_anchors")


CONTINUOUS = {
    "blended_kernel_ridge": functional(F.blended_kernel_ridge, "query", "centers", "values", *BLEND, batched=False),
    "blended_power_function": functional(F.blended_power_function, "query", "centers", *BLEND, batched=False),
    "hierarchical_kernel_ridge": functional(
        F.hierarchical_kernel_ridge, "query", "centers", "values", "coarse_indices", "neighbor_indices", batched=False
    ),
}


LAYERS = {
    "KernelRidge.forward": method(dense_layer, "forward"),
    "KernelRidge.power_function": method(dense_layer, "power_function"),
    "KernelRidge.cardinal_weights": method(dense_layer, "cardinal_weights"),
    "LocalKernelRidge.forward": method(local_layer, "forward"),
    "LocalKernelRidge.power_function": method(local_layer, "power_function"),
    "LocalKernelRidge.explain": method(local_layer, "explain"),
    "LocalKernelRidge.neighbors": method(local_layer, "neighbors"),
    "BlendedKernelRidge.forward": method(blended_layer, "forward"),
    "BlendedKernelRidge.power_function": method(blended_layer, "power_function"),
    "BlendedKernelRidge.explain": method(blended_layer, "explain"),
    "HierarchicalKernelRidge.forward": method(hierarchical_layer, "forward"),
    "HierarchicalKernelRidge.power_function": method(hierarchical_layer, "power_function"),
    "HierarchicalKernelRidge.explain": method(hierarchical_layer, "explain"),
    "HierarchicalKernelRidge.coarse_part": method(hierarchical_layer, "coarse_part"),
}


SOLVING = {**DENSE, **LOCAL, **CONTINUOUS, **LAYERS}


BOUNDS = {
    "error_bound": functional(partial(F.error_bound, norm=1.0), "query", "centers", batched=True),
    "error_indicator": functional(F.error_indicator, "query", "centers", "values", batched=True),
    "local_error_bound": functional(
        partial(F.local_error_bound, norm=1.0), "query", "centers", "neighbor_indices", batched=False
    ),
    "local_rkhs_norm": functional(F.local_rkhs_norm, "centers", "values", "neighbor_indices", batched=False),
}


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


def faiss_index(*arguments: Any, **choices: Any) -> neighbors.FaissIndex:
    pytest.importorskip("faiss")
    return neighbors.FaissIndex(*arguments, **choices)


ROWS = r"indices must be a row number, a 1-D list or tensor of row numbers, or a boolean mask of shape \(6,\), got "
NO_ROW = r"indices name no row to remove\. Give at least one"


REMOVED = {
    "text": (["a"], InputTypeError, r"indices must be a torch\.Tensor, got list with the text 'a'"),
    "truth": (True, InputTypeError, r"indices must be a torch\.Tensor, got bool"),
    "floats": ([0.0, 1.0], InputTypeError, ROWS),
    "many": (6, InputError, r"indices must lie between 0 and 5 .*got values from 6 to 6"),
    "below": ([-1], InputError, r"indices must lie between 0 and 5 .*got values from -1 to -1"),
    "short_mask": ([True, False], InputTypeError, ROWS),
    "float": (torch.tensor([0.0]), InputTypeError, ROWS),
    "mask": (torch.zeros(NUM_CENTERS).bool(), InputError, NO_ROW),
    "two_dimensions": (torch.tensor([[0]]), InputTypeError, ROWS),
    "no_dimension": (torch.tensor(0), InputTypeError, ROWS),
    "none": (torch.tensor([]).long(), InputError, NO_ROW),
    "too_large": (torch.tensor([NUM_CENTERS]), InputError, r"indices must lie between 0 and 5 .*got values from 6 to 6"),
    "negative": (torch.tensor([-1]), InputError, r"indices must lie between 0 and 5 .*got values from -1 to -1"),
    "everything": (
        torch.arange(NUM_CENTERS),
        ShapeError,
        r"Removing all 6 rows would leave nothing to predict from\. Keep at least one",
    ),
}


FIT = [name for name in POINTS if name not in ("float64", "float16", "meta", "more_features")]
