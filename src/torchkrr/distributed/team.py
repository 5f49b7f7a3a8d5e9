"""Work shared out among the processes that torchrun has started, or done by the only one there is.

Programs are written once, for a team: `Alone` does everything itself, of `Ranks` each does its part. Every method is
collective: all ranks call it, in the same order.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import DistributedError
from .launch import TIMEOUT, is_launched, launched
from .shards import even_shards
from .wire import Wire

P = ParamSpec("P")
T = TypeVar("T")
Numbered = tuple[int, Tensor]
WORKING, DONE, FAILED = range(3)
SECONDS_BETWEEN = 5.0  # signs of life of ranks that work on their own


class Alone:
    """One process."""

    is_first = True
    size = 1

    def own(self, count: int) -> slice:
        """Which of `count` rows are this rank's."""
        return slice(0, count)

    def joined(self, rows: Tensor, count: int) -> Tensor:
        """All `count` rows, of which each rank gives its own."""
        return rows

    def only_first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """`work(...)` of the first rank; the others wait for it, however long it takes, and get `None`."""
        return work(*args, **options)

    def first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` of the first rank, told to all."""
        return work(*args, **options)

    def first_of_all(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` of every rank, the first one before the others: they find what it has downloaded or written."""
        return work(*args, **options)

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        """What `work(numbers)` yields, a matrix for each number; each rank works on some, and all come to the first."""
        yield from work(numbers)

    def device(self, name: str) -> str:
        """Where this rank computes: of several GPUs that are not named by number, each rank of a machine takes one."""
        return name


ALONE = Alone()


class Ranks(Alone):
    """The processes that torchrun has started.

    Args:
        timeout: of the process group, in seconds.
        process_group: `None` is the default group.
    """

    def __init__(self, timeout: float = TIMEOUT, process_group: Any = None) -> None:
        self.wire = Wire(process_group)
        self.size, self.is_first = self.wire.size, self.wire.rank == 0
        self.pause = min(SECONDS_BETWEEN, timeout / 4)

    def own(self, count: int) -> slice:
        return even_shards(count, self.size).own(self.wire.rank)

    def joined(self, rows: Tensor, count: int) -> Tensor:
        return self.wire.gather(rows, even_shards(count, self.size).sizes, "results")

    def only_first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        return self._apart(lambda: work(*args, **options) if self.is_first else None)

    def first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return self.wire.tell(self.only_first(work, *args, **options))  # type: ignore[return-value]

    def first_of_all(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        found = self.only_first(work, *args, **options)
        others = self._apart(lambda: None if self.is_first else work(*args, **options))
        return found if self.is_first else others  # type: ignore[return-value]

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        own = work(numbers[self.own(len(numbers))])
        nothing = (-1, torch.empty(0, 0))
        for _ in range(even_shards(len(numbers), self.size).sizes[0]):
            number, rows = self._apart(lambda: next(own, nothing))
            sizes = self.wire.table([number, *rows.shape]).tolist()
            if not self.is_first:
                self.wire.send({0: [rows]}, {}, "results")
                continue
            parts = [rows, *(rows.new_empty(height, width) for _, height, width in sizes[1:])]
            self.wire.send({}, {rank: [part] for rank, part in enumerate(parts) if rank}, "results")
            yield from ((found[0], part) for found, part in zip(sizes, parts, strict=True) if found[0] >= 0)

    def device(self, name: str) -> str:
        if name != "cuda":
            return name
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % max(1, torch.cuda.device_count())}"

    def _apart(self, work: Callable[[], T]) -> T:
        """`work()` of every rank, each as long as it takes; if one fails, all of them stop when they are done.

        Meanwhile a thread of each rank tells the others that it is alive, so that the timeout of the process group can be
        shorter than the work: only a rank that is gone is given up.
        """
        state, ended, heard = [WORKING], threading.Event(), []

        def tell() -> None:
            try:
                while True:
                    states = self.wire.table([state[0]]).squeeze(1).tolist()
                    if FAILED in states:
                        raise DistributedError(
                            f"Rank {states.index(FAILED)} could not do its part; its own error message says why."
                        )
                    if WORKING not in states:
                        return
                    ended.wait(self.pause)
            except Exception as error:
                heard.append(error)

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        try:
            found = work()
            state[0] = DONE
            ended.set()
            telling.join()
        except BaseException:
            state[0] = FAILED
            ended.set()
            telling.join(4 * self.pause)  # not for ever: the others may be gone as well
            raise
        if heard:
            raise heard[0]
        return found


@contextlib.contextmanager
def team(timeout: float = TIMEOUT) -> Iterator[Alone]:
    """Those that torchrun has started, or one process.

    Example:
        >>> with team() as everyone:  # without torchrun
        ...     everyone.own(10), everyone.first(str.upper, "read once")
        (slice(0, 10, None), 'READ ONCE')
    """
    if not is_launched():
        yield Alone()
        return
    with launched("gloo", timeout=timeout):  # what travels is on the CPU
        yield Ranks(timeout)
