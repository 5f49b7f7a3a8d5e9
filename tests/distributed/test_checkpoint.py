"""Checkpoints of sharded layers, read by other numbers of ranks."""

from __future__ import annotations

from tests.distributed.launching import assert_equal_to_one_process, on_every_rank


@on_every_rank("checkpoints", "checkpoints of others")
def test_checkpoints_are_read_by_any_number_of_ranks(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)
