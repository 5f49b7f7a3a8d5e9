"""The regressors in scikit-learn's company, and what they promise beyond it."""

import math
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.estimators.problems import smooth_table

from torchkrr.errors import InputError
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeRegressor
from torchkrr.kernels import Gaussian, Matern32

X, Y = smooth_table(200)
QUERY, TRUTH = smooth_table(200, seed=1)
QUICK = LocalKernelRidgeRegressor(20, alpha=1e-2, kernel="matern32", metric=None)


def test_defaults_find_the_function_behind_the_noise():
    model = LocalKernelRidgeRegressor().fit(X, Y)
    assert np.sqrt(np.mean((model.predict(QUERY) - TRUTH) ** 2)) < 0.075  # the noise alone is 0.05


def test_defaults_are_no_worse_than_a_linear_model_on_noisy_data():
    features, target = load_diabetes(return_X_y=True)
    ours = cross_val_score(LocalKernelRidgeRegressor(), features, target, cv=2)
    linear = cross_val_score(make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 12))), features, target, cv=2)
    assert ours.mean() > linear.mean() - 0.03


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_the_unit_of_the_target_does_not_matter(factor):
    model = LocalKernelRidgeRegressor().fit(X, Y)
    other = LocalKernelRidgeRegressor().fit(X, factor * Y + 7 * factor)
    np.testing.assert_allclose(other.predict(QUERY) / factor - 7, model.predict(QUERY), atol=1e-4)


def test_a_constant_target_is_predicted_exactly():
    model = LocalKernelRidgeRegressor().fit(X, np.full(len(X), 3.7))
    np.testing.assert_allclose(model.predict(QUERY), 3.7, rtol=1e-12)


@pytest.mark.parametrize("model", [QUICK, LocalKernelRidgeRegressor(), KernelRidgeRegressor(kernel="laplacian")])
def test_intervals_cover_what_they_promise(model):
    model = clone(model).fit(X, Y)
    for coverage in (0.5, 0.9):
        lower, upper = model.predict_interval(QUERY, coverage)
        assert abs(((lower <= TRUTH) & (upper >= TRUTH)).mean() - coverage) < 0.13  # of 200 rows
    mean, std = model.predict(QUERY, return_std=True)
    assert 0.7 < np.sqrt(np.mean(((mean - TRUTH) / std) ** 2)) < 1.4


@pytest.mark.parametrize("given", ["rows ten times", "means with weight ten"])
@pytest.mark.parametrize("kind", [KernelRidgeRegressor, partial(LocalKernelRidgeRegressor, 20)], ids=["dense", "local"])
def test_intervals_of_repeated_rows_cover_single_observations(kind, given):
    rng = np.random.default_rng(0)
    points, query = rng.uniform(-1, 1, size=(2, 300, 2))
    noisy = np.sin(3 * points[:, 0]) + 0.3 * rng.normal(size=(10, 300))
    new = np.sin(3 * query[:, 0]) + 0.3 * rng.normal(size=300)
    if given == "rows ten times":
        model = kind(alpha=0.2, kernel=Matern32(0.7)).fit(np.tile(points, (10, 1)), noisy.ravel())
    else:
        model = kind(alpha=0.2, kernel=Matern32(0.7)).fit(points, noisy.mean(0), sample_weight=np.full(300, 10))
    lower, upper = model.predict_interval(query, 0.9)
    assert abs(((lower <= new) & (upper >= new)).mean() - 0.9) < 0.06
    mean, std = model.predict(query, return_std=True)
    assert 0.8 < np.sqrt(np.mean(((mean - new) / std) ** 2)) < 1.2


def test_uncertainty_grows_away_from_the_rows():
    model = LocalKernelRidgeRegressor(20, alpha=1e-2, kernel=Matern32(0.5)).fit(X, Y)
    _, std = model.predict([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]], return_std=True)
    assert std[1] > 2 * std[0]


@pytest.mark.parametrize("model", [QUICK, LocalKernelRidgeRegressor()])
def test_several_targets_are_predicted_together(model):
    both = np.stack((Y, -2 * Y + 5), 1)
    together = clone(model).fit(X, both)
    assert together.predict(QUERY).shape == (200, 2)
    mean, std = together.predict(QUERY, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    np.testing.assert_allclose(mean[:, 1], -2 * mean[:, 0] + 5, atol=1e-6)
    np.testing.assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-6)
    assert clone(model).fit(X, Y[:, None]).predict(QUERY).shape == (200, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", [QUICK, KernelRidgeRegressor(0.1, kernel="gaussian", metric=None)])
def test_dtype_of_the_table_is_that_of_the_prediction(model, dtype):
    model = clone(model).fit(X.astype(dtype), Y)
    mean, std = model.predict(QUERY, return_std=True)
    assert mean.dtype == std.dtype == model.predict(QUERY).dtype == dtype
    assert all(limit.dtype == dtype for limit in model.predict_interval(QUERY))


def test_grid_search_pipelines_and_cross_validation_work():
    pipeline = make_pipeline(StandardScaler(), clone(QUICK))
    search = GridSearchCV(pipeline, {"localkernelridgeregressor__n_neighbors": [2, 40]}, cv=3).fit(X, Y)
    assert search.best_params_["localkernelridgeregressor__n_neighbors"] == 40
    assert cross_val_score(pipeline, X, Y, cv=3).min() > 0.8


def test_random_state_decides_everything():
    some = LocalKernelRidgeRegressor(random_state=3).fit(X, Y).predict(QUERY)
    np.testing.assert_array_equal(LocalKernelRidgeRegressor(random_state=3).fit(X, Y).predict(QUERY), some)


def test_threads_are_given_back_and_progress_is_shown(capsys):
    before = torch.get_num_threads()
    LocalKernelRidgeRegressor(n_jobs=1, verbose=1).fit(X[:60], Y[:60]).predict(QUERY)
    assert torch.get_num_threads() == before
    assert "kernels: 100%" in capsys.readouterr().err
    with pytest.raises(InputError, match="n_jobs"):
        LocalKernelRidgeRegressor(n_jobs=0).fit(X[:60], Y[:60])


def test_a_kernel_of_the_caller_is_used_as_it_is():
    kernel = Gaussian(0.4)
    model = KernelRidgeRegressor(1e-3, kernel=kernel).fit(X, Y)
    gram = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / 0.4**2)
    cross = np.exp(-0.5 * ((QUERY[:, None] - X) ** 2).sum(-1) / 0.4**2)
    inverse = np.linalg.inv(gram + 1e-3 * np.eye(len(X)))
    mean = inverse.sum(0) @ Y / inverse.sum()
    np.testing.assert_allclose(model.predict(QUERY), mean + cross @ inverse @ (Y - mean), atol=1e-7)
    assert float(kernel.lengthscale) == pytest.approx(0.4)


def test_a_metric_is_learned_on_top_of_a_kernel_whether_it_learns_or_not():
    scales = []
    for learn in (True, False):
        # Its logarithm is the same in float32, which is what is learned, and in float64.
        kernel = Gaussian(math.exp(1.5), learn_lengthscale=learn)
        scales.append(KernelRidgeRegressor(1e-2, kernel=kernel, metric="ard").fit(X, Y).kernel_.lengthscale)
        assert float(kernel.lengthscale.detach()) == pytest.approx(math.exp(1.5))
    assert scales[0].shape == (3,)
    assert scales[0][0] < 2
    torch.testing.assert_close(*scales)
    assert not scales[0].requires_grad


@pytest.mark.parametrize("kernel", ["exponential", "matern52", "laplacian", Matern32(0.5)])
@pytest.mark.parametrize("metric", [None, "ard"])
def test_every_kernel_works_with_and_without_a_metric(kernel, metric):
    model = LocalKernelRidgeRegressor(kernel=kernel, metric=metric).fit(X[:150], Y[:150])
    assert model.score(QUERY, TRUTH) > 0.9


def test_a_learned_metric_finds_the_features_that_matter():
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(300, 6))
    target = np.sin(8 * features[:, 2])
    learned = KernelRidgeRegressor(kernel="matern32").fit(features[:200], target[:200])
    alike = KernelRidgeRegressor(kernel="matern32", metric=None).fit(features[:200], target[:200])
    errors = [np.abs(model.predict(features[200:]) - target[200:]).mean() for model in (learned, alike)]
    assert errors[0] < 0.1 * errors[1]


def test_a_linear_metric_finds_a_direction():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 4))
    target = np.sin(2 * features.sum(1) / 2)
    model = LocalKernelRidgeRegressor(20, metric="linear").fit(features[:300], target[:300])
    alike = LocalKernelRidgeRegressor(20, metric=None).fit(features[:300], target[:300])
    errors = [np.abs(one.predict(features[300:]) - target[300:]).mean() for one in (model, alike)]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.slow
def test_many_rows_are_predicted_from_their_neighbors():
    features, target = smooth_table(2600, noise=0.1)
    model = LocalKernelRidgeRegressor(kernel="matern32").fit(features[:2400], target[:2400])
    assert model.n_neighbors_ <= 200
    assert np.sqrt(np.mean((model.predict(features[2400:]) - target[2400:]) ** 2)) < 0.115
    before = model.predict(features[2400:])
    model.partial_fit(features[2400:], target[2400:])
    assert np.abs(model.predict(features[2400:]) - before).max() > 1e-3
    assert np.abs(model.forget(np.arange(2400, 2600)).predict(features[2400:]) - before).max() < 1e-10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_neighbors": 0}, "n_neighbors must be 'auto' or an int of at least 1, got 0"),
        ({"n_neighbors": 2.5}, "n_neighbors must be 'auto' or an int"),
        ({"alpha": -1.0}, "alpha must be finite and not negative, got -1.0"),
        ({"alpha": "small"}, "alpha must be 'auto' or a non-negative number, got 'small'"),
        ({"kernel": "rbf"}, "kernel must be 'auto', one of 'exponential'.*got 'rbf'"),
        ({"metric": "euclidean"}, "metric must be None or one of 'auto', 'ard', 'linear', got 'euclidean'"),
    ],
)
def test_impossible_arguments_are_an_error(arguments, message):
    with pytest.raises(InputError, match=message):
        LocalKernelRidgeRegressor(**arguments).fit(X, Y)


def test_impossible_requests_are_an_error():
    model = clone(QUICK).fit(X, Y)
    with pytest.raises(InputError, match="coverage must be a number between 0 and 1"):
        model.predict_interval(QUERY, 1.0)
    with pytest.raises(InputError, match=r"between 1 and the number of training rows \(200\)"):
        model.kneighbors(QUERY, 201)
    with pytest.raises(InputError, match="n_rows must be at least 1"):
        model.explain(QUERY, 0)
    with pytest.raises(InputError, match="y has 2 outputs"):
        model.partial_fit(X[:3], np.ones((3, 2)))


def test_without_scikit_learn_the_library_works_and_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import torchkrr\n"
        "try:\n    import torchkrr.estimators\n"
        "except torchkrr.errors.MissingExtraError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 'pip install "torchkrr[sklearn]"' in found
