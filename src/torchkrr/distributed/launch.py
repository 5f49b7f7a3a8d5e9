"""Joining the process group that torchrun has prepared, and leaving it."""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from .._checks import check_positive
from ..errors import DistributedError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 60.0  # seconds


class Launched(NamedTuple):
    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def is_launched() -> bool:
    """Whether torchrun, or something that sets the same variables, has started this process.

    Example:
        >>> is_launched()
        False
    """
    return all(name in os.environ for name in VARIABLES)


@contextlib.contextmanager
def launched(backend: str | None = None, *, timeout: float = TIMEOUT) -> Iterator[Launched]:
    """The process group of a program that torchrun has started; without torchrun, a group of one.

    Args:
        backend: `None` is NCCL where there are GPUs, else gloo.
        timeout: seconds after which a rank that waits for another gives up with a `DistributedError`. A rank that has died
            is noticed at once by gloo; this is for one that hangs, or whose machine is gone. It has to be longer than what
            one rank may compute while the others wait.

    Example:
        >>> with launched("gloo") as here:
        ...     here.rank, here.size
        (0, 1)
    """
    check_positive("timeout", timeout)
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    limit = datetime.timedelta(seconds=timeout)
    try:
        store, rank, size = _met(limit) if is_launched() else (HashStore(), 0, 1)
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


def _met(limit: datetime.timedelta) -> tuple[Any, int, int]:
    """A store that only the ranks of this start use, and this rank.

    When torchrun starts all ranks again, the store still holds what they wrote in their earlier life, such as addresses
    where nobody listens any more. So rank 0 makes up a new name, and tells it to each rank that is alive: those that have
    made up a word themselves and know the answer to it.
    """
    store, rank, size = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    if rank:
        word = secrets.token_hex(8)
        store.set(f"torchkrr/word/{rank}", word)
        name = store.get(f"torchkrr/answer/{word}").decode()
        store.set(f"torchkrr/{name}/{rank}", "here")
        return PrefixStore(name, store), rank, size
    name, waiting, until = secrets.token_hex(8), set(range(1, size)), time.monotonic() + limit.total_seconds()
    while waiting:
        for other in sorted(waiting):
            if store.check([f"torchkrr/{name}/{other}"]):
                waiting.remove(other)
            elif store.check([f"torchkrr/word/{other}"]):  # maybe of an earlier life, which nobody reads
                store.set(f"torchkrr/answer/{store.get(f'torchkrr/word/{other}').decode()}", name)
        if time.monotonic() > until:
            raise RuntimeError(f"no word from rank {min(waiting)}.")
        time.sleep(0.01)
    return PrefixStore(name, store), rank, size
