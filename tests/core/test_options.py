"""Options of a problem: checked once, with errors that name what is wrong, and never changed."""

import dataclasses

import pytest
import torch

from torchkrr.core.options import SolveOptions
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
        ({"trend": "linear"}, InputError, "trend must be one of"),
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
