"""Local kernel ridge regression on centers that no rank holds all of."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import torch
from torch import Tensor

from .._checks import (
    check_alike,
    check_finite,
    check_floating,
    check_index_range,
    check_num_neighbors,
    check_same_features,
    check_same_rows,
    check_tensor,
)
from .._tensors import full_precision, needs_gradient
from ..core.options import Kind, Normalize, OnSingular, SolveOptions, Trend
from ..errors import DistributedError, InputTypeError, ShapeError
from ..functional.local import dispatch_local
from ..kernels import Kernel
from ..native import Backend
from ..neighbors import NeighborIndex
from ..nn import LocalKernelRidge
from ..nn.base import SupportLayer, tensors_of
from .fitting import default_kernel_over_ranks
from .neighborhoods import neighborhoods
from .replicated import replicated
from .searching import Shard
from .shards import Shards
from .wire import Wire


class ShardedLocalKernelRidge(LocalKernelRidge):
    r"""`torchkrr.nn.LocalKernelRidge` whose centers are spread over the ranks of a process group.

    Each rank gives its own centers and values, as many as it has, also none; together they are the centers of one layer,
    numbered rank after rank. Each rank then asks its own queries, also none, and gets its own predictions: those of one
    process with all centers, to rounding. Every method is collective: all ranks call it, in the same order.

    Queries travel to all ranks, their nearest rows in each shard are merged to the nearest of all in a tree, and the rows of
    the neighbors travel to the rank of the query, which solves. See the guide on many machines for what that costs.

    Gradients are those of the sum of the losses of all ranks: of learned centers and values on the rank that owns them, of a
    learned kernel and ridge the same on every rank. So all ranks have to run the backward pass, also those without queries.
    DistributedDataParallel takes the mean instead: beside it, pass `average_gradients=True`. Wrap the backbone in it, not
    this layer, whose centers differ from rank to rank.

    Args:
        centers, values: those of this rank.
        process_group: `None` is the default group. Its timeout says when a rank gives up waiting for another.
        average_gradients: divide gradients by the number of ranks.
        others: as in `torchkrr.nn.LocalKernelRidge`, the same on every rank. `kernel=None` is fitted on the centers of all.

    Shape:
        - centers: `(n, D)`; values: `(n, C)`; query: `(*, D)`; output: `(*, C)`

    Equivalent to, on rank r,

        layer = torchkrr.nn.LocalKernelRidge(torch.cat(all_centers), torch.cat(all_values), num_neighbors)
        result = layer(query)

    Example:
        >>> with torchkrr.distributed.launched():  # without torchrun: one process
        ...     head = ShardedLocalKernelRidge(torch.randn(500, 16), torch.randn(500, 2), num_neighbors=20)
        ...     head(torch.randn(7, 16)).shape
        torch.Size([7, 2])
    """

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int = 100,
        *,
        kernel: Kernel | None = None,
        ridge: float | Tensor = 1e-9,
        trend: Trend = None,
        fade: bool = False,
        normalize: Normalize = None,
        index: NeighborIndex | Literal["auto"] | None = None,
        on_singular: OnSingular = "warn",
        backend: Backend = "auto",
        learn_centers: bool = False,
        learn_values: bool = False,
        process_group: Any = None,
        average_gradients: bool = False,
    ) -> None:
        # Checks of the base, which already count the centers of all ranks, need these.
        self.process_group, self.average_gradients = process_group, average_gradients
        self._wire: Wire | None = Wire(process_group, getattr(centers, "device", None))
        super().__init__(
            centers,
            values,
            num_neighbors,
            kernel=kernel,
            ridge=ridge,
            trend=trend,
            fade=fade,
            normalize=normalize,
            index=index,
            on_singular=on_singular,
            backend=backend,
            learn_centers=learn_centers,
            learn_values=learn_values,
        )
        kernel_state = [tensor.detach().double().cpu().numpy().tobytes() for tensor in tensors_of(self.kernel)]
        self._agree([], lambda: None, "construct the layer", repr(self.kernel), kernel_state, learn_centers, learn_values)

    shards: Shards  # as of the last call

    @property
    def num_centers(self) -> int:
        """Of all ranks."""
        return self.shards.total

    @property
    def wire(self) -> Wire:
        """The connections to the other ranks; `wire.traffic` counts the bytes sent."""
        if self._wire is None:  # this layer is a copy
            self._wire = Wire(self.process_group, self.centers.device)
        return self._wire

    def neighbors(self, query: Tensor) -> Tensor:
        """The centers that each prediction uses, numbered over all ranks, nearest first, `(*, D)` to `(*, M)`."""
        _, _, indices = _solve(self._flat(query), self.centers, self.values, self, None)
        return indices.reshape(*query.shape[:-1], self.num_neighbors)

    def append(self, centers: Tensor, values: Tensor) -> None:
        """Add centers to the shard of this rank, also none; exact from the next call on. The kernel is not fitted again.

        Rows of later ranks move up by as many.

        Shape:
            - centers: `(n, D)`; values: `(n, C)`
        """
        self._refuse_learned("append")
        self._agree([], lambda: self._check_rows(centers, values, present=True), "append")
        if len(centers):
            super().append(centers, values)
        self._count_centers()

    def remove(self, indices: Tensor) -> None:
        """Forget the centers with these row numbers, whoever owns them; each rank may name some, or none.

        Shape:
            - indices: `(n,)` int64, numbered over all ranks
        """
        self._refuse_learned("remove")
        self._count_centers()
        counts = self._agree([indices.numel()], lambda: self._check_removed(indices), "remove").squeeze(1).tolist()
        named = self.wire.gather(indices.to(self.centers.device).long(), counts, "requests").unique()
        if len(named) == self.num_centers:
            raise ShapeError(f"Removing all {len(named)} rows would leave nothing to predict from. Keep at least one.")
        start = self.shards.start(self.wire.rank)
        own = named[(named >= start) & (named < start + len(self.centers))] - start
        keep = torch.ones(len(self.centers), dtype=torch.bool, device=own.device)
        keep[own] = False
        if bool(keep.any()):
            if len(own):
                self._keep_rows(keep)
        else:  # the index cannot be empty
            self.index.release()
            SupportLayer._keep_rows(self, keep)
        self._count_centers()

    def _solve(self, query: Tensor, centers: Tensor, values: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        return _solve(query, centers, values, self, kind)

    def _shard(self) -> Shard:
        """The index of this rank, built where there is something in it."""
        if len(self.centers):
            with torch.no_grad():
                self._embedded_centers()
        return Shard(self.index, self._take)

    def _take(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            if self.index.streams or self.index.points is None:
                return self._embed(self.centers.index_select(0, rows))
            return self.index.points.index_select(0, rows)

    def _check_support(self, centers: Tensor, values: Tensor) -> None:
        self._agree([], lambda: self._check_rows(centers, values), "construct the layer")
        widths = self._agree([centers.shape[1], values.shape[1]], lambda: None, "construct the layer")
        if bool((widths != widths[0]).any()):
            raise ShapeError(
                f"Centers and values must have as many features and outputs on every rank, got {widths.tolist()}. "
                "A rank without centers gives tensors of shape (0, features) and (0, outputs)."
            )
        sizes = self._agree([len(centers)], lambda: None, "construct the layer", centers.dtype)
        self.shards = Shards(tuple(sizes.squeeze(1).tolist()))

    def _check_rows(self, centers: Tensor, values: Tensor, *, present: bool = False) -> None:
        for name, tensor in (("centers", centers), ("values", values)):
            check_tensor(name, tensor)
            check_floating(name, tensor)
            if tensor.ndim != 2 or tensor.shape[1] == 0:
                raise ShapeError(f"{name} must have shape (rows, columns), got {tuple(tensor.shape)}; rows may be 0.")
            check_finite(name, tensor)
        check_same_rows("centers", centers, "values", values)
        check_alike(centers=centers, values=values, **({"present": self.centers} if present else {}))
        if present:
            check_same_features("centers", centers, "the centers of the layer", self.centers)
            check_same_features("values", values, "the values of the layer", self.values)

    def _check_removed(self, indices: Tensor) -> None:
        check_tensor("indices", indices)
        if indices.dtype not in (torch.int64, torch.int32) or indices.ndim != 1:
            raise InputTypeError(
                "indices must be a 1-D integer tensor of rows to remove, "
                f"got {indices.dtype} of shape {tuple(indices.shape)}."
            )
        if len(indices):
            check_index_range("indices", indices, self.num_centers)

    def _apply(self, fn: Any, recurse: bool = True) -> ShardedLocalKernelRidge:
        super()._apply(fn, recurse)
        if self._wire is not None:
            self._wire.device = self.centers.device
        return self

    def _default_kernel(self, centers: Tensor) -> Kernel:
        return default_kernel_over_ranks(centers, self.wire)

    def _flat(self, query: Tensor) -> Tensor:
        check_tensor("query", query)
        if query.ndim and query.shape[-1] and not query.numel():
            check_same_features("query", query, "the centers of the layer", self.centers)
            return query.reshape(-1, query.shape[-1])
        return super()._flat(query)

    def _count_centers(self) -> None:
        self.shards = Shards(tuple(self._agree([len(self.centers)], lambda: None, "count centers").squeeze(1).tolist()))

    def _agree(self, numbers: list[int], check: Any, what: str, *settings: object) -> Tensor:
        """The numbers of all ranks, if all want the same."""
        digest = hashlib.sha256(repr((what, settings)).encode()).digest()
        # Always as many numbers: backends end the process if ranks send messages of different sizes.
        padded = [*numbers, *(0 for _ in range(2 - len(numbers)))]
        found = self.wire.agree([*padded, int.from_bytes(digest[:7], "little")], check)
        different = (found[:, -1] != found[0, -1]).nonzero().squeeze(1).tolist()
        if different:
            raise DistributedError(
                f"Rank {different[0]} does something else than rank 0, or with other settings, when asked to {what}. "
                "Call the same method on every rank, with the same options, dtype, kernel and grad mode."
            )
        return found[:, : len(numbers)]

    def _own_repr(self) -> list[str]:
        return [*super()._own_repr(), f"own={len(self.centers)}"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "process_group": None, "_wire": None}  # connections cannot be copied


@full_precision
def _solve(
    query: Tensor, centers: Tensor, values: Tensor, layer: ShardedLocalKernelRidge, kind: Kind | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As in the base, for the queries of every rank; without a kind nothing is solved."""
    given = torch.as_tensor(layer.ridge)
    settings = (
        kind,
        layer.num_neighbors,
        layer.fade,
        layer.trend,
        layer.normalize,
        query.dtype,
        float(given.detach()),
    )
    learned = needs_gradient(centers, values, *tensors_of(layer.kernel), given)
    wire = layer.wire

    def check() -> None:
        check_alike(query=query, centers=centers)
        check_finite("query", query)

    agreed = layer._agree([len(query), len(centers)], check, "predict", *settings, learned)
    counts, layer.shards = agreed[:, 0].tolist(), Shards(tuple(agreed[:, 1].tolist()))
    check_num_neighbors(layer.num_neighbors, layer.num_centers)
    fade = layer.fade and layer.num_neighbors < layer.num_centers and kind is not None
    most, share = layer.num_neighbors + fade, 1 / wire.size if layer.average_gradients else 1.0
    with torch.no_grad():
        embedded = layer._embed(query)
    shard = layer._shard()
    kernel, ridge, shared = replicated(layer.kernel, layer.ridge, wire, share)
    tensors: tuple[Tensor, ...] = (centers, values) if kind == "mean" else () if kind is None else (centers,)
    parts = []
    near_queries = neighborhoods(embedded, counts, most, shard, layer.shards, wire, tensors=tensors, share=share)
    for own, rows, positions, fetched in near_queries:
        if kind is None:
            parts.append((query[own, :0], query[own, 0], rows))
            continue
        near, *known = fetched
        if not len(rows):
            nothing = _nothing([query[own], near, *known], shared)
            width = values.shape[1] if kind == "mean" else most
            parts.append((query.new_zeros(0, width) + nothing, query.new_zeros(0) + nothing, rows))
            continue
        first, power_squared = dispatch_local(
            query[own],
            near,
            known[0] if known else near[:, :0],
            positions,
            SolveOptions(kernel, ridge, layer.trend, fade, layer.normalize, layer.on_singular, layer.backend),
            kind,
        )
        parts.append((first.to(query.dtype), power_squared, rows))
    first, power_squared, rows = (torch.cat(column) for column in zip(*parts, strict=True))
    return first, power_squared, rows


def _nothing(empty: list[Tensor], others: list[Tensor]) -> Tensor:
    """Zero, but a function of all, whose derivatives of any order are zero and such functions as well.

    With it a rank without queries takes part in the backward pass, and in that of its result.
    """
    zero = torch.stack([tensor.sum() for tensor in empty]).sum()
    return zero * torch.stack([zero, *(tensor.sum().to(zero.dtype) for tensor in others)]).sum().sin()
