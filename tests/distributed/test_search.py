"""Neighbors among the centers of all ranks, and what travels to find them."""

from __future__ import annotations

from tests.distributed.launching import on_every_rank

test_neighbors_are_those_of_one_process = on_every_rank("ties", "many rounds")
test_traffic_is_that_of_the_model = on_every_rank("traffic")
