"""An estimator whose rows are spread over ranks, here over a single one."""

import copy
import os
import pickle

import numpy as np
import pytest
from tests.estimators.problems import smooth_table

from torchkrr.distributed import launched
from torchkrr.distributed.estimators import shard
from torchkrr.errors import InputError
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.estimators.encoding import Rows
from torchkrr.kernels import Matern32

X, Y = smooth_table(120)
QUERY = smooth_table(30, seed=1)[0]


@pytest.mark.parametrize("most", [1, 4], ids=["different rows", "repeated rows"])
def test_a_sharded_estimator_is_as_sure_as_the_one_it_was_made_from(most):
    weights = np.random.default_rng(0).integers(1, most + 1, size=len(X))
    model = LocalKernelRidgeRegressor(15, alpha=0.1, kernel=Matern32(0.7)).fit(X, Y, sample_weight=weights)
    expected = model.predict_interval(QUERY)
    with launched("gloo"):
        shard(model)
        np.testing.assert_allclose(model.predict_interval(QUERY), expected, rtol=1e-9)


def test_what_needs_every_row_is_refused_by_a_part_of_them(tmp_path):
    model = LocalKernelRidgeRegressor(15, alpha=0.1, kernel=Matern32(0.7)).fit(X, Y)
    with launched("gloo"):
        shard(model)
        for ask in (
            lambda: model.save(tmp_path / "m.krr"),
            lambda: pickle.dumps(model),
            lambda: copy.deepcopy(model),
            lambda: model.kneighbors(QUERY),
            lambda: model.forget(0),
            lambda: model.partial_fit(X[:1], Y[:1]),
            lambda: shard(model),
        ):
            with pytest.raises(InputError, match="A sharded estimator holds a part of its rows"):
                ask()
    assert os.listdir(tmp_path) == []


def test_a_sharded_mixture_explains_itself_as_the_one_it_was_made_from():
    model = LocalKernelRidgeRegressor(15, alpha=0.1, kernel=Matern32(0.7)).fit(X, Y)
    first = model.predictor_.members[0]
    second = first._replace(kernel=Matern32(0.3), num_neighbors=None, share=0.4)
    model.predictor_.members = (first._replace(share=0.6), second)
    expected = model.explain(QUERY, n_rows=4)
    with launched("gloo"):
        shard(model)
        found = model.explain(QUERY, n_rows=4)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-9)


@pytest.mark.parametrize("neighbors", [15, None], ids=["local", "dense"])
@pytest.mark.parametrize("groups", [None, np.arange(len(X)) // 3], ids=["alone", "groups"])
def test_a_sharded_prior_predicts_and_is_left_out_as_the_one_it_was_made_from(neighbors, groups):
    model = LocalKernelRidgeRegressor(15, alpha=0.1, kernel="matern32", metric=None, prior="linear")
    model.fit(X, Y, groups=groups)
    assert model.predictor_.prior.name == "linear"
    model.predictor_.members = tuple(m._replace(num_neighbors=neighbors) for m in model.predictor_.members)
    expected = model.predict(QUERY), model.predict_interval(QUERY), model.leave_one_out()[0], model.explain(QUERY).prior
    prior = expected[3].ravel()
    assert np.ptp(prior) > 0
    assert np.abs(prior - expected[0]).max() > 0.01
    with launched("gloo"):
        shard(model)
        found = model.predict(QUERY), model.predict_interval(QUERY), model.leave_one_out()[0], model.explain(QUERY).prior
        assert not hasattr(model.predictor_.fitted_prior, "spectrum")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("neighbors", [15, None], ids=["local", "dense"])
def test_a_sharded_classifier_predicts_as_the_one_it_was_made_from(neighbors):
    labels = np.digitize(Y, np.quantile(Y, [0.3, 0.6]))
    model = LocalKernelRidgeClassifier(15, alpha=0.1, kernel="matern32", metric=None, prior="linear")
    model.partial_fit(X, labels, classes=[0, 1, 2, 3])  # the last has no row yet
    model.predictor_.members = tuple(m._replace(num_neighbors=neighbors) for m in model.predictor_.members)
    model.predictor_ = model.predictor_.append(Rows(*(tensor[:0] for tensor in model.predictor_.rows)))  # not yet solved
    expected = model.predict_proba(QUERY)
    with launched("gloo"):
        shard(model)
        np.testing.assert_allclose(model.predict_proba(QUERY), expected, rtol=1e-9)


def test_a_sharded_model_prior_stays_what_it_was_far_from_all_rows():
    labels = (np.median(Y) < Y).astype(int)
    model = LocalKernelRidgeClassifier(15, alpha=0.1, kernel=Matern32(0.1), prior=lambda rows: np.zeros((len(rows), 2)))
    model.fit(X, labels)
    far = QUERY + 100.0
    expected = model.predict_proba(np.concatenate((QUERY, far)))
    with launched("gloo"):
        shard(model)
        found = model.predict_proba(np.concatenate((QUERY, far)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(found[len(QUERY) :], 0.5)
