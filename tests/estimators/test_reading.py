"""Sparse tables, tensors and half precision."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csc_array, csr_matrix
from sklearn.base import clone

from torchkrr.errors import InputError, KernelRidgeWarning
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor, reading

FAST = LocalKernelRidgeRegressor(20, alpha=0.1, kernel="matern32", metric=None)


@pytest.mark.parametrize("make", [csr_matrix, csc_array, coo_array])
def test_a_sparse_table_is_made_dense(make, monkeypatch):
    table = np.random.default_rng(0).normal(size=(80, 6)) * (np.random.default_rng(1).uniform(size=(80, 6)) < 0.3)
    expected = clone(FAST).fit(table, table[:, 0]).predict(table)
    np.testing.assert_array_equal(clone(FAST).fit(make(table), table[:, 0]).predict(make(table)), expected)
    assert clone(FAST).fit(make(table.astype(np.float32)), table[:, 0]).predict(make(table)).dtype == np.float32
    monkeypatch.setattr(reading, "LARGE_BYTES", 80 * 6 * 8 - 1)
    with pytest.warns(KernelRidgeWarning, match=r"X is sparse, 80 x 6: made dense it takes 0\.0 MiB\.$"):
        model = clone(FAST).fit(make(table), table[:, 0])
    np.testing.assert_array_equal(model.predict(make(table)), expected)  # said once
    huge = make((100_000, 300_000))
    for ask in (lambda: clone(FAST).fit(huge, np.zeros(100_000)), lambda: model.predict(huge)):
        with pytest.raises(
            InputError, match=r"100000 x 300000: made dense it takes 228,881\.8 MiB, more than 4,096 MiB\. Reduce"
        ):
            ask()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_and_half_precision_are_tables_too(dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(90, 4, generator=generator).to(dtype).requires_grad_()
    y = table.detach().float()[:, 0].sin()
    plain = table.detach().to(torch.float64 if dtype == torch.float64 else torch.float32).numpy()
    expected = clone(FAST).fit(plain, y.numpy())
    given = clone(FAST).fit(table, y.to(dtype), torch.ones(90, dtype=dtype), groups=torch.arange(90))
    assert (
        expected.predict(plain).dtype == given.predict(table).dtype == (np.float64 if dtype == torch.float64 else np.float32)
    )
    np.testing.assert_allclose(given.predict(table), expected.predict(plain), atol=1e-2 if dtype == torch.bfloat16 else 2e-3)
    labels = (y > 0.5).long()
    classes = LocalKernelRidgeClassifier(20, kernel="matern32", metric=None).fit(table, labels)
    assert classes.classes_.tolist() == [0, 1]
    assert classes.score(table, labels) > 0.9
    if dtype == torch.float16:
        np.testing.assert_array_equal(expected.predict(plain.astype(np.float16)), expected.predict(plain))
        assert clone(FAST).fit(plain.astype(np.float16), y.numpy()).predict(plain).dtype == np.float32
