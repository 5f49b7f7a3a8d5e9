"""A sharded layer on one, two, three and four ranks is the layer of one process."""

from __future__ import annotations

from tests.distributed.launching import on_every_rank

test_predictions_are_those_of_one_process = on_every_rank("predictions")
test_derivatives_are_those_of_one_process = on_every_rank(
    "gradients", "second derivatives", "mixed derivatives", "beside data parallel"
)
test_a_layer_that_grows_or_is_copied_stays_that_of_one_process = on_every_rank("growth", "copies")
test_wrong_input_on_one_rank_stops_all = on_every_rank("wrong input")
