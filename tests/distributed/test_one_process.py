"""One, two, three and four ranks do what one process does."""

from __future__ import annotations

import pytest
from tests.distributed.checks import CHECKS, DTYPES
from tests.distributed.launching import SIZES
from tests.distributed.problems import TOLERANCE

CASES = [(name, dtype) for name, (_, dtypes) in CHECKS.items() for dtype in dtypes]


@pytest.mark.timeout(280)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_ranks_do_what_one_process_does(checked, name, dtype, size):
    for rank in range(size):
        found = checked[f"{name}, {dtype}, {size}, {rank}"]
        assert found
        for what, value in found.items():
            assert not isinstance(value, str), f"rank {rank}: {value}"
            good = value if isinstance(value, bool) else value <= TOLERANCE[DTYPES[dtype]]
            assert good, f"rank {rank} of {size}, {what}: {value}"
