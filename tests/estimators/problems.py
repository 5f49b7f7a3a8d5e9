"""Small tables with a function behind them, and fitted estimators in the terms of the reference."""

import numpy as np
import torch
from tests import reference

from torchkrr.estimators.candidates import Request
from torchkrr.estimators.encoding import Centers
from torchkrr.estimators.prior import RidgePrior
from torchkrr.transforms import Compose


def smooth_table(count=120, features=3, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(count, features))
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + noise * rng.normal(size=count)
    return X, y


def two_classes(count=160, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2))
    return X, np.where(X[:, 0] * X[:, 1] + 0.2 * rng.normal(size=count) > 0, "same", "other")


@torch.no_grad()
def reference_of(model, groups=None, query=None):
    """The different rows of a fitted estimator, and what was chosen, for the loops of `tests.reference`; query rows last."""
    predictor = model.predictor_
    centers, prior = predictor.centers, predictor.prior
    points = centers.points if query is None else torch.cat((centers.points, torch.tensor(query)))
    members = [
        (reference.PROFILES[type(member.kernel).__name__], member.kernel.embed(points).numpy(), member.ridge, member.share)
        for member in predictor.members
    ]
    return reference.Sum(
        features=None if prior is None else prior.features(points).double().numpy(),
        prior_ridge=0.0 if prior is None else prior.ridge,
        members=members,
        values=centers.values.numpy(),
        weights=centers.weights.numpy(),
        groups=np.arange(len(centers.points)) if groups is None else np.asarray(groups)[predictor.first_rows],
    )


def centers_of(X, labels, weights=None):
    """Rows that are all different, in the order given, with the memberships of their classes."""
    rows, names = len(X), sorted(set(labels))
    values = torch.tensor([[label == name for name in names] for label in labels], dtype=torch.float64)
    weights = torch.ones(rows, dtype=torch.float64) if weights is None else torch.as_tensor(weights)
    return Centers(torch.as_tensor(X), values, weights, torch.arange(rows), torch.zeros_like(values), torch.zeros(rows))


def linear_prior(centers, ridge=0.5):
    return RidgePrior("linear", Compose(), ridge).fit(centers.points, centers.values, centers.weights)


def request_of(num_neighbors=None, ridge=None, kernel=None, *, prior=None):
    """For classes, without a metric."""
    return Request(
        num_neighbors, ridge, kernel, None, dense=False, loss="cross_entropy", seed=0, progress=False, prior=prior
    )
