"""Checkpoints of sharded layers, read by other numbers of ranks."""

from __future__ import annotations

from tests.distributed.launching import on_every_rank

test_checkpoints_are_read_by_any_number_of_ranks = on_every_rank("checkpoints", "checkpoints of others")
