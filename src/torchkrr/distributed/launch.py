"""Run a program on all ranks that torchrun has started, or in one process."""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from .._checks import check_positive
from ..errors import DistributedError
from .process_group import Communicator, even_shards

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 60.0  # seconds
HEARTBEAT_SECONDS = 5.0
WORKING, DONE, FAILED = range(3)
P = ParamSpec("P")
T = TypeVar("T")
Numbered = tuple[int, Tensor]


class Launched(NamedTuple):
    """The place of this process in its process group."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def is_launched() -> bool:
    """Whether torchrun, or a launcher that sets the same environment variables, has started this process.

    Example:
        >>> is_launched()
        False
    """
    return all(name in os.environ for name in VARIABLES)


@contextlib.contextmanager
def launched(backend: str | None = None, *, timeout: float = TIMEOUT) -> Iterator[Launched]:
    """Join the process group that torchrun has started, and leave it at the end; without torchrun, a group of one.

    Args:
        backend: `None` is NCCL where there are GPUs, else gloo.
        timeout: seconds after which a rank that waits for another raises a `DistributedError`. gloo notices at once that a
            process has died; the timeout is for one that hangs, or whose machine is gone. It must be longer than what one
            rank may compute while the others wait.

    Example:
        >>> with launched("gloo") as here:
        ...     here.rank, here.size
        (0, 1)
    """
    check_positive("timeout", timeout)
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    limit = datetime.timedelta(seconds=timeout)
    try:
        store, rank, size = _rendezvous(limit) if is_launched() else (HashStore(), 0, 1)
        dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=size)
    except RuntimeError as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise DistributedError(
            f"The ranks did not find each other at {address} within {timeout:g} s: {str(error).splitlines()[0]} Check that "
            "all were started, that the address can be reached, and GLOO_SOCKET_IFNAME if a machine has several networks."
        ) from error
    try:
        yield Launched(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _rendezvous(limit: datetime.timedelta) -> tuple[Any, int, int]:
    """A store for the ranks of this launch only, the number of this rank, and the number of ranks.

    When torchrun restarts all ranks, the store still holds the keys of the previous launch, such as addresses where nobody
    listens any more. So rank 0 draws a new prefix and tells it to the ranks that are alive: each of them draws a token, and
    waits for the answer to it.
    """
    store, rank, size = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    if rank:
        token = secrets.token_hex(8)
        store.set(f"torchkrr/token/{rank}", token)
        prefix = store.get(f"torchkrr/answer/{token}").decode()
        store.set(f"torchkrr/{prefix}/{rank}", "here")
        return PrefixStore(prefix, store), rank, size
    prefix, waiting, until = secrets.token_hex(8), set(range(1, size)), time.monotonic() + limit.total_seconds()
    while waiting:
        for other in sorted(waiting):
            if store.check([f"torchkrr/{prefix}/{other}"]):
                waiting.remove(other)
            elif store.check([f"torchkrr/token/{other}"]):  # maybe of a previous launch; then nobody reads the answer
                store.set(f"torchkrr/answer/{store.get(f'torchkrr/token/{other}').decode()}", prefix)
        if time.monotonic() > until:
            raise RuntimeError(f"no word from rank {min(waiting)}.")
        time.sleep(0.01)
    return PrefixStore(prefix, store), rank, size


class SingleProcess:
    """Do the work of a job in this process. The methods are those of `AllRanks`."""

    is_first = True
    size = 1

    def own(self, count: int) -> slice:
        """The rows of this rank, if `count` rows are split evenly."""
        return slice(0, count)

    def joined(self, rows: Tensor, count: int) -> Tensor:
        """All `count` rows, of which each rank gives its own."""
        return rows

    def only_first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """`work(...)` on the first rank; the others wait for it, however long it takes, and get `None`."""
        return work(*args, **options)

    def first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` on the first rank; all ranks get its result."""
        return work(*args, **options)

    def first_of_all(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` on every rank, first on the first one: the others can use what it has downloaded or written."""
        return work(*args, **options)

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        """The numbered matrices of `work(numbers)`, on the first rank; each rank works on some of the numbers."""
        yield from work(numbers)

    def device(self, name: str) -> str:
        """The device of this rank: if it is `"cuda"`, each rank of a machine takes another GPU."""
        return name


SINGLE_PROCESS = SingleProcess()


class AllRanks(SingleProcess):
    """Divide a job among the ranks of a process group. Every method is collective: all ranks call it, in the same order.

    Args:
        timeout: of the process group, in seconds.
        process_group: `None` is the default group.
    """

    def __init__(self, timeout: float = TIMEOUT, process_group: Any = None) -> None:
        self.comm = Communicator(process_group)
        self.size, self.is_first = self.comm.size, self.comm.rank == 0
        self.pause = min(HEARTBEAT_SECONDS, timeout / 4)

    def own(self, count: int) -> slice:
        return even_shards(count, self.size).own(self.comm.rank)

    def joined(self, rows: Tensor, count: int) -> Tensor:
        return self.comm.gather(rows, even_shards(count, self.size).sizes, "results")

    def only_first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        return self._with_heartbeat(lambda: work(*args, **options) if self.is_first else None)

    def first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return self.comm.broadcast(self.only_first(work, *args, **options))  # type: ignore[return-value]

    def first_of_all(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        result = self.only_first(work, *args, **options)
        others = self._with_heartbeat(lambda: None if self.is_first else work(*args, **options))
        return result if self.is_first else others  # type: ignore[return-value]

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        own = work(numbers[self.own(len(numbers))])
        nothing = (-1, torch.empty(0, 0))
        for _ in range(even_shards(len(numbers), self.size).sizes[0]):
            number, matrix = self._with_heartbeat(lambda: next(own, nothing))
            table = self.comm.table([number, *matrix.shape]).tolist()
            sizes = [height * width * self.is_first for _, height, width in table]
            received = self.comm.exchange(matrix.flatten(), [matrix.numel()] + [0] * (self.size - 1), sizes, "results")
            for (number, height, width), entries in zip(table, received.split(sizes), strict=True):
                if self.is_first and number >= 0:
                    yield number, entries.view(height, width)

    def device(self, name: str) -> str:
        if name != "cuda":
            return name
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % max(1, torch.cuda.device_count())}"

    def _with_heartbeat(self, work: Callable[[], T]) -> T:
        """`work()` on every rank, as long as it takes; if it fails on one rank, all of them stop when they are done.

        Meanwhile a thread of each rank tells the others that it is alive, so that the timeout of the process group can be
        shorter than the work.
        """
        state, ended, errors = [WORKING], threading.Event(), list[Exception]()

        def heartbeat() -> None:
            try:
                while True:
                    states = self.comm.table([state[0]]).squeeze(1).tolist()
                    if FAILED in states:
                        raise DistributedError(
                            f"Rank {states.index(FAILED)} could not do its part; its own error message says why."
                        )
                    if WORKING not in states:
                        return
                    ended.wait(self.pause)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=heartbeat, daemon=True)
        thread.start()
        try:
            result = work()
            state[0] = DONE
            ended.set()
            thread.join()
        except BaseException:
            state[0] = FAILED
            ended.set()
            thread.join(4 * self.pause)  # not for ever: the other ranks may be gone as well
            raise
        if errors:
            raise errors[0]
        return result


@contextlib.contextmanager
def team(timeout: float = TIMEOUT) -> Iterator[SingleProcess]:
    """All ranks that torchrun has started, or a single process.

    Example:
        >>> with team() as everyone:  # without torchrun
        ...     everyone.own(10), everyone.first(str.upper, "read once")
        (slice(0, 10, None), 'READ ONCE')
    """
    if not is_launched():
        yield SINGLE_PROCESS
        return
    with launched("gloo", timeout=timeout):  # everything that is sent is on the CPU
        yield AllRanks(timeout)
