"""Byte budgets, and chunks of rows computed on several threads.

torch factors a batch of small matrices one after the other, whatever its thread count. So chunks of queries go to worker
threads that use one intra-op thread each: the work scales with the cores, and temporaries are bounded by the number of
workers times the size of a chunk.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from ._threads import per_thread, set_threads

S = TypeVar("S")
T = TypeVar("T")

# Temporaries of one chunk. On a CPU a chunk should stay in the outer cache; an accelerator wants large batches.
CPU_CHUNK_BYTES = 8 << 20
ACCELERATOR_CHUNK_BYTES = 256 << 20
SEARCH_BYTES = 32 << 20


def chunk_bytes(device: torch.device) -> int:
    return CPU_CHUNK_BYTES if device.type == "cpu" else ACCELERATOR_CHUNK_BYTES


def rows_per_chunk(bytes_per_row: int, budget: int, *, most: int | None = None) -> int:
    rows = max(1, budget // max(1, bytes_per_row))
    return rows if most is None else min(rows, most)


def ranges(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def map_in_order(
    function: Callable[[S], T], chunks: Sequence[S], device: torch.device, workers: int | None = None
) -> Iterator[T]:
    """Yield `function(chunk)` in order, computed ahead on worker threads where that helps.

    `function` must not need gradients: grad mode does not follow it into a worker. `None` is as many workers as torch uses
    threads.
    """
    if workers is None:
        workers = torch.get_num_threads() if device.type == "cpu" else 1
    if workers == 1 or len(chunks) == 1:
        yield from map(function, chunks)
        return
    pool = _workers(workers)
    # Two chunks per worker in flight keep the workers busy and the memory bounded.
    waiting: deque[Future[T]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(function, chunk))
            if len(waiting) == 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def collect(
    function: Callable[[slice], tuple[Tensor, ...]], chunks: list[slice], device: torch.device
) -> tuple[Tensor, ...]:
    """The columns of `function(chunk)`, one row per row of the chunks, each in one tensor."""
    # Copied as they come, not concatenated at the end: small results among large temporaries fragment the heap, and a few
    # gigabytes of it are then never used again.
    columns: tuple[Tensor, ...] = ()
    for chunk, parts in zip(chunks, map_in_order(function, chunks, device), strict=True):
        if len(chunks) == 1:
            return parts
        if not columns:
            columns = tuple(part.new_empty(chunks[-1].stop, *part.shape[1:]) for part in parts)
        for column, part in zip(columns, parts, strict=True):
            column[chunk] = part
    return columns


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def _workers(count: int) -> ThreadPoolExecutor:
    key = (os.getpid(), count)  # threads do not survive a fork, so a child process makes its own
    with _pools_lock:
        if key not in _pools:
            _pools[key] = new_pool(count)
        return _pools[key]


def new_pool(count: int) -> ThreadPoolExecutor:
    """Threads that use one intra-op thread each."""
    before = torch.get_num_threads()
    ready = threading.Barrier(count + 1)

    def start() -> None:
        set_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="torchkrr", initializer=start)
    for _ in range(count):
        pool.submit(ready.wait)  # each task holds its thread, so that all `count` threads start
    ready.wait()
    if not per_thread():
        torch.set_num_threads(before)  # threads started later inherit the last count set
    ready.wait()
    return pool
