"""Bad input of `RBFInterpolator`: what was expected, what came, and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchkrr.errors import InputError, InputTypeError, ShapeError
from torchkrr.interpolate import RBFInterpolator
from torchkrr.interpolate.arguments import KERNELS, conflict, read_data

Y, D = np.random.default_rng(0).random((20, 2)), np.arange(20.0)
NAN = np.where(np.arange(20) == 7, np.nan, D)

BAD = {
    "nan_d": (lambda: RBFInterpolator(Y, NAN), InputError, r"`d` must be finite.*\(7, 0\)"),
    "nan_y": (lambda: RBFInterpolator(np.c_[Y[:, 0], NAN], D), InputError, r"`y` must be finite.*\(7, 1\)"),
    "nan_x": (lambda: RBFInterpolator(Y, D)(np.full((1, 2), np.nan)), InputError, "`x` must be finite"),
    "infinite_smoothing": (lambda: RBFInterpolator(Y, D, smoothing=np.inf), InputError, "`smoothing` must be finite"),
    "negative_smoothing": (lambda: RBFInterpolator(Y, D, smoothing=-1.0), InputError, "must not be negative, got -1.0"),
    "shape_of_smoothing": (lambda: RBFInterpolator(Y, D, smoothing=D[:3]), ShapeError, r"have shape \(20,\), got \(3,\)"),
    "no_rows": (lambda: RBFInterpolator(Y[:0], D[:0]), InputError, "At least 3 data points are required"),
    "no_columns": (lambda: RBFInterpolator(Y[:, :0], D), ShapeError, "`y` has no columns"),
    "flat_y": (lambda: RBFInterpolator(D, D), ShapeError, "`y` must be a 2-dimensional array"),
    "short_d": (lambda: RBFInterpolator(Y, D[:5]), ShapeError, r"first axis of `d` to have length 20, got shape \(5,\)"),
    "flat_x": (lambda: RBFInterpolator(Y, D)(Y[0]), ShapeError, "`x` must be a 2-dimensional array"),
    "wide_x": (lambda: RBFInterpolator(Y, D)(np.ones((2, 3))), ShapeError, "second axis of `x` to have length 2"),
    "complex_y": (lambda: RBFInterpolator(1j * Y, D), InputTypeError, "`y` are places, and must be real"),
    "complex_x": (lambda: RBFInterpolator(Y, D)(1j * Y), InputTypeError, "`x` are places, and must be real"),
    "text": (lambda: RBFInterpolator([["a", "b"]], [1.0]), InputTypeError, "`y` must be an array of numbers"),
    "ragged": (lambda: RBFInterpolator([[1.0], [2.0, 3.0]], D[:2]), InputTypeError, "`y` must be an array of numbers"),
    "kernel": (lambda: RBFInterpolator(Y, D, kernel="gausian"), InputError, "must be one of.*Did you mean 'gaussian'"),
    "kernel_type": (lambda: RBFInterpolator(Y, D, kernel=3), InputError, "`kernel` must be one of .*got 3"),
    "no_epsilon": (
        lambda: RBFInterpolator(Y, D, kernel="gaussian"),
        InputError,
        "`epsilon` must be specified for 'gaussian'",
    ),
    "epsilon": (lambda: RBFInterpolator(Y, D, epsilon=-1.0), InputError, "`epsilon` must be positive"),
    "epsilons": (lambda: RBFInterpolator(Y, D, epsilon=np.ones(2)), ShapeError, "`epsilon` must be one number"),
    "epsilon_type": (lambda: RBFInterpolator(Y, D, epsilon="one"), InputTypeError, "`epsilon` must be a positive number"),
    "degree": (lambda: RBFInterpolator(Y, D, degree=-2), InputError, "`degree` must be at least -1"),
    "degree_type": (lambda: RBFInterpolator(Y, D, degree=1.5), InputTypeError, "`degree` must be a whole number"),
    "neighbors": (lambda: RBFInterpolator(Y, D, neighbors=0), InputError, "`neighbors` must be None or a number from 1"),
    "few_neighbors": (
        lambda: RBFInterpolator(Y, D, neighbors=2),
        InputError,
        "At least 3 data points .*in 2 dimensions, got 2",
    ),
    "on_singular": (lambda: RBFInterpolator(Y, D, on_singular="ignore"), InputError, "on_singular must be one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_every_error_is_one_that_scipy_raises_too():
    for call, _, _ in BAD.values():
        with pytest.raises(ValueError, match=r"`|on_singular"):
            call()


@pytest.mark.parametrize(
    ("y", "d", "expected"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float16, torch.float16, torch.float32),
        (torch.int64, torch.int64, torch.float64),
        (torch.float32, torch.complex64, torch.float32),
        (torch.float32, torch.complex128, torch.float64),
    ],
)
def test_tensors_are_computed_with_in_the_wider_of_their_dtypes(y, d, expected):
    data = read_data(torch.arange(12).reshape(6, 2).to(y), torch.arange(6).to(d))
    assert data.y.dtype == data.d.dtype == expected


def test_an_array_of_numbers_of_the_right_kind_is_not_copied():
    data = read_data(Y, D)
    assert data.y.data_ptr() == Y.ctypes.data
    assert data.d.data_ptr() == D.ctypes.data


@pytest.mark.parametrize("name", KERNELS)
def test_a_degree_below_that_of_the_kernel_is_warned_of(name):
    least = KERNELS[name].order - 1
    for degree in range(least):
        with pytest.warns(UserWarning, match=f"`degree` should not be below {least} for '{name}'"):
            RBFInterpolator(Y, D, kernel=name, degree=degree, epsilon=1.0)


def test_conflicts_are_found_among_many_copies_in_any_order():
    y = torch.randint(0, 4, (500, 3), generator=torch.Generator().manual_seed(0)).double()
    unique = read_data(y, y @ torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    assert conflict(unique, 0.0) is None
    changed = unique.d.clone()
    changed[123] += 1
    first, second = conflict(unique._replace(d=changed), 0.0)
    assert torch.equal(y[first], y[second])
    assert 123 in (first, second)
    assert conflict(unique._replace(d=changed), 0.1) is None
    smoothing = torch.zeros(500, dtype=torch.float64)
    smoothing[123] = 1.0
    assert conflict(unique._replace(d=changed), smoothing) is None
