"""The prior of an estimator beside refits."""

import torch

from torchkrr.estimators.prior import RIDGES, RidgePrior, choose_ridge
from torchkrr.transforms import Compose


def test_the_ridge_of_fewer_rows_than_features_is_that_of_refits_without_each_row():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(20, 40, generator=generator, dtype=torch.float64)
    values = points[:, :1] + torch.randn(20, 1, generator=generator, dtype=torch.float64)
    weights, rows = torch.ones(20, dtype=torch.float64), torch.arange(20)
    losses = []

    def loss(predictions, sample):
        losses.append((predictions - values[sample].unsqueeze(1)).square().mean((0, 2)))
        return losses[-1]

    prior = RidgePrior("linear", Compose(), 0.0)
    chosen = choose_ridge(prior, points, values, weights, rows, RIDGES, loss).prior.ridge
    unit = chosen / RIDGES[int(losses[0].argmin())]
    for ridge, found in zip(RIDGES, losses[0], strict=True):
        errors = []
        for row in range(20):
            others = rows != row
            fitted = prior._replace(ridge=ridge * unit).fit(points[others], values[others], weights[others])
            errors.append((fitted.predict(points[row : row + 1]) - values[row]).square())
        torch.testing.assert_close(found, torch.stack(errors).mean(), rtol=1e-5, atol=0)
    assert chosen > RIDGES[0] * unit
