"""Communication between the ranks of a process group: collectives that count the bytes they send, and their gradients.

Every function and method is collective: all ranks of the group call it, in the same order. Sizes may differ between ranks,
and may be zero. Rows are numbered shard after shard: those of rank 0 first, then those of rank 1, and so on.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import DistributedError, InputError

T = TypeVar("T")
NUMBERS = 2  # in every message of `agree`: backends end the process if ranks send messages of different sizes


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

    def agree(self, numbers: Sequence[int], check: Callable[[], None], what: str = "", *settings: object) -> Tensor:
        """`table(numbers)`, for at most two numbers, after a check of this rank's input.

        If the check fails on one rank, or the settings of ranks differ, every rank raises an error.
        """
        failure = None
        try:
            check()
        except Exception as error:
            failure = error
        digest = hashlib.sha256(repr((what, settings)).encode()).digest()
        padding = (0 for _ in range(NUMBERS - len(numbers)))
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


def fetch_rows(
    rows: Tensor, shards: Shards, comm: Communicator, *tensors: Tensor, gradient_scale: float = 1.0
) -> tuple[Tensor, ...]:
    """The requested rows of sharded tensors; twice differentiable.

    Row numbers travel in one all-to-all, and the rows of each tensor in another. The gradient of a shard is that of the sum
    of what all ranks compute from its rows, times `gradient_scale`. Either all ranks run the backward pass, or none.

    Args:
        rows: different row numbers over all shards, sorted, `(n,)`.
        tensors: this rank's shard of each tensor, `(size of the shard, ...)`.
    """
    requested, ones = shards.per_owner(rows), [1] * comm.size
    given: list[int] = comm.exchange(torch.tensor(requested, device=rows.device), ones, ones, "sizes").tolist()
    own = comm.exchange(rows, requested, given, "requests") - shards.start(comm.rank)
    sent = (tensor.index_select(0, own) for tensor in tensors)
    return _Exchange.apply(comm, given, requested, "rows", gradient_scale, *sent)  # type: ignore[no-any-return]


class _Exchange(torch.autograd.Function):
    """`Communicator.exchange` of several tensors. Its transpose sends the gradients back."""

    @staticmethod
    def forward(
        ctx: Any, comm: Communicator, to_each: list[int], from_each: list[int], what: str, scale: float, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transpose, ctx.what, ctx.scale = (comm, from_each, to_each, "gradients", 1.0), what, scale
        return tuple(comm.exchange(tensor, to_each, from_each, what) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The same tensors are learned on every rank, so all ranks send the same gradients. Second derivatives are all sent.
        needed = [need or ctx.what == "gradients" for need in ctx.needs_input_grad[5:]]
        sent = [ctx.scale * grad for grad, need in zip(grads, needed, strict=True) if need]
        returned = iter(_Exchange.apply(*ctx.transpose, *sent))
        return None, None, None, None, None, *(next(returned) if need else None for need in needed)


def replicate(comm: Communicator, gradient_scale: float, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies of tensors that are equal on all ranks; gradients are summed over ranks and scaled. Twice differentiable."""
    return _Replicate.apply(comm, gradient_scale, *tensors)  # type: ignore[no-any-return]


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comm: Communicator, scale: float, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.comm, ctx.scale = comm, scale
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_SumOverRanks.apply(ctx.comm, *(ctx.scale * grad for grad in grads))


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks, on every rank. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.comm = comm
        total = comm.sum(torch.cat([tensor.flatten().double() for tensor in tensors]), "kernel gradients")
        sums = total.split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(sums, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_SumOverRanks.apply(ctx.comm, *grads)
