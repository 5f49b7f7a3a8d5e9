"""Which rows are left out."""

import torch

from torchkrr.tuning.leave_one_out import sample_rows, shuffled_rows

CPU = torch.device("cpu")


def test_all_rows_in_order_or_different_ones_that_the_seed_decides():
    assert torch.equal(sample_rows(5, 9, 0, CPU), torch.arange(5))
    rows = sample_rows(50, 9, 0, CPU)
    assert len(rows.unique()) == 9
    assert torch.equal(rows, sample_rows(50, 9, 0, CPU))
    assert not torch.equal(rows, sample_rows(50, 9, 1, CPU))


def test_the_first_of_shuffled_rows_are_a_sample_too():
    assert torch.equal(shuffled_rows(50, 20, 3, CPU)[:9], shuffled_rows(50, 9, 3, CPU))
    assert torch.equal(shuffled_rows(50, 99, 3, CPU).sort().values, torch.arange(50))
