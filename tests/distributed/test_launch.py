"""Work divided among one, two, three and four ranks."""

from __future__ import annotations

from tests.distributed.launching import assert_equal_to_one_process, on_every_rank


@on_every_rank("teams", "readouts")
def test_ranks_do_what_one_process_does(checked, name, dtype, size):
    assert_equal_to_one_process(checked, name, dtype, size)
