"""Rows of other shards, fetched to the rank whose queries need them; their gradients travel the same way back.

Each rank asks each other one for the different rows it needs, once each, in one all-to-all of row numbers and one of rows.
What travels are rows as they were given, not embedded ones: they are embedded where they are used, so that predictions and
the gradients of kernels are those of one process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .shards import Shards
from .wire import Wire


class Route(NamedTuple):
    """Which rows go where."""

    wire: Wire
    asked: list[int]  # rows that this rank gets from each
    given: list[int]  # rows that it gives to each
    rows: Tensor  # of its shard, those it gives, rank after rank
    share: float  # of the gradients that arrive


def route_to(rows: Tensor, shards: Shards, wire: Wire, *, share: float = 1.0) -> Route:
    """The way of the different rows `(n,)`, in order and numbered over all shards, to this rank."""
    asked = shards.per_owner(rows)
    ones = [1] * wire.size
    given: list[int] = wire.exchange(torch.tensor(asked, device=rows.device), ones, ones, "sizes").tolist()
    wanted = wire.exchange(rows, asked, given, "requests")
    return Route(wire, asked, given, wanted - shards.start(wire.rank), share)


def fetch(route: Route, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows that were asked for, from the shards `(n, ...)` of all ranks; differentiable, twice.

    The gradient of a shard is that of the sum of what all ranks compute from its rows, times `route.share`.
    Every rank has to run the backward pass, or none.
    """
    return _Fetch.apply(route, *tensors)  # type: ignore[no-any-return]


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, route: Route, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.route, ctx.count = route, len(tensors[0])
        return tuple(
            route.wire.exchange(tensor.index_select(0, route.rows), route.given, route.asked, "rows") for tensor in tensors
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # What is learned is so on every rank, so all of them send the same kinds of gradients.
        needed = [at for at, need in enumerate(ctx.needs_input_grad[1:]) if need]
        found: list[Tensor | None] = [None] * len(grads)
        returned = _GiveBack.apply(ctx.route, ctx.count, *(ctx.route.share * grads[at] for at in needed))
        for at, gradient in zip(needed, returned, strict=True):
            found[at] = gradient
        return None, *found


class _GiveBack(torch.autograd.Function):
    """The transpose of `_Fetch`: rows go back to their owner, who adds them up."""

    @staticmethod
    def forward(ctx: Any, route: Route, count: int, *grads: Tensor) -> tuple[Tensor, ...]:
        ctx.route = route
        arrived = [route.wire.exchange(grad, route.asked, route.given, "gradients") for grad in grads]
        return tuple(part.new_zeros(count, *part.shape[1:]).index_add_(0, route.rows, part) for part in arrived)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Fetch.apply(ctx.route._replace(share=1.0), *grads)
