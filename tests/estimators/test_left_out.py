"""Every center without itself: the same as leaving out a sample, and as fits with other values."""

import numpy as np
import pytest
import torch

from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.estimators.left_out import LeftOut

RNG = np.random.default_rng(3)
X = RNG.normal(size=(240, 4))
Y = np.where(X[:, 0] * X[:, 1] + 0.5 * X[:, 2] + 0.3 * RNG.normal(size=240) > 0, "a", "b")
Y[X[:, 3] > 1.2] = "c"
KERNELS = {"dense": {"kernel": "matern32", "alpha": 0.1}, "local": {"kernel": "matern32", "alpha": 0.1, "n_neighbors": 30}}
PRIORS = (None, "linear", "coarse")


def fitted(kind, prior, groups=None, x=X, y=Y):
    return LocalKernelRidgeClassifier(prior=prior, **KERNELS[kind]).fit(x, y, groups=groups)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("groups", [None, np.arange(240) // 3])
def test_scores_are_those_of_a_sample_that_is_left_out(kind, prior, groups):
    predictor = fitted(kind, prior, groups).predictor_
    found, (expected, _) = LeftOut(predictor), predictor.leave_out()
    torch.testing.assert_close(found.scores[predictor.sample.which], expected.mean.double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance[predictor.sample.which], expected.variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("groups", [None, np.arange(240) // 3])
def test_another_value_of_a_row_counts_as_in_a_new_fit(kind, prior, groups):
    predictor = fitted(kind, prior, groups).predictor_
    found, values = LeftOut(predictor), predictor.rows.values.clone()
    for row, label in ((7, 2), (100, 2), (7, 0)):
        values[row] = torch.eye(3, dtype=values.dtype)[label]
        found.change(int(predictor.centers.of_row[row]), values[row])
    other = LeftOut(predictor.append(predictor.rows._replace(values=values)).forget(torch.arange(240)))
    torch.testing.assert_close(found.scores, other.scores, rtol=1e-6, atol=1e-6)
    assert float((other.scores - LeftOut(predictor).scores).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KERNELS)
def test_the_rows_behind_a_score_give_it(kind):
    predictor = fitted(kind, None, np.arange(240) // 3).predictor_
    found = LeftOut(predictor)
    for center in (0, 50, 239):
        indices, weights = found.behind(center, 240)
        group = predictor.groups.of_center
        assert not bool((group[indices] == group[center]).any())
        assert abs(weights.sum() - 1) < 1e-6
        expected = (torch.from_numpy(weights).unsqueeze(1) * predictor.centers.values[indices]).sum(0)
        torch.testing.assert_close(found.scores[center], expected, rtol=1e-6, atol=1e-6)


def test_a_model_as_the_prior_stays_as_it_is():
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import Ridge

    y = X[:, 0] + np.sin(3 * X[:, 1])
    model = LocalKernelRidgeRegressor(20, kernel="gaussian", alpha=0.1, prior=FrozenEstimator(Ridge().fit(X, y))).fit(X, y)
    predictor = model.predictor_
    found, expected = LeftOut(predictor), predictor.leave_out()[0].mean
    torch.testing.assert_close(found.scores[predictor.sample.which], expected.double(), rtol=1e-6, atol=1e-6)
