"""No queries are no error: the result is empty, with the shape and dtype of any other result but for the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchkrr
from torchkrr import functional as F
from torchkrr import kernels, neighbors

NUM_QUERIES, NUM_CENTERS, NUM_NEIGHBORS, NUM_FEATURES, NUM_OUTPUTS = 3, 30, 6, 2, 2
NUM_ANCHORS = 5
KERNEL = kernels.Matern32(1.5)
COMMON = {"kernel": KERNEL, "ridge": 1e-2}

by_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def points(dtype: torch.dtype, num_queries: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((NUM_CENTERS, NUM_FEATURES), (NUM_CENTERS, NUM_OUTPUTS), (NUM_QUERIES, NUM_FEATURES))
    centers, values, query = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)
    return query[:num_queries], centers, values


def near(query: Tensor, points: Tensor, count: int) -> Tensor:
    """The nearest of the points, found without the library's search, which has tests of its own below."""
    return torch.cdist(query.detach(), points.detach()).argsort(1)[:, :count]


def results_of(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def check_empty(found: Any, full: Any) -> None:
    """`found` for no queries is `full` for some, without its rows."""
    assert len(results_of(found)) == len(results_of(full))
    for empty, other in zip(results_of(found), results_of(full), strict=True):
        assert other.shape[0] == NUM_QUERIES
        assert (tuple(empty.shape), empty.dtype) == ((0, *other.shape[1:]), other.dtype)


def check_zero(gradients: Any) -> None:
    for gradient in gradients:
        assert gradient is not None
        assert not gradient.any()


# Functions

Call = Callable[[Tensor, Tensor, Tensor], Any]


def dense(function: Callable[..., Any], *, with_values: bool, **choices: Any) -> Call:
    def call(query: Tensor, centers: Tensor, values: Tensor) -> Any:
        return function(query, centers, *((values,) if with_values else ()), **COMMON, **choices)

    return call


def local(function: Callable[..., Any], *, with_values: bool, **choices: Any) -> Call:
    def call(query: Tensor, centers: Tensor, values: Tensor) -> Any:
        indices = near(query, centers, NUM_NEIGHBORS)
        return function(query, centers, *((values,) if with_values else ()), indices, **COMMON, **choices)

    return call


def blended(function: Callable[..., Any], *, with_values: bool, **choices: Any) -> Call:
    def call(query: Tensor, centers: Tensor, values: Tensor) -> Any:
        anchors = torch.arange(NUM_ANCHORS)
        lists = anchors, near(centers[anchors], centers, NUM_NEIGHBORS), near(query, centers[anchors], 3)
        return function(query, centers, *((values,) if with_values else ()), *lists, **COMMON, **choices)

    return call


def hierarchical(**choices: Any) -> Call:
    def call(query: Tensor, centers: Tensor, values: Tensor) -> Any:
        indices = torch.arange(NUM_ANCHORS), near(query, centers, NUM_NEIGHBORS)
        return F.hierarchical_kernel_ridge(query, centers, values, *indices, **COMMON, **choices)

    return call


TREND = {"trend": "constant"}
FUNCTIONS: dict[str, Call] = {
    "kernel_ridge": dense(F.kernel_ridge, with_values=True),
    "kernel_ridge, trend": dense(F.kernel_ridge, with_values=True, **TREND),
    "kernel_ridge, torch": dense(F.kernel_ridge, with_values=True, backend="torch"),
    "kernel_ridge, fused": dense(F.kernel_ridge, with_values=True, backend="fused"),
    "cardinal_weights": dense(F.cardinal_weights, with_values=False),
    "cardinal_weights, trend": dense(F.cardinal_weights, with_values=False, **TREND),
    "power_function": dense(F.power_function, with_values=False),
    "power_function, trend": dense(F.power_function, with_values=False, **TREND),
    "error_bound": dense(F.error_bound, with_values=False, norm=2.0),
    "error_indicator": dense(F.error_indicator, with_values=True),
    "local_kernel_ridge": local(F.local_kernel_ridge, with_values=True),
    "local_kernel_ridge, trend": local(F.local_kernel_ridge, with_values=True, **TREND),
    "local_kernel_ridge, fade": local(F.local_kernel_ridge, with_values=True, fade=True),
    "local_kernel_ridge, trend, fade": local(F.local_kernel_ridge, with_values=True, fade=True, **TREND),
    "local_kernel_ridge, normalize": local(F.local_kernel_ridge, with_values=True, normalize="cell", **TREND),
    "local_kernel_ridge, torch": local(F.local_kernel_ridge, with_values=True, backend="torch"),
    "local_kernel_ridge, fused": local(F.local_kernel_ridge, with_values=True, backend="fused"),
    "local_cardinal_weights": local(F.local_cardinal_weights, with_values=False),
    "local_cardinal_weights, trend, fade": local(F.local_cardinal_weights, with_values=False, fade=True, **TREND),
    "local_power_function": local(F.local_power_function, with_values=False),
    "local_power_function, trend, fade": local(F.local_power_function, with_values=False, fade=True, **TREND),
    "local_path": local(F.local_path, with_values=True),
    "local_path, trend": local(F.local_path, with_values=True, **TREND),
    "local_error_bound": local(F.local_error_bound, with_values=False, norm=2.0),
    "blended_kernel_ridge": blended(F.blended_kernel_ridge, with_values=True),
    "blended_kernel_ridge, trend": blended(F.blended_kernel_ridge, with_values=True, **TREND),
    "blended_kernel_ridge, all anchors": blended(F.blended_kernel_ridge, with_values=True, last_sets_radius=False),
    "blended_power_function": blended(F.blended_power_function, with_values=False),
    "hierarchical_kernel_ridge": hierarchical(),
    "hierarchical_kernel_ridge, trend": hierarchical(**TREND),
    "hierarchical_kernel_ridge, interpolate": hierarchical(coarse="interpolate"),
    "blending_weights": lambda query, centers, values: F.blending_weights(torch.cdist(query, centers)[:, :4].sort(1)[0]),
    "kernel": lambda query, centers, values: KERNEL(query, centers),
    "embed": lambda query, centers, values: KERNEL.embed(query),
}
by_function = pytest.mark.parametrize("name", FUNCTIONS)


@by_function
@by_dtype
def test_functions(name, dtype):
    full = FUNCTIONS[name](*points(dtype, NUM_QUERIES))
    check_empty(FUNCTIONS[name](*points(dtype, 0)), full)


@by_function
def test_gradients_of_functions_are_zero(name):
    """Of those inputs that have a gradient when there are queries."""
    pairs = zip(gradients(name, 0), gradients(name, NUM_QUERIES), strict=True)
    check_zero(empty for empty, full in pairs if full is not None)


def gradients(name: str, num_queries: int) -> tuple[Tensor | None, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in points(torch.float32, num_queries)]
    result = sum(part.sum() for part in results_of(FUNCTIONS[name](*leaves)))
    return torch.autograd.grad(result, leaves, allow_unused=True)


BATCHED = {
    "kernel_ridge": lambda q, x, y: F.kernel_ridge(q, x, y, **COMMON),
    "kernel_ridge, trend": lambda q, x, y: F.kernel_ridge(q, x, y, trend="constant", **COMMON),
    "cardinal_weights": lambda q, x, y: F.cardinal_weights(q, x, **COMMON),
    "power_function": lambda q, x, y: F.power_function(q, x, **COMMON),
    "error_bound": lambda q, x, y: F.error_bound(q, x, norm=2.0, **COMMON),
    "error_indicator": lambda q, x, y: F.error_indicator(q, x, y, **COMMON),
}


@pytest.mark.parametrize("leading", [(4,), (2, 4)], ids=str)
@pytest.mark.parametrize("name", BATCHED)
def test_dense_functions_with_leading_dimensions(name, leading):
    query, centers, values = points(torch.float32, NUM_QUERIES)
    full = BATCHED[name](query.expand(*leading, *query.shape), centers, values)
    found = BATCHED[name](query.new_empty(*leading, 0, NUM_FEATURES), centers, values)
    assert tuple(found.shape) == (*leading, 0, *full.shape[len(leading) + 1 :])
    assert found.dtype == full.dtype


# Layers

LAYERS = {
    "dense": torchkrr.nn.KernelRidge,
    "local": functools.partial(torchkrr.nn.LocalKernelRidge, num_neighbors=NUM_NEIGHBORS),
    "local, trend, fade": functools.partial(
        torchkrr.nn.LocalKernelRidge, num_neighbors=NUM_NEIGHBORS, trend="constant", fade=True
    ),
    "local, streamed": lambda *given, **choices: torchkrr.nn.LocalKernelRidge(
        *given, num_neighbors=NUM_NEIGHBORS, index=neighbors.StreamedIndex(), **choices
    ),
    "blended": functools.partial(torchkrr.nn.BlendedKernelRidge, num_neighbors=NUM_NEIGHBORS, num_blended=3),
    "hierarchical": functools.partial(torchkrr.nn.HierarchicalKernelRidge, num_neighbors=NUM_NEIGHBORS, num_coarse=5),
}
METHODS = {
    "forward": list(LAYERS),
    "power_function": list(LAYERS),
    "explain": [kind for kind in LAYERS if kind != "dense"],
    "neighbors": [kind for kind in LAYERS if kind.startswith("local")],
    "cardinal_weights": ["dense"],
}
LAYER_CALLS = [(kind, method) for method, kinds in METHODS.items() for kind in kinds]


def layer(kind: str, dtype: torch.dtype, **choices: Any) -> torch.nn.Module:
    _, centers, values = points(dtype, 0)
    return LAYERS[kind](centers, values, **{**COMMON, **choices})


@by_dtype
@pytest.mark.parametrize("used_before", [False, True], ids=["at first", "after use"])
@pytest.mark.parametrize(("kind", "method"), LAYER_CALLS)
def test_layers(kind, method, used_before, dtype):
    """Also as the first call, when a layer has built and kept nothing yet."""
    query, _, _ = points(dtype, NUM_QUERIES)
    full = getattr(layer(kind, dtype), method)(query)
    model = layer(kind, dtype)
    if used_before:
        getattr(model, method)(query)
    found = getattr(model, method)(query[:0])
    check_empty(found, full)
    for after, expected in zip(results_of(getattr(model, method)(query)), results_of(full), strict=True):
        torch.testing.assert_close(after, expected)  # no queries leave nothing behind


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)], ids=str)
@pytest.mark.parametrize(("kind", "method"), LAYER_CALLS)
def test_layers_with_leading_dimensions(kind, method, shape):
    query, _, _ = points(torch.float32, NUM_QUERIES)
    model = layer(kind, torch.float32)
    full = results_of(getattr(model, method)(query))
    found = results_of(getattr(model, method)(query.new_empty(*shape, NUM_FEATURES)))
    for empty, other in zip(found, full, strict=True):
        assert (tuple(empty.shape), empty.dtype) == ((*shape, *other.shape[1:]), other.dtype)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "local, streamed"])
def test_gradients_of_layers_are_zero(kind):
    kernel = kernels.Matern32(1.5, learn_lengthscale=True)
    model = layer(kind, torch.float32, kernel=kernel, learn_centers=True, learn_values=True)
    query = torch.empty(0, NUM_FEATURES, requires_grad=True)
    model(query).sum().backward()
    assert query.grad is not None
    check_zero(parameter.grad for parameter in model.parameters())


def test_a_network_trains_on_through_an_empty_batch():
    model = torch.nn.Sequential(torch.nn.Linear(3, NUM_FEATURES), layer("local", torch.float32))
    model(torch.empty(0, 3)).sum().backward()
    check_zero(parameter.grad for parameter in model.parameters())


# Search

INDEXES: dict[str, Callable[[], neighbors.NeighborIndex]] = {
    "exact": neighbors.ExactIndex,
    "streamed": neighbors.StreamedIndex,
    "faiss": lambda: pytest.importorskip("faiss") and neighbors.FaissIndex("Flat"),
    "faiss, inverted lists": lambda: pytest.importorskip("faiss") and neighbors.FaissIndex("IVF2,Flat"),
    "auto": neighbors.AutoIndex,
}
by_index = pytest.mark.parametrize("name", INDEXES)


@by_dtype
@by_index
def test_indexes(name, dtype):
    query, centers, _ = points(dtype, NUM_QUERIES)
    index = INDEXES[name]().build(centers)
    exclude = torch.arange(NUM_QUERIES)
    check_empty(index.search(query[:0], NUM_NEIGHBORS), index.search(query, NUM_NEIGHBORS))
    found = index.search(query[:0], NUM_NEIGHBORS, exclude=exclude[:0])
    check_empty(found, index.search(query, NUM_NEIGHBORS, exclude=exclude))


@by_index
def test_layers_with_indexes(name):
    query, centers, values = points(torch.float32, NUM_QUERIES)
    model = torchkrr.nn.LocalKernelRidge(centers, values, NUM_NEIGHBORS, index=INDEXES[name](), **COMMON)
    check_empty(model(query[:0]), model(query))


@by_dtype
@pytest.mark.parametrize("kernel", [None, KERNEL], ids=["no kernel", "kernel"])
def test_nearest(kernel, dtype):
    query, centers, _ = points(dtype, NUM_QUERIES)
    exclude = torch.arange(NUM_QUERIES)
    full = neighbors.nearest(query, centers, NUM_NEIGHBORS, kernel=kernel)
    check_empty(neighbors.nearest(query[:0], centers, NUM_NEIGHBORS, kernel=kernel), full)
    check_empty(neighbors.nearest(query[:0], centers, NUM_NEIGHBORS, kernel=kernel, exclude=exclude[:0]), full)


# Estimators

ESTIMATOR_CALLS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "regressor, predict": ("LocalKernelRidgeRegressor", lambda model, X: model.predict(X)),
    "regressor, predict with std": ("LocalKernelRidgeRegressor", lambda model, X: model.predict(X, return_std=True)),
    "regressor, predict_interval": ("LocalKernelRidgeRegressor", lambda model, X: tuple(model.predict_interval(X))),
    "regressor, kneighbors": ("LocalKernelRidgeRegressor", lambda model, X: model.kneighbors(X)),
    "regressor, explain": ("LocalKernelRidgeRegressor", lambda model, X: tuple(model.explain(X, n_rows=2))),
    "dense regressor, predict": ("KernelRidgeRegressor", lambda model, X: model.predict(X)),
    "dense regressor, kneighbors": ("KernelRidgeRegressor", lambda model, X: model.kneighbors(X)),
    "classifier, predict": ("LocalKernelRidgeClassifier", lambda model, X: model.predict(X)),
    "classifier, predict_proba": ("LocalKernelRidgeClassifier", lambda model, X: model.predict_proba(X)),
    "classifier, kneighbors": ("LocalKernelRidgeClassifier", lambda model, X: model.kneighbors(X)),
}


@functools.cache
def fitted(name: str) -> Any:
    estimators = pytest.importorskip("torchkrr.estimators")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, NUM_FEATURES))
    y = np.where(X[:, 0] > 0, "right", "left") if "Classifier" in name else X[:, 0] + X[:, 1] ** 2
    choices = {} if name == "KernelRidgeRegressor" else {"n_neighbors": 10}
    return getattr(estimators, name)(kernel="exponential", alpha=0.1, metric=None, **choices).fit(X, y)


@pytest.mark.parametrize("name", ESTIMATOR_CALLS)
def test_estimators_answer_with_nothing_or_with_scikit_learns_error(name):
    estimator, call = ESTIMATOR_CALLS[name]
    model, X = fitted(estimator), np.random.default_rng(1).normal(size=(NUM_QUERIES, NUM_FEATURES))
    full = call(model, X)
    try:
        found = call(model, X[:0])
    except ValueError as error:
        message = str(error)
    else:
        check_empty(found, full)
        return
    assert "Found array with 0 sample(s)" in message
