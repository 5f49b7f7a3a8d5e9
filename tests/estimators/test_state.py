"""A fitted estimator is tensors and plain values."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.estimators.problems import smooth_table

from torchkrr.errors import InputError
from torchkrr.estimators import KernelRidgeRegressor, LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.kernels import Kernel, Wendland

X, Y = smooth_table(120)
TABLE = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "yes", "no"), "c": X[:, 2]})


@pytest.mark.parametrize(
    "model",
    [
        LocalKernelRidgeRegressor(),
        LocalKernelRidgeRegressor(10, metric="linear", alpha=0.1),
        KernelRidgeRegressor(0.1, kernel=Wendland(5.0, dimension=4)),
        LocalKernelRidgeClassifier(20, kernel="matern32", metric=None),
    ],
)
def test_state_through_json_predicts_the_same(model):
    y = np.where(Y > 0, "up", "down") if isinstance(model, LocalKernelRidgeClassifier) else Y
    model = model.fit(TABLE, y)
    tensors, plain = model._state()
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    again = type(model)._from_state(tensors, json.loads(json.dumps(plain)))
    np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    assert again.feature_names_in_.tolist() == ["a", "b", "c"]
    assert again.n_neighbors_ == model.n_neighbors_
    if not isinstance(model, LocalKernelRidgeClassifier):
        np.testing.assert_array_equal(again.predict_interval(TABLE).upper, model.predict_interval(TABLE).upper)
    np.testing.assert_array_equal(
        again.partial_fit(TABLE[:3], y[:3]).predict(TABLE), model.partial_fit(TABLE[:3], y[:3]).predict(TABLE)
    )


def test_a_kernel_of_another_class_cannot_be_written_down():
    class Cauchy(Kernel):
        def profile(self, distance):
            return 1 / (1 + distance.square())

    model = KernelRidgeRegressor(0.1, kernel=Cauchy()).fit(X, Y)
    assert model.score(X, Y) > 0.5
    with pytest.raises(InputError, match="class Cauchy cannot be saved"):
        model._state()
