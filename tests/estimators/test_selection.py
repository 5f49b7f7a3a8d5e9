"""Columns of the embedded features that do not count are left out of every search."""

import numpy as np
import torch

from torchkrr.estimators import LocalKernelRidgeRegressor
from torchkrr.estimators.selection import LocalChoice, Request, select_mapped, without_idle_columns
from torchkrr.kernels import Matern32

REQUEST = Request(20, 1e-3, None, "auto", False, "mse", 0, False)


def choice(points, values, scales):
    kernel = Matern32(torch.tensor(scales, dtype=torch.float64))
    return LocalChoice(select_mapped(points, values, kernel, (1.0,), (1e-3,), REQUEST), None, points)


def test_columns_far_below_their_lengthscale_are_dropped_if_the_loss_allows():
    points = torch.rand(400, 4, generator=torch.Generator().manual_seed(0))
    values = torch.sin(5 * points[:, :1]) + points[:, 1:2]
    best = choice(points, values, [0.5, 1.0, 40.0, 50.0])
    found = without_idle_columns(values, best, REQUEST)
    assert found.mapped.shape == (400, 2)
    assert found.selection.score <= 1.01 * best.selection.score
    assert torch.equal(found.kernel().embed(points), best.kernel().embed(points)[:, :2])


def test_columns_that_matter_stay_however_small_they_are():
    points = torch.rand(400, 4, generator=torch.Generator().manual_seed(0))
    points[:, 2:] *= 0.02  # in a metric that does not know
    values = torch.sin(200 * points[:, 2:3]) + 0.1 * points[:, :1]
    best = choice(points, values, [1.0, 1.0, 1.0, 1.0])
    assert without_idle_columns(values, best, REQUEST) is best


def test_a_model_without_some_columns_loads_and_predicts_the_same(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.uniform(size=(900, 5))
    target = np.sin(5 * table[:, 0]) + table[:, 1] + 0.01 * rng.normal(size=900)
    model = LocalKernelRidgeRegressor(20, kernel="matern32").fit(table[:800], target[:800])
    assert len(model.kernel_.lengthscale) < 2 * 5
    model.save(tmp_path / "model.krr")
    again = LocalKernelRidgeRegressor.load(tmp_path / "model.krr")
    np.testing.assert_array_equal(again.predict(table[800:]), model.predict(table[800:]))
