"""What ranks tell each other: the only file that calls the verbs of `torch.distributed`, and counts the bytes they send.

Every method is collective: all ranks of the group call it in the same order. Sizes may differ between ranks, and be zero.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DistributedError, InputError

T = TypeVar("T")


class Wire:
    """A rank's end of the connections to the others.

    Args:
        process_group: `None` is the default group.
        device: where tensors that are sent have to be.

    Attributes:
        rank, size: in the group.
        traffic: bytes this rank has sent to others, by what they were for.
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
        """The same few integers of every rank, `(R, n)`, on the CPU."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._talking("agree on sizes"):
            dist.all_gather(found, own, group=self.group)
        self._count("sizes", own, self.size - 1)
        return torch.stack(found).cpu()

    def agree(self, numbers: Sequence[int], check: Callable[[], None]) -> Tensor:
        """`table(numbers)` after a check of this rank's own input; if it fails on one rank, all of them stop."""
        failure = None
        try:
            check()
        except Exception as error:
            failure = error
        found = self.table([int(failure is not None), *numbers])
        if failure is not None:
            raise failure
        failed = found[:, 0].nonzero().squeeze(1).tolist()
        if failed:
            raise DistributedError(f"Rank {failed[0]} was given something it cannot use; its own error message says what.")
        return found[:, 1:]

    def tell(self, thing: T) -> T:
        """What the first rank gives, on every rank: anything that can be pickled."""
        contents = pickle.dumps(thing) if self.rank == 0 else b""
        size = int(self.table([len(contents)])[0, 0])
        message = torch.frombuffer(bytearray(contents.ljust(size)), dtype=torch.uint8).to(self.device)
        with self._talking("hear from the first"):
            dist.broadcast(message, group=self.group, group_src=0)
        self._count("messages", message, (self.size - 1) * (self.rank == 0))
        found: T = pickle.loads(message.cpu().numpy().tobytes())
        return found

    def gather(self, rows: Tensor, counts: Sequence[int], what: str) -> Tensor:
        """The rows of all ranks, rank after rank; `counts` says how many each has."""
        found = rows.new_empty(sum(counts), *rows.shape[1:])
        parts = list(found.split(list(counts)))
        parts[self.rank].copy_(rows)
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.send({rank: [rows] for rank in others}, {rank: [parts[rank]] for rank in others}, what)
        return found

    def send(self, outgoing: dict[int, list[Tensor]], incoming: dict[int, list[Tensor]], what: str) -> None:
        """Send tensors to some ranks, and receive into tensors of the size that is known to come."""
        operations = []
        for rank, tensors in outgoing.items():
            for tensor in tensors:
                if tensor.numel():
                    operations.append(dist.P2POp(dist.isend, tensor.contiguous(), group_peer=rank, group=self.group))
                    self._count(what, tensor)
        for rank, tensors in incoming.items():
            operations += [dist.P2POp(dist.irecv, t, group_peer=rank, group=self.group) for t in tensors if t.numel()]
        if operations:
            with self._talking(f"exchange {what}"):
                for work in dist.batch_isend_irecv(operations):
                    work.wait()

    def exchange(self, rows: Tensor, to_each: Sequence[int], from_each: Sequence[int], what: str) -> Tensor:
        """The first `to_each[0]` rows go to rank 0, the next ones to rank 1, ...; what comes is in the same order."""
        found = rows.new_empty(sum(from_each), *rows.shape[1:])
        if self.size == 1:
            return found.copy_(rows)
        with self._talking(f"exchange {what}"):
            dist.all_to_all_single(found, rows.contiguous(), list(from_each), list(to_each), group=self.group)
        self._count(what, rows, 1 - to_each[self.rank] / max(1, len(rows)))
        return found

    def sum(self, tensor: Tensor, what: str) -> Tensor:
        """The sum over ranks."""
        total = tensor.clone()
        with self._talking(f"sum {what}"):
            dist.all_reduce(total, group=self.group)
        self._count(what, tensor, 2 * (self.size - 1) / self.size)
        return total

    def _count(self, what: str, tensor: Tensor, times: float = 1) -> None:
        self.traffic[what] += round(times * tensor.numel() * tensor.element_size())

    @contextlib.contextmanager
    def _talking(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # all that the backends raise
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            # Without the place in the source of the backend, and its advice.
            reason = re.sub(r"^\[\S*\] | This is typically.*", "", said).rstrip(".")
            raise DistributedError(
                f"Rank {self.rank} of {self.size} could not {what} with the others: {reason}. One of them died, is stuck "
                "for longer than the timeout of the process group, or does something else; see its messages and start again."
            ) from error
