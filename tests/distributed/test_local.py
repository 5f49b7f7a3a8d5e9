"""A sharded layer on one, two, three and four ranks is the layer of one process."""

from __future__ import annotations

from tests.distributed.launching import assert_equal_to_one_process, on_every_rank


@on_every_rank("predictions")
def test_predictions_are_those_of_one_process(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)


@on_every_rank("gradients", "second derivatives", "mixed derivatives", "beside data parallel")
def test_derivatives_are_those_of_one_process(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)


@on_every_rank("growth", "copies")
def test_a_layer_that_grows_or_is_copied_stays_that_of_one_process(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)


@on_every_rank("wrong input")
def test_wrong_input_on_one_rank_stops_all(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)
