"""Checks say what was expected, what came, and where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchkrr import _checks
from torchkrr.errors import InputError, InputTypeError, ShapeError


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_first_number_that_is_not_finite_is_named_in_whatever_block_it_is(monkeypatch, dtype):
    monkeypatch.setattr(_checks, "FINITE_BLOCK", 6)
    points = torch.zeros(10, 3, dtype=dtype)
    points[7, 1], points[9, 0] = torch.nan, torch.inf
    with pytest.raises(InputError, match=r"points must be finite, but 2 of 30 entries .*the first at \(7, 1\)"):
        _checks.check_finite("points", points)


def test_sums_that_overflow_are_no_error():
    _checks.check_finite("points", torch.full((100, 100), 60000.0, dtype=torch.float16))
    with pytest.raises(InputError, match="1 of 1 entries"):
        _checks.check_finite("norm", torch.tensor(torch.nan))


@pytest.mark.parametrize("labels", [["cat", "dog"], [["cat"], ["dog"]], np.array(["cat"]), ("cat",)], ids=repr)
def test_text_is_quoted_with_a_way_to_number_it(labels):
    with pytest.raises(InputTypeError, match=r"with the text 'cat'\. Number the classes"):
        _checks.check_tensor("values", labels)
    with pytest.raises(InputTypeError, match=r"with the text 'cat'\. Turn text into numbers first"):
        _checks.check_tensor("centers", labels)


@pytest.mark.parametrize("given", [[1.0, 2.0], [], np.zeros(3), None, 5], ids=repr)
def test_what_is_no_tensor_is_converted_first(given):
    with pytest.raises(InputTypeError, match=rf"got {type(given).__name__}\. Convert it first.*torch.as_tensor\(centers\)"):
        _checks.check_tensor("centers", given)


@pytest.mark.parametrize(
    ("ridge", "kind", "words"),
    [
        (-1.0, InputError, "not negative, got -1.0"),
        (torch.tensor([1.0, torch.nan]), InputError, "got nan"),
        (torch.tensor([1.0, torch.inf]), InputError, "got inf"),
        (torch.ones(3), ShapeError, r"or have shape \(2,\), got shape \(3,\)"),
        (True, InputTypeError, "got bool"),
    ],
)
def test_ridges_are_finite_and_one_for_all_or_for_each(ridge, kind, words):
    with pytest.raises(kind, match=words):
        _checks.check_ridge(ridge, 2)
    for good in (0, 1e-9, np.float32(0.1), torch.tensor(1.0), torch.ones(2)):
        _checks.check_ridge(good, 2)


@pytest.mark.parametrize("indices", [torch.zeros(3), torch.zeros(3, 2), torch.zeros(0)], ids=lambda t: str(tuple(t.shape)))
def test_lists_of_indices_have_one_dimension_and_at_least_one_entry(indices):
    with pytest.raises(InputTypeError, match="dtype"):
        _checks.check_index_list("rows", indices, torch.zeros(5, 2))
    if indices.shape != (3,):
        with pytest.raises(ShapeError, match=r"rows must have shape \(n,\) with at least one row"):
            _checks.check_index_list("rows", indices.long(), torch.zeros(5, 2))
