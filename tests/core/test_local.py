"""Coefficients of local regressors: what they are, and when they are trusted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from tests import reference
from tests.problems import random_points
from torch import Tensor

from torchkrr import kernels
from torchkrr.core.local import solve_local
from torchkrr.core.options import SolveOptions
from torchkrr.errors import RidgeRaisedWarning


def solve(query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, ridge: Tensor, **choices: object) -> Tensor:
    kind, trend = choices.get("kind", "coefficients"), choices.get("trend", False)
    options = SolveOptions(kernels.Exponential(), ridge, "constant" if trend else None)
    least = indices.shape[1] ** 0.5 if kind == "coefficients" else 0.0
    return solve_local(query, centers, values, indices, options, kind, least_norm=least)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("shape", [(), (40,), (7, 12)], ids=str)
def test_are_those_of_the_saddle_point_system(shape, trend, dtype):
    problem = random_points(2)
    ridge = torch.rand(shape, dtype=torch.float64) * 0.1
    indices = problem.neighbor_indices
    given = problem.to(dtype)
    found = solve(given.query, given.centers, given.values, indices, ridge, trend=trend)
    assert found.shape == (7, 13, 2)
    for q, row in enumerate(indices.numpy()):
        x, y = problem.centers.numpy()[row], problem.values.numpy()[row]
        own = ridge.numpy() if ridge.ndim == 0 else ridge.numpy()[row] if ridge.ndim == 1 else ridge.numpy()[q]
        matrix = reference.exponential(reference.distances(x, x)) + np.diag(np.broadcast_to(own, (12,)))
        ones = np.ones((12, 1))
        saddle = np.block([[matrix, ones], [ones.T, np.zeros((1, 1))]]) if trend else matrix
        expected = np.linalg.solve(saddle, np.pad(y, ((0, 1), (0, 0))) if trend else y)
        expected = expected if trend else np.pad(expected, ((0, 1), (0, 0)))
        tolerance = 1e-9 if dtype == torch.float64 else 1e-3
        np.testing.assert_allclose(found[q].numpy(), expected, rtol=tolerance, atol=tolerance)


def twins() -> tuple[Tensor, ...]:
    """A hundred centers far apart, but for one that occurs twice: the smallest pivot is twice the ridge."""
    centers = 100 * torch.arange(100, dtype=torch.float64)[:, None]
    centers[1] = centers[0]
    return centers[:1], centers, torch.randn(100, 1, dtype=torch.float64), torch.arange(100)[None]


def test_need_a_cell_resolved_for_any_query():
    # The weights at the anchor have norm one, those of a query to come may have that of ten neighbors squared.
    ridge = torch.tensor(5e-13, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(*twins(), ridge, kind="weights")
    with pytest.warns(RidgeRaisedWarning, match=r"at most 2\.2e-12"):
        solve(*twins(), ridge)


@pytest.mark.parametrize(("kind", "rung"), [("weights", r"2\.2e-13"), ("coefficients", r"2\.2e-12")])
def test_the_ladder_stops_where_their_own_rule_holds(kind, rung):
    with pytest.warns(RidgeRaisedWarning, match=rf"at most {rung}"):
        solve(*twins(), torch.tensor(0.0, dtype=torch.float64), kind=kind)
