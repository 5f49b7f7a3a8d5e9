"""Joining the process group that torchrun has prepared, and leaving it."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from .._checks import check_positive
from ..errors import DistributedError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 60.0  # seconds


class Launched(NamedTuple):
    rank: int
    size: int
    restarts: int  # how often torchrun has started all ranks again

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
        if is_launched():
            dist.init_process_group(backend, timeout=limit)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, timeout=limit, store=store, rank=0, world_size=1)
    except RuntimeError as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise DistributedError(
            f"The ranks did not find each other at {address} within {timeout:g} s: {str(error).splitlines()[0]} Check that "
            "all were started, that the address can be reached, and GLOO_SOCKET_IFNAME if a machine has several networks."
        ) from error
    try:
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        yield Launched(dist.get_rank(), dist.get_world_size(), restarts)
    finally:
        dist.destroy_process_group()
