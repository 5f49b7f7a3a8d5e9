"""Selection is what a full sort would select."""

import pytest
import torch

from torchkrr.neighbors import base as selection


@pytest.mark.parametrize("width", [1, 5, 40, 100, 1000, 1003, 5001])
@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [0, 4], ids=["all different", "many equal"])
def test_the_smallest_entries_are_found_once_each(width, count, dtype, levels):
    count = min(count, width)
    scores = torch.randint(levels, (20, width)).to(dtype) if levels else torch.randn(20, width, dtype=dtype)
    values, columns = selection.smallest(scores, count)
    assert torch.equal(values.sort(1).values, scores.sort(1).values[:, :count])
    assert torch.equal(values, scores.gather(1, columns))
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize("order", [selection.order_of, selection.stable_order])
def test_equal_entries_keep_their_order(order):
    values = torch.cat((torch.randint(3, (20, 50)).float(), torch.randn(20, 50)))
    assert torch.equal(order(values), values.argsort(dim=1, stable=True))
