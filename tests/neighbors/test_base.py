"""What every index shares: selection and order are those of a full sort, and samples reach from end to end."""

import pytest
import torch

from torchkrr import neighbors
from torchkrr.neighbors import base


@pytest.mark.parametrize("width", [1, 5, 40, 100, 1000, 1003, 5001])
@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [0, 4], ids=["all different", "many equal"])
def test_the_smallest_entries_are_found_once_each(width, count, dtype, levels):
    count = min(count, width)
    scores = torch.randint(levels, (20, width)).to(dtype) if levels else torch.randn(20, width, dtype=dtype)
    values, columns = base.smallest(scores, count)
    assert torch.equal(values.sort(1).values, scores.sort(1).values[:, :count])
    assert torch.equal(values, scores.gather(1, columns))
    assert all(len(set(row)) == count for row in columns.tolist())


def test_equal_entries_keep_their_order():
    values = torch.cat((torch.randint(3, (20, 50)).float(), torch.randn(20, 50)))
    assert torch.equal(base.order_of(values), values.argsort(dim=1, stable=True))


def test_a_sample_reaches_from_the_first_row_to_the_last_of_many():
    # More rows than float32 can count.
    count = 20_000_000
    rows = base.evenly_spaced_rows(count, 1024, torch.device("cpu"))
    assert (int(rows[0]), int(rows[-1]), len(rows.unique())) == (0, count - 1, 1024)
    assert base.evenly_spaced_rows(3, 1024, torch.device("cpu")).tolist() == [0, 1, 2]
    assert base.evenly_spaced_rows(1, 1024, torch.device("cpu")).tolist() == [0]
    assert len(neighbors.StreamedIndex().build(torch.ones(1, 1).expand(count, 1)).points) == count
