"""Work divided among one, two, three and four ranks."""

from __future__ import annotations

from tests.distributed.launching import on_every_rank

test_ranks_do_what_one_process_does = on_every_rank("teams", "readouts")
