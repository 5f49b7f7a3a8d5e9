"""Fitted estimators whose rows are moved into a store, and opened elsewhere."""

import subprocess
import sys

import numpy as np
import pytest

import torchkrr
from torchkrr import kernels, stores
from torchkrr.errors import InputError, StoreError
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor

CHOICES = {"kernel": "matern32", "alpha": 0.1, "metric": None}
rng = np.random.default_rng(8)
X, QUERY = rng.normal(size=(400, 4)), rng.normal(size=(30, 4))
LABELS = np.where(X[:, 0] * X[:, 1] > 0, np.where(X[:, 2] > 0.3, "red", "green"), "blue")
Y = np.stack((np.sin(X[:, 0]) + X[:, 1], X[:, 2] ** 2), axis=1)


def close(one, other, atol=2e-5):
    np.testing.assert_allclose(np.asarray(one, dtype=float), np.asarray(other, dtype=float), rtol=0, atol=atol)


def same_answers(head, model, names):
    for name in names:
        close(getattr(head, name)(QUERY), getattr(model, name)(QUERY))


@pytest.mark.parametrize("prior", [None, "linear", "coarse"])
def test_a_classifier_predicts_the_same_from_a_store(open_store, prior):
    model = LocalKernelRidgeClassifier(20, prior=prior, **CHOICES).fit(X, LABELS, ids=[f"row {at}" for at in range(400)])
    model.notes_ = {"targets": ["colour"]}
    model.to_store(open_store(kernel=model.kernel_))
    head = stores.open_head(open_store())
    assert type(head) is LocalKernelRidgeClassifier
    assert (head.predict(QUERY) == model.predict(QUERY)).all()
    same_answers(head, model, ["predict_proba", "error_indicator", "predict_set"])
    close(head.typicality(QUERY), model.typicality(QUERY), atol=6e-3)
    why, expected = head.explain(QUERY, 5), model.explain(QUERY, 5)
    assert (why.indices == expected.ids).mean() > 0.95
    close(why.weights, expected.weights)
    close(why.prior, expected.prior)
    assert (head.notes_, head.n_samples_fit_, head.n_neighbors_) == (model.notes_, 400, 20)


@pytest.mark.parametrize("prior", [None, "linear"])
def test_a_regressor_predicts_the_same_with_its_intervals(open_store, prior):
    model = LocalKernelRidgeRegressor(20, prior=prior, **CHOICES).fit(X, Y)
    model.to_store(open_store(kernel=model.kernel_))
    head = stores.open_head(open_store())
    for found, expected in zip(head.predict(QUERY, return_std=True), model.predict(QUERY, return_std=True), strict=True):
        close(found, expected, atol=1e-4)
    for found, expected in zip(head.predict_interval(QUERY, 0.9), model.predict_interval(QUERY, 0.9), strict=True):
        close(found, expected, atol=1e-4)
    assert head.explain(QUERY, 3).indices.dtype == np.int64
    assert (head.explain(QUERY, 3).indices == model.explain(QUERY, 3).indices).mean() > 0.95


def test_rows_of_different_weight_and_copies_keep_their_ridges(open_store):
    double, weights = X.copy(), rng.uniform(0.5, 2, 400)
    double[100:150] = double[:50]
    model = LocalKernelRidgeRegressor(20, prior="linear", **CHOICES).fit(double, Y[:, 0], sample_weight=weights)
    model.to_store(open_store(kernel=model.kernel_))
    head = stores.open_head(open_store())
    close(head.predict(QUERY), model.predict(QUERY))
    assert head.n_samples_fit_ == 350
    head.partial_fit(QUERY[:2], [1.0, 2.0], sample_weight=[1e6, 1e6])
    assert head.n_samples_fit_ == 352
    close(head.predict(QUERY[:2]), [1.0, 2.0], atol=1e-2)


def test_an_estimator_of_all_rows_is_moved_if_told_how_many_are_to_count(pgvector):
    own = {"kernel": kernels.Matern32(1.5), "alpha": 0.1, "prior": None}
    model = LocalKernelRidgeClassifier(**own).fit(X, LABELS)
    with pytest.raises(InputError, match="from all rows, in one factorization"):
        model.to_store(pgvector(kernel=model.kernel_))
    model.to_store(pgvector(kernel=model.kernel_), n_neighbors=100)
    head = stores.open_head(pgvector())
    local = LocalKernelRidgeClassifier(100, **own).fit(X, LABELS)
    close(head.predict_proba(QUERY), local.predict_proba(QUERY), atol=1e-4)
    assert head.n_neighbors_ == 100
    dense = KernelRidgeRegressor(0.1, kernel="matern32", metric=None, prior=None).fit(X, Y)
    dense.to_store(pgvector("dense", kernel=dense.kernel_), n_neighbors=400)
    close(stores.open_head(pgvector("dense")).predict(QUERY), dense.predict(QUERY), atol=1e-3)


def test_what_cannot_be_moved_is_named(pgvector):
    mixed = LocalKernelRidgeRegressor(prior=None, metric=None).fit(X[:100], Y[:100, 0])
    assert len(mixed.predictor_.members) > 1
    with pytest.raises(InputError, match="kernels predict together"):
        mixed.to_store(pgvector(kernel=mixed.kernel_))
    model = LocalKernelRidgeRegressor(20, prior=None, **CHOICES).fit(X, Y)
    with pytest.raises(InputError, match="not that of the estimator"):
        model.to_store(pgvector(kernel=kernels.Exponential(1.0)))
    other = pgvector("other", kernel=model.kernel_)
    other.add(X[:3], Y[:3], [1000, 1001, 1002])
    with pytest.raises(StoreError, match="403 rows, but the head 400"):
        model.to_store(other)
    with pytest.raises(StoreError, match="holds no head"):
        stores.open_head(other)
    store = pgvector("rows", kernel=model.kernel_)
    with pytest.raises(InputError, match="n_neighbors must be at least 1, got 0"):
        model.to_store(store, n_neighbors=0)
    model.to_store(store)
    with pytest.raises(StoreError, match="other rows, or a head, already"):
        model.to_store(store)


def test_a_move_that_was_interrupted_goes_on(pgvector, monkeypatch):
    model = LocalKernelRidgeRegressor(20, prior=None, **CHOICES).fit(X, Y)
    store, add = pgvector(kernel=model.kernel_), stores.PgVectorStore.add

    def some(self, points, values, ids, **columns):
        add(self, points[:150], values[:150], ids[:150], **columns)
        raise StoreError("the connection is lost")

    monkeypatch.setattr(stores.PgVectorStore, "add", some)
    with pytest.raises(StoreError, match="the connection is lost"):
        model.to_store(store)
    monkeypatch.undo()
    assert len(store) == 150
    model.to_store(store)
    close(stores.open_head(pgvector()).predict(QUERY), model.predict(QUERY))


def test_rows_that_are_forgotten_or_added_count_and_the_rest_stays(open_store):
    model = LocalKernelRidgeClassifier(20, prior="linear", **CHOICES).fit(X, LABELS)
    store = open_store(kernel=model.kernel_)
    model.to_store(store)
    head = stores.open_head(store)
    before = head.predict_proba(QUERY)
    store.remove(np.arange(300))
    assert np.abs(head.predict_proba(QUERY) - before).max() > 0.01
    head.partial_fit(QUERY, ["red"] * 30)
    assert head.predict_proba(QUERY)[:, 2].mean() > 0.8
    with pytest.raises(InputError, match="are in a store"):
        head.partial_fit(QUERY[:1], ["violet"])
    for action in (
        lambda: head.forget([1]),
        lambda: head.forget(ids=["x"]),
        lambda: head.save("x"),
        lambda: head.kneighbors(X),
    ):
        with pytest.raises(InputError, match="are in a store"):
            action()


def test_a_new_process_opens_the_head(pgvector, server, schema):
    model = LocalKernelRidgeClassifier(20, prior="linear", **CHOICES).fit(X, LABELS)
    model.to_store(pgvector(kernel=model.kernel_))
    code = (
        "import sys, numpy, torchkrr.stores as stores\n"
        f"head = stores.open_head(stores.PgVectorStore({server.get_uri()!r}, 'rows', schema={schema!r}))\n"
        f"print(head.predict_proba(numpy.array({QUERY[:2].tolist()})).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    close(eval(done.stdout), model.predict_proba(QUERY[:2]))


def test_models_as_priors_stay_where_they_are(pgvector):
    model = LocalKernelRidgeRegressor(20, **{**CHOICES, "prior": lambda rows: rows[:, :2]}).fit(X, Y)
    with pytest.raises(InputError, match="prior is a model cannot be saved"):
        model.to_store(pgvector(kernel=model.kernel_))
    assert torchkrr.stores is stores
