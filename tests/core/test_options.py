"""Options of a problem: checked once, with errors that name what is wrong, and never changed."""

import dataclasses
import inspect

import pytest
import torch

from torchkrr import functional, losses, nn, tuning
from torchkrr.core.options import BackendOptions, DenseOptions, LayerOptions, LocalOptions, SolveOptions
from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.kernels import Exponential

OPTIONS = SolveOptions(Exponential())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernel": "exponential"}, InputTypeError, "kernel must be a kernel"),
        ({"kernel": Exponential}, InputTypeError, "got the class Exponential"),
        ({"ridge": -1.0}, InputError, "ridge"),
        ({"ridge": torch.ones(4)}, ShapeError, "ridge"),
        ({"trend": "quadratic"}, InputError, "trend must be one of"),
        ({"normalize": "query"}, InputError, "normalize must be one of"),
        ({"on_singular": "ignore"}, InputError, "on_singular must be one of"),
        ({"backend": "numpy"}, InputError, "backend must be one of"),
    ],
)
def test_a_wrong_option_is_named(changes, error, message):
    with pytest.raises(error, match=message):
        OPTIONS.but(**changes).check(5)


def test_right_options_are_returned_as_they_are():
    for options in (OPTIONS, OPTIONS.but(ridge=torch.ones(5), trend="constant", fade=True, normalize="cell")):
        assert options.check(5) is options


def test_a_changed_copy_leaves_the_options_alone():
    assert OPTIONS.but(trend="constant").trend == "constant"
    assert OPTIONS.trend is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPTIONS.trend = "constant"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (5, 4), (5, 1)), "query has 3 features"),
        (((2, 3), (5, 3), (4, 1)), "values"),
        (((2, 3), (3,), (5, 1)), "centers"),
    ],
)
def test_tensors_that_do_not_belong_together_are_named(shapes, message):
    with pytest.raises(ShapeError, match=message):
        OPTIONS.check_problem(*map(torch.zeros, shapes))


def test_values_that_are_not_given_have_no_columns():
    query, centers = torch.zeros(2, 3), torch.zeros(5, 3)
    assert OPTIONS.check_problem(query, centers, None).shape == (5, 0)


# Options that several functions share: signatures show them, type checkers know them, and no other is taken.
LOCAL = [
    functional.local_cardinal_weights,
    functional.local_power_function,
    functional.local_path,
    tuning.local_leave_one_out,
]
DENSE = [
    functional.cardinal_weights,
    functional.power_function,
    functional.leave_one_out,
    functional.rkhs_norm,
    functional.error_bound,
    functional.local_error_bound,
    functional.local_rkhs_norm,
    functional.blended_kernel_ridge,
    functional.blended_power_function,
]
SHARING = [
    *((function, LocalOptions, functional.local_kernel_ridge) for function in LOCAL),
    *((function, DenseOptions, functional.kernel_ridge) for function in DENSE),
    (functional.hierarchical_kernel_ridge, BackendOptions, functional.kernel_ridge),
    (nn.KernelRidge, LayerOptions, nn.LocalKernelRidge),
    (nn.BlendedKernelRidge, LayerOptions, nn.LocalKernelRidge),
    (nn.HierarchicalKernelRidge, LayerOptions, nn.LocalKernelRidge),
    (losses.episodic_cross_entropy, losses.LossOptions, losses.leave_one_out_cross_entropy),
]


@pytest.mark.parametrize(("function", "options", "owner"), SHARING, ids=lambda value: getattr(value, "__name__", None))
def test_signatures_show_what_type_checkers_know(function, options, owner):
    shown, owned = inspect.signature(function).parameters, inspect.signature(owner).parameters
    for name in options.__annotations__:
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == owned[name].default
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown.values())


def test_other_options_are_an_error_that_names_the_function():
    points = torch.rand(5, 2)
    with pytest.raises(TypeError, match=r"^power_function\(\) got an unexpected keyword argument 'fade'$"):
        functional.power_function(points, points, kernel=Exponential(), fade=True)
    with pytest.raises(TypeError, match=r"^local_path\(\) got an unexpected keyword argument 'cache'$"):
        functional.local_path(points, points, points, torch.zeros(5, 1).long(), kernel=Exponential(), cache=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fade'"):
        nn.KernelRidge(points, points, fade=True)
