"""First and second derivatives, whichever of the tensors are learned, against finite differences.

The truth is found once for each kernel and function: all first derivatives by central differences of the value, and the
second derivatives along one direction of each input by central differences of the first ones. Every set of learned tensors
is then held against it. Only what is learned requires grad; the rest is fixed, and the kernel is built accordingly.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from torchkrr import errors, kernels, neighbors
from torchkrr import functional as F

NUM_QUERIES, NUM_CENTERS, NUM_NEIGHBORS, NUM_FEATURES, NUM_OUTPUTS = 3, 8, 5, 2, 2
RIDGE = 1e-2
STEP = 1e-6
TOLERANCE = 1e-5  # of the largest entry of a derivative, or of one
POINTS = ("query", "centers", "values")

KERNELS: dict[str, Callable[..., kernels.Kernel]] = {
    "Exponential": kernels.Exponential,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "Gaussian": kernels.Gaussian,
    "RationalQuadratic": kernels.RationalQuadratic,
    "InverseMultiquadric": kernels.InverseMultiquadric,
    **{
        f"Wendland{smoothness}": functools.partial(kernels.Wendland, dimension=3, smoothness=smoothness)
        for smoothness in range(4)
    },
}
# Wendland's supports end between the pairs, so that some are zero; see `test_no_pair_is_at_the_edge_of_a_support`.
SCALES = {
    "scalar": {"Wendland": 3.1, "other": 1.3},
    "per feature": {"Wendland": [2.6, 4.1], "other": [0.9, 1.7]},
}
FEW_KERNELS = ["Exponential", "Matern52", "RationalQuadratic"]


class Function(NamedTuple):
    call: Callable[..., Any]
    inputs: tuple[str, ...]
    choices: dict[str, Any]
    is_local: bool = False
    takes_backend: bool = False
    not_fused: tuple[str, ...] | None = None  # learned tensors with which the compiled code may refuse; None: it always may


QUERY_AND_CENTERS = POINTS[:2]
MEANS = {
    "kernel_ridge": Function(F.kernel_ridge, POINTS, {}, False, True, ("ridge", "log_alpha")),
    "kernel_ridge, trend": Function(F.kernel_ridge, POINTS, {"trend": "constant"}, False, True),
    "local_kernel_ridge": Function(F.local_kernel_ridge, POINTS, {}, True, True, ("log_alpha",)),
    "local_kernel_ridge, trend": Function(F.local_kernel_ridge, POINTS, {"trend": "constant"}, True, True, ("log_alpha",)),
    "local_kernel_ridge, fade": Function(F.local_kernel_ridge, POINTS, {"fade": True}, True, True),
    "local_kernel_ridge, trend, fade": Function(
        F.local_kernel_ridge, POINTS, {"trend": "constant", "fade": True}, True, True
    ),
}
OTHERS = {
    "local_cardinal_weights": Function(F.local_cardinal_weights, QUERY_AND_CENTERS, {}, True, True, ("log_alpha",)),
    "local_cardinal_weights, trend, fade": Function(
        F.local_cardinal_weights, QUERY_AND_CENTERS, {"trend": "constant", "fade": True}, True, True
    ),
    "local_power_function": Function(F.local_power_function, QUERY_AND_CENTERS, {}, True, True, ("log_alpha",)),
    "local_power_function, trend, fade": Function(
        F.local_power_function, QUERY_AND_CENTERS, {"trend": "constant", "fade": True}, True, True
    ),
    "local_path": Function(F.local_path, POINTS, {}, True, True, ("log_alpha",)),
    "local_path, trend": Function(F.local_path, POINTS, {"trend": "constant"}, True, True, ("log_alpha",)),
    "local_kernel_ridge, normalize": Function(
        F.local_kernel_ridge, POINTS, {"normalize": "cell", "trend": "constant"}, True, True
    ),
    "cardinal_weights": Function(F.cardinal_weights, QUERY_AND_CENTERS, {}),
    "cardinal_weights, trend": Function(F.cardinal_weights, QUERY_AND_CENTERS, {"trend": "constant"}),
    "power_function": Function(F.power_function, QUERY_AND_CENTERS, {}),
    "power_function, trend": Function(F.power_function, QUERY_AND_CENTERS, {"trend": "constant"}),
    "leave_one_out": Function(F.leave_one_out, POINTS[1:], {}),
    "leave_one_out, trend": Function(F.leave_one_out, POINTS[1:], {"trend": "constant"}),
    "rkhs_norm": Function(F.rkhs_norm, POINTS[1:], {}),
    "rkhs_norm, trend": Function(F.rkhs_norm, POINTS[1:], {"trend": "constant"}),
}
FUNCTIONS = {**MEANS, **OTHERS}
FUSED = [name for name, function in FUNCTIONS.items() if function.not_fused is not None]


@pytest.fixture(autouse=True)
def _double_parameters() -> Iterator[None]:
    """Learned parameters are made in the default dtype; finite differences need float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def scale_of(kernel_name: str, scale: str) -> Tensor:
    return torch.tensor(SCALES[scale]["Wendland" if kernel_name.startswith("Wendland") else "other"], dtype=torch.float64)


@functools.cache
def problem() -> tuple[dict[str, Tensor], Tensor]:
    """Points and values, and for each query its neighbors, nearest first."""
    generator = torch.Generator().manual_seed(11)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    points = {
        "query": randn(NUM_QUERIES, NUM_FEATURES),
        "centers": randn(NUM_CENTERS, NUM_FEATURES),
        "values": randn(NUM_CENTERS, NUM_OUTPUTS),
    }
    return points, neighbors.nearest(points["query"], points["centers"], NUM_NEIGHBORS + 1)


def inputs_of(kernel_name: str, scale: str, function: Function) -> dict[str, Tensor]:
    """Everything that can be learned, by name."""
    points, _ = problem()
    inputs = {name: points[name] for name in function.inputs}
    inputs["ridge"] = torch.tensor(RIDGE, dtype=torch.float64)
    inputs["log_lengthscale"] = scale_of(kernel_name, scale).log()
    if kernel_name == "RationalQuadratic":
        inputs["log_alpha"] = torch.tensor(0.7, dtype=torch.float64).log()
    return inputs


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [subset for count in range(1, len(names) + 1) for subset in itertools.combinations(names, count)]


def evaluated(
    kernel_name: str, function: Function, inputs: dict[str, Tensor], learned: tuple[str, ...], backend: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that is not linear in the result, and the leaves it depends on, by name."""
    leaves = {name: tensor.clone().requires_grad_(name in learned) for name, tensor in inputs.items()}
    choices: dict[str, Any] = {"learn_lengthscale": "log_lengthscale" in learned}
    if "log_alpha" in inputs:
        choices |= {"alpha": inputs["log_alpha"].exp(), "learn_alpha": "log_alpha" in learned}
    kernel = KERNELS[kernel_name](inputs["log_lengthscale"].exp(), **choices)
    leaves |= dict(kernel.named_parameters())
    arguments = [leaves[name] for name in function.inputs]
    if function.is_local:
        arguments.append(problem()[1] if function.choices.get("fade") else problem()[1][:, :NUM_NEIGHBORS])
    ridge = leaves["ridge"] if "ridge" in learned else float(inputs["ridge"])
    more = {"backend": backend} if function.takes_backend else {}
    result = function.call(*arguments, kernel=kernel, ridge=ridge, **function.choices, **more)
    parts = [part.flatten() for part in (result if isinstance(result, tuple) else (result,))]
    flat = torch.cat(parts)
    factors = torch.randn(len(flat), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return (factors * flat + flat.square() / 2).sum(), {name: leaves[name] for name in learned}


def directions_of(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for name, tensor in inputs.items()}


class Truth(NamedTuple):
    first: dict[str, Tensor]  # by input
    second: dict[str, dict[str, Tensor]]  # [a][b]: the derivative by b of (direction of a) * (derivative by a)


@functools.cache
def truth(kernel_name: str, scale: str, function_name: str) -> Truth:
    function = FUNCTIONS[function_name]
    inputs = inputs_of(kernel_name, scale, function)
    names = tuple(inputs)

    def loss(name: str, change: Tensor) -> float:
        return evaluated(kernel_name, function, {**inputs, name: inputs[name] + change}, (), "torch")[0].item()

    def gradients(name: str, change: Tensor) -> list[Tensor]:
        moved = {**inputs, name: inputs[name] + change}
        value, leaves = evaluated(kernel_name, function, moved, names, "torch")
        return [found.detach() for found in torch.autograd.grad(value, list(leaves.values()))]

    first, second = {}, {}
    for name, tensor in inputs.items():
        slopes = [
            (loss(name, step.view_as(tensor)) - loss(name, -step.view_as(tensor))) / (2 * STEP)
            for step in STEP * torch.eye(tensor.numel(), dtype=torch.float64)
        ]
        first[name] = torch.tensor(slopes, dtype=torch.float64)
    for name, direction in directions_of(inputs).items():
        size = STEP * direction
        pairs = zip(gradients(name, size), gradients(name, -size), strict=True)
        second[name] = {other: (up - down).flatten() / (2 * STEP) for other, (up, down) in zip(names, pairs, strict=True)}
    return Truth(first, second)


def differs(found: Tensor | None, expected: Tensor) -> bool:
    found = torch.zeros_like(expected) if found is None else found.detach().flatten()
    allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
    return found.shape != expected.shape or not float((found - expected).abs().max()) < allowed


def wrong_derivatives(kernel_name: str, scale: str, function_name: str, learned: tuple[str, ...], backend: str) -> list[str]:
    """Names of the derivatives that are not the true ones, with what was learned."""
    function, expected = FUNCTIONS[function_name], truth(kernel_name, scale, function_name)
    inputs = inputs_of(kernel_name, scale, function)
    label = "+".join(learned)
    loss, leaves = evaluated(kernel_name, function, inputs, learned, backend)
    found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, allow_unused=True)
    wrong = [
        f"{label}: first by {name}"
        for name, gradient in zip(learned, found, strict=True)
        if differs(gradient, expected.first[name])
    ]
    gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    wrong += [
        f"{label}: first with a graph by {name}"
        for name, gradient in zip(learned, gradients, strict=True)
        if differs(gradient, expected.first[name])
    ]
    directions = directions_of(inputs)
    combined = sum((g.flatten() * directions[name].flatten()).sum() for name, g in zip(learned, gradients, strict=True))
    if not combined.requires_grad:
        return [*wrong, f"{label}: the first derivatives have no graph"]
    seconds = torch.autograd.grad(combined, list(leaves.values()), allow_unused=True)
    wrong += [
        f"{label}: second by {name}"
        for name, gradient in zip(learned, seconds, strict=True)
        if differs(gradient, sum(expected.second[other][name] for other in learned))
    ]
    return wrong


def check_every_subset(kernel_name: str, scale: str, function_name: str, backend: str) -> None:
    function = FUNCTIONS[function_name]
    wrong: list[str] = []
    for learned in subsets(tuple(inputs_of(kernel_name, scale, function))):
        try:
            wrong += wrong_derivatives(kernel_name, scale, function_name, learned, backend)
        except errors.BackendError:
            if backend != "fused" or not set(learned) & set(function.not_fused or ()):
                raise
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("function_name", MEANS)
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_predictions_by_torch(kernel_name, function_name, scale):
    check_every_subset(kernel_name, scale, function_name, "torch")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("function_name", [name for name in FUSED if name in MEANS])
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_predictions_by_the_compiled_library(kernel_name, function_name, scale):
    check_every_subset(kernel_name, scale, function_name, "fused")


@pytest.mark.parametrize("function_name", OTHERS)
@pytest.mark.parametrize("kernel_name", ["Exponential", "RationalQuadratic"])
def test_other_functions_by_torch(kernel_name, function_name):
    check_every_subset(kernel_name, "per feature", function_name, "torch")


@pytest.mark.parametrize("function_name", [name for name in FUSED if name in OTHERS])
@pytest.mark.parametrize("kernel_name", ["Exponential", "RationalQuadratic"])
def test_other_functions_by_the_compiled_library(kernel_name, function_name):
    check_every_subset(kernel_name, "scalar", function_name, "fused")


@pytest.mark.parametrize("function_name", MEANS)
@pytest.mark.parametrize("kernel_name", FEW_KERNELS)
def test_one_input_after_another(kernel_name, function_name):
    """All are learned, but the derivative is taken by one of them, and its derivative by one of them."""
    function = FUNCTIONS[function_name]
    inputs = inputs_of(kernel_name, "per feature", function)
    names, directions = tuple(inputs), directions_of(inputs)
    expected = truth(kernel_name, "per feature", function_name)
    loss, leaves = evaluated(kernel_name, function, inputs, names, "auto")
    wrong = []
    for a in names:
        (gradient,) = torch.autograd.grad(loss, [leaves[a]], create_graph=True)
        if differs(gradient, expected.first[a]):
            wrong.append(f"by {a}")
        along = (gradient.flatten() * directions[a].flatten()).sum()
        for b in names:
            (second,) = torch.autograd.grad(along, [leaves[b]], retain_graph=True, allow_unused=True)
            if differs(second, expected.second[a][b]):
                wrong.append(f"by {a}, then by {b}")
    assert not wrong, "\n".join(wrong)


GIVEN = {
    "lengthscale": lambda tensor: kernels.Matern52(tensor),
    "lengthscale of RationalQuadratic": lambda tensor: kernels.RationalQuadratic(tensor, alpha=0.7),
    "alpha": lambda tensor: kernels.RationalQuadratic([0.9, 1.7], alpha=tensor),
}


@pytest.mark.parametrize("others", [(), POINTS], ids=["nothing else learned", "points learned"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("which", ["dense", "local"])
@pytest.mark.parametrize("size", [None, 2], ids=["scalar", "per feature"])
@pytest.mark.parametrize("what", GIVEN)
def test_a_tensor_given_to_a_kernel_keeps_its_graph(what, size, which, backend, others):
    """It is a function of a leaf of the caller, whose derivatives are compared with finite differences, to second order."""
    if what == "alpha" and size is not None:
        pytest.skip("alpha is one number")
    points, indices = problem()

    def loss(leaf, learned=()):
        given = leaf.exp() + 0.3  # the kernel gets a result, not a leaf
        tensors = [points[name].clone().requires_grad_(name in learned) for name in POINTS]
        choices = {"kernel": GIVEN[what](given), "ridge": RIDGE, "backend": backend}
        if which == "dense":
            return F.kernel_ridge(*tensors, **choices).square().sum()
        return F.local_kernel_ridge(*tensors, indices, **choices).square().sum()

    def differences(function, at):
        steps = (STEP * torch.eye(at.numel(), dtype=torch.float64)).view(-1, *at.shape)
        return torch.stack([(function(at + step) - function(at - step)) / (2 * STEP) for step in steps])

    def slope(at):
        leaf = at.clone().requires_grad_()
        return torch.autograd.grad(loss(leaf, others), leaf)[0]

    at = torch.tensor(-0.2) if size is None else torch.linspace(-0.4, 0.3, size)
    leaf = at.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(leaf, others), leaf, create_graph=True)
    expected = differences(lambda moved: loss(moved).detach(), at)
    torch.testing.assert_close(first.detach().flatten(), expected, rtol=TOLERANCE, atol=TOLERANCE)
    rows = [torch.autograd.grad(part, leaf, retain_graph=True)[0].flatten() for part in first.flatten()]
    second = differences(slope, at).view(len(rows), -1).mT
    torch.testing.assert_close(torch.stack(rows), second, rtol=TOLERANCE, atol=TOLERANCE)


def test_no_pair_is_at_the_edge_of_a_support():
    """Finite differences would see the jump of a second derivative there; and both sides of it are met."""
    points, _ = problem()
    everything = torch.cat((points["query"], points["centers"]))
    for scale in SCALES:
        distances = torch.pdist(everything / scale_of("Wendland", scale))
        assert float((distances - 1).abs().min()) > 1e-3
        assert bool((distances > 1).any())
        assert bool((distances < 1).any())
