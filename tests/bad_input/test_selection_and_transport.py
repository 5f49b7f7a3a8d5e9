"""Bad input to bounds, greedy selection and transport; the tree of errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.bad_input.tables import BOUNDS, FIT, INF, NAN, NUM_CENTERS, POINTS, VALUES, check_refused, exponential, good
from torch import Tensor

from torchkrr import errors, kernels, nn
from torchkrr import functional as F
from torchkrr.errors import InputError, InputTypeError, ShapeError


@pytest.mark.parametrize("name", ["error_bound", "local_error_bound"])
@pytest.mark.parametrize("norm", [0.0, -1.0, NAN, INF, torch.tensor(-1.0)], ids=str)
def test_norm_is_refused(name, norm):
    # `functional` gave the good norm already; a later keyword stands in its place.
    pattern = rf"norm must be positive and finite, got {re.escape(str(float(norm)))}"
    check_refused(lambda: BOUNDS[name].run(good(), norm=norm), InputError, pattern)


@pytest.mark.parametrize("norm", [None, "1"], ids=repr)
def test_norm_of_another_type(norm):
    check_refused(lambda: BOUNDS["error_bound"].run(good(), norm=norm), InputTypeError, "norm must be")


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
    check_refused(greedy(spoil(good()["centers"]))[name], error, pattern.replace("{name}", "points"))


@pytest.mark.parametrize("defect", [name for name in VALUES if name not in ("minus_inf", "numpy")])
def test_values_of_a_greedy_choice_are_refused(defect, request):
    spoil, error, pattern = VALUES[defect]
    pattern = pattern.replace("{name}", "values").replace("centers", "points")
    check_refused(greedy(values=spoil(good()["values"]))["residual_greedy"], error, pattern)


@pytest.mark.parametrize("name", greedy())
@pytest.mark.parametrize("count", [0, -1, NUM_CENTERS + 1, 2.0, True, None], ids=repr)
def test_num_points_is_refused(name, count):
    is_int = isinstance(count, int) and not isinstance(count, bool)
    pattern = r"num_points must (lie between 1 and the number of points \(6\)|be an int), got " + re.escape(repr(count))
    check_refused(greedy(num_points=count)[name], InputError if is_int else InputTypeError, pattern)


@pytest.mark.parametrize("name", ["farthest_points", "power_greedy"])
@pytest.mark.parametrize("start", [-1, NUM_CENTERS, 1.5, None], ids=repr)
def test_start_is_refused(name, start, request):
    check_refused(
        greedy(start=start)[name], InputError if isinstance(start, int) else InputTypeError, rf"start must .*, got {start}"
    )


@pytest.mark.parametrize("kernel", ["rbf", kernels.Gaussian], ids=["string", "class"])
@pytest.mark.parametrize("name", ["power_greedy", "residual_greedy"])
def test_kernel_of_a_greedy_choice_is_refused(name, kernel):
    check_refused(greedy(kernel=kernel)[name], InputTypeError, "kernel must be")


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
    check_refused(lambda: TRANSPORT[name](**points), error, pattern.replace("{name}", argument))


@pytest.mark.parametrize("name", TRANSPORT)
def test_as_many_points_on_either_side(name):
    pattern = r"x has 6 rows but y has 4\. Each row of x needs its row of y"
    check_refused(lambda: TRANSPORT[name](torch.rand(6, 2), torch.rand(4, 2)), ShapeError, pattern)


@pytest.mark.parametrize("name", ["assignment", "monge_cost", "MongeLoss"])
def test_one_space_for_both_sides_of_an_assignment(name):
    pattern = r"x has 2 features but y has 3\..*the same feature space"
    check_refused(lambda: TRANSPORT[name](torch.rand(6, 2), torch.rand(6, 3)), ShapeError, pattern)


@pytest.mark.parametrize("name", ["assignment", "monge_cost"])
def test_cost_of_another_shape(name):
    pattern = r"cost must give one number for each pair, shape \(6, 6\), got \(6,\)"
    x = torch.rand(6, 2)
    check_refused(lambda: TRANSPORT[name](x, x, cost=lambda a, b: (a - b).sum(1)), ShapeError, pattern)


@pytest.mark.parametrize("cost", [lambda a, b: (a - b).sum(1), lambda a, b: (a - b).sum()], ids=["row", "scalar"])
def test_cost_inside_a_space_of_another_shape(cost):
    x = torch.rand(6, 2)
    check_refused(lambda: F.gromov_monge(x, x[:, :1], cost_x=cost), ShapeError, "cost_x must give one number for each pair")


def test_cost_that_is_not_finite():
    x = torch.rand(6, 2)
    check_refused(lambda: F.monge_cost(x, x, cost=lambda a, b: torch.full((6, 6), NAN)), InputError, "cost")


@pytest.mark.parametrize("size", [1, 0, -1, 7, 2.0], ids=repr)
def test_sample_size_is_refused(size):
    pattern = rf"sample_size must (lie between 2 and the number of points \(6\)|be an int), got {size}"
    error = InputError if isinstance(size, int) else InputTypeError
    check_refused(lambda: F.gromov_monge(torch.rand(6, 2), torch.rand(6, 1), sample_size=size), error, pattern)


def test_every_error_has_one_base_and_keeps_the_builtin_one():
    builtin = {
        "InputError": ValueError,
        "ShapeError": ValueError,
        "InputTypeError": TypeError,
        "NotFittedError": RuntimeError,
        "SearchError": RuntimeError,
        "SolveError": RuntimeError,
        "BackendError": RuntimeError,
        "DistributedError": RuntimeError,
        "FileError": ValueError,
        "StoreError": RuntimeError,
        "MissingExtraError": ImportError,
    }
    found = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, Exception)}
    raised = {n for n, c in found.items() if not issubclass(c, Warning)}
    assert raised == {"KernelRidgeError", *builtin}
    for name, base in builtin.items():
        assert issubclass(found[name], errors.KernelRidgeError)
        assert issubclass(found[name], base)
    assert issubclass(errors.RidgeRaisedWarning, errors.KernelRidgeWarning)
