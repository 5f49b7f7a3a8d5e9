"""A row is predicted from the others: never from itself."""

import numpy as np
import pytest
import torch
from tests import reference

from torchkrr import kernels, tuning
from torchkrr.errors import InputError, ShapeError

CHOICES = [{}, {"trend": "constant"}, {"fade": True}, {"normalize": "cell"}]


@pytest.fixture
def data():
    return torch.randn(40, 2, dtype=torch.float64), torch.randn(40, 3, dtype=torch.float64)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("fade", [False, True])
def test_against_the_reference_without_the_row(data, trend, fade):
    x, y = data
    found = tuning.local_leave_one_out(x, y, 8, kernel=kernels.Exponential(), ridge=1e-3, trend=trend, fade=fade)
    for i in range(40):
        others = np.delete(np.arange(40), i)
        points, values, z = x[others].numpy(), y[others].numpy(), x[i : i + 1].numpy()
        indices = reference.nearest(z, points, 8 + fade)
        choices = {"profile": reference.exponential, "ridge": 1e-3, "trend": trend, "fade": fade}
        expected = reference.local_kernel_ridge(z, points, values, indices, **choices)
        np.testing.assert_allclose(found.means[i : i + 1].numpy(), expected, rtol=1e-8, atol=1e-10)
        expected = reference.local_power_function(z, points, indices, **choices)
        np.testing.assert_allclose(found.powers[i : i + 1].numpy(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_its_own_value_does_not_matter(data, choices):
    x, y = data
    rows = torch.tensor([3, 17, 30])
    before = tuning.local_leave_one_out(x, y, 8, kernel=kernels.Exponential(), rows=rows, **choices)
    for position, row in enumerate(rows):
        changed = y.clone()
        changed[row] += 1e6
        after = tuning.local_leave_one_out(x, changed, 8, kernel=kernels.Exponential(), rows=rows, **choices)
        torch.testing.assert_close(after.means[position], before.means[position], rtol=0, atol=0)
        assert not bool((before.neighbor_indices[position] == row).any())


def test_all_other_rows_can_be_neighbors(data):
    x, y = data
    found = tuning.local_leave_one_out(x, y, 39, kernel=kernels.Exponential(), fade=True)
    assert found.neighbor_indices.shape == (40, 39)


def test_bad_input(data):
    x, y = data
    with pytest.raises(InputError, match="num_neighbors must lie between 1 and the number of other rows \\(39\\), got 40"):
        tuning.local_leave_one_out(x, y, 40, kernel=kernels.Exponential())
    with pytest.raises(ShapeError, match="centers has 1 row"):
        tuning.local_leave_one_out(x[:1], y[:1], 1, kernel=kernels.Exponential())
    with pytest.raises(InputError, match="rows must lie between 0 and 39"):
        tuning.local_leave_one_out(x, y, 5, kernel=kernels.Exponential(), rows=torch.tensor([40]))
