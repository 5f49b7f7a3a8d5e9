"""Neighbors among the centers of all ranks, and what travels to find them."""

from __future__ import annotations

from tests.distributed.launching import assert_equal_to_one_process, on_every_rank


@on_every_rank("ties", "many rounds")
def test_neighbors_are_those_of_one_process(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)


@on_every_rank("traffic")
def test_traffic_is_that_of_the_model(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)
