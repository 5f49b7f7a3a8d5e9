"""Chunks come back in order, and no more of them are under way than workers can use."""

from __future__ import annotations

import threading

import pytest
import torch

from torchkrr import _chunking
from torchkrr._threads import threads

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_collected_rows_are_those_of_one_call(workers, size):
    rows = torch.randn(23, 2)
    with threads(workers):
        squares, sums = _chunking.collect(lambda part: (rows[part] ** 2, rows[part].sum(1)), _chunking.ranges(23, size), CPU)
    assert torch.equal(squares, rows**2)
    assert torch.equal(sums, rows.sum(1))


def test_at_most_two_chunks_for_each_worker_are_under_way():
    begun, free = [], threading.Event()

    def work(chunk: slice) -> int:
        begun.append(chunk.start)
        free.wait(30)
        return chunk.start

    with threads(2):
        results = _chunking.map_in_order(work, _chunking.ranges(50, 1), CPU)
        free.set()
        assert next(results) == 0
        assert len(begun) <= 4
        assert list(results) == list(range(1, 50))


def test_an_error_in_a_chunk_reaches_the_caller_and_the_next_call_works():
    def work(chunk: slice) -> int:
        if chunk.start == 3:
            raise ValueError("third")
        return chunk.start

    with threads(2):
        with pytest.raises(ValueError, match="third"):
            list(_chunking.map_in_order(work, _chunking.ranges(20, 1), CPU))
        assert list(_chunking.map_in_order(lambda chunk: chunk.stop, _chunking.ranges(6, 2), CPU)) == [2, 4, 6]


def test_a_row_larger_than_the_budget_is_a_chunk_of_its_own():
    assert _chunking.rows_per_chunk(100, 10) == 1
    assert _chunking.rows_per_chunk(1, 10, most=4) == 4
