"""Process groups: start one, divide rows and work among its ranks, and let them exchange tensors.

Methods of `Communicator` and `AllRanks` are collective: all ranks of the group call them, in the same order. Sizes may
differ between ranks, and may be zero. Rows are numbered shard after shard: those of rank 0 first, then those of rank 1, and
so on.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from .._checks import check_positive
from ..errors import DistributedError, InputError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 60.0  # seconds
HEARTBEAT_SECONDS = 5.0
WORKING, DONE, FAILED = range(3)
NUMBERS = 3  # in every message of `agree`: backends end the process if ranks send messages of different sizes
P = ParamSpec("P")
T = TypeVar("T")
Numbered = tuple[int, Tensor]


class Shards(NamedTuple):
    """The number of rows of each rank."""

    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        """The number of the first row of a rank."""
        return sum(self.sizes[:rank])

    def own(self, rank: int) -> slice:
        """The rows of a rank."""
        return slice(self.start(rank), self.start(rank + 1))

    def per_owner(self, rows: Tensor) -> list[int]:
        """How many of the sorted rows `(n,)` each rank owns."""
        ends = torch.tensor(self.sizes, device=rows.device).cumsum(0)
        upto = torch.searchsorted(rows, ends)
        return upto.diff(prepend=upto.new_zeros(1)).tolist()


def even_shards(count: int, num_ranks: int) -> Shards:
    """Split `count` rows into shards whose sizes differ by at most one, the larger ones first.

    Example:
        >>> even_shards(10, 4).sizes
        (3, 3, 2, 2)
    """
    each, left = divmod(count, num_ranks)
    return Shards(tuple(each + (rank < left) for rank in range(num_ranks)))


def own_rows(count: int, *, process_group: Any = None) -> slice:
    """The rows of this rank if `count` rows are split evenly: `centers[own_rows(len(centers))]`.

    Example:
        >>> with torchkrr.distributed.launched():  # one process without torchrun: it owns all rows
        ...     own_rows(10)
        slice(0, 10, None)
    """
    shards = even_shards(count, dist.get_world_size(process_group))
    return shards.own(dist.get_rank(process_group))


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


class Communicator:
    """The collectives of a process group, with errors that name the rank.

    Args:
        process_group: `None` is the default group.
        device: where tensors must be to be sent.

    Attributes:
        rank, size: of this process, and of the group.
        traffic: bytes that this rank has sent to others, by purpose.
    """

    def __init__(self, process_group: Any = None, device: torch.device | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InputError(
                "There is no process group. Call torch.distributed.init_process_group() first, or put the code inside "
                "`with torchkrr.distributed.launched():` and start it by torchrun."
            )
        self.group, self.device = process_group, device
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise InputError("This process is not in the process group. Only its ranks may call what belongs to it.")
        self.traffic: Counter[str] = Counter()

    def table(self, numbers: Sequence[int]) -> Tensor:
        """The integers of every rank, `(R, n)`, on the CPU. All ranks give equally many."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        with self._errors("agree on sizes"):
            dist.all_gather(gathered, own, group=self.group)
        self._count("sizes", own, self.size - 1)
        return torch.stack(gathered).cpu()

    def agree(self, numbers: Sequence[int], check: Callable[[], None] | None, what: str = "", *settings: object) -> Tensor:
        """`table(numbers)`, for at most three numbers, after a check of this rank's input.

        If the check fails on one rank, or the settings of ranks differ, every rank raises an error.
        """
        failure = None
        try:
            if check is not None:
                check()
        except Exception as error:
            failure = error
        digest = hashlib.sha256(repr((what, settings)).encode()).digest()
        padding = [0] * (NUMBERS - len(numbers))
        answers = self.table([int(failure is not None), int.from_bytes(digest[:7], "little"), *numbers, *padding])
        if failure is not None:
            raise failure
        failed = answers[:, 0].nonzero().squeeze(1).tolist()
        if failed:
            raise DistributedError(f"Rank {failed[0]} was given something it cannot use; its own error message says what.")
        different = (answers[:, 1] != answers[0, 1]).nonzero().squeeze(1).tolist()
        if different:
            raise DistributedError(
                f"Rank {different[0]} does something else than rank 0, or with other settings, when asked to {what}. "
                "Call the same method on every rank, with the same options, dtype, kernel and grad mode."
            )
        return answers[:, 2 : 2 + len(numbers)]

    def broadcast(self, value: T) -> T:
        """The value of rank 0, on every rank; it must be picklable."""
        values = [value]
        with self._errors("hear from the first"):
            dist.broadcast_object_list(values, group=self.group, group_src=0, device=self.device)
        return values[0]

    def gather(self, rows: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """The rows of all ranks, rank after rank; `counts` holds the number of rows of each."""
        copies = rows.repeat(self.size, *(1 for _ in rows.shape[1:]))
        return self.exchange(copies, [len(rows)] * self.size, counts, what)

    def exchange(self, rows: Tensor, to_each: Sequence[int], from_each: Sequence[int], what: str) -> Tensor:
        """Send the first `to_each[0]` rows to rank 0, the next ones to rank 1, ...; rows arrive in the same order."""
        received = rows.new_empty(sum(from_each), *rows.shape[1:])
        if self.size == 1:
            return received.copy_(rows)
        with self._errors(f"exchange {what}"):
            dist.all_to_all_single(received, rows.contiguous(), list(from_each), list(to_each), group=self.group)
        self._count(what, rows, 1 - to_each[self.rank] / max(1, len(rows)))
        return received

    def sum(self, tensor: Tensor, what: str) -> Tensor:
        """The sum over ranks."""
        total = tensor.clone()
        with self._errors(f"sum {what}"):
            dist.all_reduce(total, group=self.group)
        self._count(what, tensor, 2 * (self.size - 1) / self.size)
        return total

    def _count(self, what: str, tensor: Tensor, times: float) -> None:
        self.traffic[what] += round(times * tensor.numel() * tensor.element_size())

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # the only kind that backends raise
            message = (str(error).strip() or type(error).__name__).splitlines()[0]
            # Drop the position in the source code of the backend, and its advice.
            reason = re.sub(r"^\[\S*\] | This is typically.*", "", message).rstrip(".")
            raise DistributedError(
                f"Rank {self.rank} of {self.size} could not {what} with the others: {reason}. One of them died, is stuck "
                "for longer than the timeout of the process group, or does something else; see its messages and start again."
            ) from error


class SingleProcess:
    """Do the work of a job in this process. The methods are those of `AllRanks`."""

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def own(self, count: int) -> slice:
        """The rows of this rank, if `count` rows are split evenly."""
        return even_shards(count, self.size).own(self.rank)

    def only_first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """`work(...)` on the first rank; the others wait for it, however long it takes, and get `None`."""
        return self._together(lambda: work(*args, **options) if self.is_first else None)

    def first(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` on the first rank; all ranks get its result."""
        return self._broadcast(self.only_first(work, *args, **options))  # type: ignore[return-value]

    def first_of_all(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """`work(...)` on every rank, first on the first one: the others can use what it has downloaded or written."""
        first = self.only_first(work, *args, **options)
        others = self._together(lambda: None if self.is_first else work(*args, **options))
        return first if self.is_first else others  # type: ignore[return-value]

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        """The numbered matrices of `work(numbers)`, on the first rank; each rank works on some of the numbers."""
        yield from work(numbers)

    def device(self, name: str) -> str:
        """The device of this rank: if it is `"cuda"`, each rank of a machine takes another GPU."""
        return name

    def _together(self, work: Callable[[], T]) -> T:
        """`work()` on every rank, as long as it takes; if it fails on one rank, all of them stop when they are done."""
        return work()

    def _broadcast(self, value: T) -> T:
        return value


SINGLE_PROCESS = SingleProcess()


class AllRanks(SingleProcess):
    """Divide a job among the ranks of a process group.

    Args:
        timeout: of the process group, in seconds.
        process_group: `None` is the default group.
    """

    def __init__(self, timeout: float = TIMEOUT, process_group: Any = None) -> None:
        self.comm = Communicator(process_group)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.pause = min(HEARTBEAT_SECONDS, timeout / 4)

    def shared_out(self, numbers: Sequence[int], work: Callable[[Sequence[int]], Iterator[Numbered]]) -> Iterator[Numbered]:
        own = work(numbers[self.own(len(numbers))])
        nothing = (-1, torch.empty(0, 0))
        for _ in range(even_shards(len(numbers), self.size).sizes[0]):
            number, matrix = self._together(lambda: next(own, nothing))
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

    def _broadcast(self, value: T) -> T:
        return self.comm.broadcast(value)

    def _together(self, work: Callable[[], T]) -> T:
        # A thread of each rank tells the others that it is alive, so that the timeout of the process group can be shorter
        # than the work.
        state, ended, errors = [WORKING], threading.Event(), list[Exception]()

        def heartbeat() -> None:
            try:
                states = [WORKING]
                while WORKING in states:
                    states = self.comm.table([state[0]]).squeeze(1).tolist()
                    if FAILED in states:
                        failed = states.index(FAILED)
                        raise DistributedError(f"Rank {failed} could not do its part; its own error message says why.")
                    if WORKING in states:
                        ended.wait(self.pause)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=heartbeat, daemon=True)
        thread.start()
        outcome = FAILED
        try:
            result = work()
            outcome = DONE
        finally:
            state[0] = outcome
            ended.set()
            # After a failure not for ever: the other ranks may be gone as well.
            thread.join(None if outcome == DONE else 4 * self.pause)
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
