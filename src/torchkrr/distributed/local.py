"""Local kernel ridge regression on centers that are sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from .._checks import (
    check_alike,
    check_at_least_one,
    check_finite,
    check_points,
    check_same_features,
    check_same_rows,
    check_tensor,
    check_values,
)
from .._chunking import SEARCH_BYTES, rows_per_chunk
from .._state import with_tensors
from .._tensors import full_precision, needs_gradient
from ..core.options import Kind, SolveOptions
from ..errors import InputError, ShapeError
from ..functional.left_out import LeftOut
from ..kernels import Kernel
from ..kernels.names import kernel_class
from ..neighbors.base import Rows, row_numbers
from ..nn import LocalKernelRidge
from ..nn.base import SupportLayer
from ..transforms import StandardMean, Transform
from .launch import Communicator, Shards
from .search import Replicate, ShardedIndex, solve_over_ranks


class ShardedLocalKernelRidge(LocalKernelRidge):
    r"""`torchkrr.nn.LocalKernelRidge` whose centers are spread over the ranks of a process group.

    Each rank gives its own centers and values, any number of them; together they are the centers of one layer, numbered rank
    after rank. Each rank then gives its own queries, any number of them, and gets its own predictions: those of one process
    with all centers, up to rounding. Every method is collective: all ranks call it, in the same order.

    Queries go to all ranks, which search their own centers. The rows of the neighbors go to the rank of the query, which
    solves. The guide on many machines has the costs.

    Gradients are those of the sum of the losses of all ranks. Those of learned centers and values arrive on the rank that
    owns them; those of a learned kernel or ridge are equal on every rank. So all ranks must run the backward pass, also
    those without queries. DistributedDataParallel averages gradients instead: pass `average_gradients=True` next to it, and
    wrap the backbone in it, not this layer, whose centers differ from rank to rank.

    Args:
        centers, values: those of this rank.
        num_neighbors: as in `torchkrr.nn.LocalKernelRidge`.
        process_group: `None` is the default group. Its timeout limits how long a rank waits for another.
        average_gradients: divide gradients by the number of ranks.
        options: those of `torchkrr.nn.LocalKernelRidge`, the same on every rank: `kernel` (`None` or a name is fitted on
            the centers of all ranks), `ridge`, `trend`, `fade`, `normalize`, `index`, `on_singular`, `backend`,
            `learn_centers`, `learn_values`.

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
        process_group: Any = None,
        average_gradients: bool = False,
        **options: Any,
    ) -> None:
        # The checks of the base class call `num_centers`, which needs these.
        self.process_group, self.average_gradients = process_group, average_gradients
        self._comm: Communicator | None = Communicator(process_group, getattr(centers, "device", None))
        super().__init__(centers, values, num_neighbors, **options)
        kernel_state = [tensor.detach().double().cpu().numpy().tobytes() for tensor in _tensors(self.kernel)]
        self.comm.agree([], None, "construct the layer", repr(self.kernel), kernel_state, self._learned())

    shards: Shards  # as of the last call

    @property
    def num_centers(self) -> int:
        """Of all ranks."""
        return self.shards.total

    @property
    def comm(self) -> Communicator:
        """The collectives of the process group."""
        if self._comm is None:  # this layer is a copy
            self._comm = Communicator(self.process_group, self.centers.device)
        return self._comm

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes that this rank has sent to others, by purpose."""
        return self.comm.traffic

    def neighbors(self, query: Tensor) -> Tensor:
        """The centers that each prediction uses, numbered over all ranks, nearest first, `(*, D)` to `(*, M)`."""
        _, _, indices = self._solve(self._flat(query), self.centers, self.values, None)
        return indices.reshape(*query.shape[:-1], indices.shape[1])

    def leave_one_out(self, rows: Tensor | None = None) -> LeftOut:
        raise InputError("The centers of this layer are on several ranks, and none is left out. Use a LocalKernelRidge.")

    def append(self, centers: Tensor, values: Tensor) -> None:
        """Add centers, possibly none, to the shard of this rank; exact from the next call on.

        The kernel is not fitted again. The row numbers of later ranks increase by as many.

        Shape:
            - centers: `(n, D)`; values: `(n, C)`
        """
        self._refuse_learned("append")
        self.comm.agree([], lambda: self._check_rows(centers, values, present=True), "append")
        if len(centers):
            super().append(centers, values)
        self.count_centers()

    def remove(self, indices: Rows) -> None:
        """Forget the centers with these row numbers, whichever rank owns them; each rank may name some, or none.

        Shape:
            - indices: as in `torchkrr.nn.LocalKernelRidge`, numbered over all ranks
        """
        self._refuse_learned("remove")
        self.count_centers()
        named: list[Tensor] = []
        self.comm.agree([], lambda: named.append(row_numbers(indices, self.num_centers)), "name rows")
        counts = self.comm.agree([len(named[0])], None, "remove").squeeze(1).tolist()
        removed = self.comm.gather(named[0].to(self.centers.device), counts, "requests").unique()
        if len(removed) == self.num_centers:
            raise ShapeError(f"Removing all {len(removed)} rows would leave nothing to predict from. Keep at least one.")
        start = self.shards.start(self.comm.rank)
        own = removed[(removed >= start) & (removed < start + len(self.centers))] - start
        keep = torch.ones(len(self.centers), dtype=torch.bool, device=own.device)
        keep[own] = False
        if bool(keep.any()):
            if len(own):
                self._keep_rows(keep)
        else:  # an index cannot be empty
            self.index.release()
            SupportLayer._keep_rows(self, keep)
        self.count_centers()

    def count_centers(self) -> None:
        """Update `shards` after the centers of some rank have changed."""
        self.shards = Shards(tuple(self.comm.agree([len(self.centers)], None, "count centers").squeeze(1).tolist()))

    @full_precision
    def _solve(self, query: Tensor, centers: Tensor, values: Tensor, kind: Kind | None) -> tuple[Tensor, Tensor, Tensor]:
        """As in the base class, for the queries of every rank; without a kind, only the neighbors."""
        ridge = torch.as_tensor(self.ridge)
        settings = (kind, self.num_neighbors, self.fade, self.trend, self.normalize, query.dtype, float(ridge.detach()))
        learned = needs_gradient(centers, values, *_tensors(self.kernel), ridge)

        def check() -> None:
            check_alike(query=query, centers=centers)
            check_finite("query", query)

        sizes = self.comm.agree([len(query), len(centers)], check, "predict", *settings, learned)
        counts, self.shards = sizes[:, 0].tolist(), Shards(tuple(sizes[:, 1].tolist()))
        check_at_least_one("num_neighbors", self.num_neighbors)
        fade = self.fade and self.num_neighbors < self.num_centers and kind is not None
        num_neighbors = self.num_used + fade
        gradient_scale = 1 / self.comm.size if self.average_gradients else 1.0
        with torch.no_grad():
            embedded = self._embed(query)
            if len(self.centers):
                self._embedded_centers()  # builds the index of this rank, where it has to be
        neighborhoods = ShardedIndex(self.index, self.shards, self.comm).neighborhoods(
            embedded,
            counts,
            num_neighbors,
            tensors={"mean": (centers, values), None: ()}.get(kind, (centers,)),
            gradient_scale=gradient_scale,
        )
        if kind is None:
            return query[:, :0], query[:, 0], torch.cat([neighborhood.rows for neighborhood in neighborhoods])
        options, replicated = self._replicated_options(gradient_scale)
        options = options.but(fade=fade)
        return solve_over_ranks(query, neighborhoods, num_neighbors, values.shape[1], options, kind, replicated=replicated)

    def _replicated_options(self, gradient_scale: float) -> tuple[SolveOptions, tuple[Tensor, ...]]:
        """Options with a kernel and ridge whose gradients are summed over ranks, and their tensors that have one.

        A rank without queries must let these tensors take part in its backward pass, since the sum is collective.
        """
        options = self._options(self.fade)
        ridge = [options.ridge] if isinstance(options.ridge, Tensor) else []
        learned = [tensor for tensor in (*_tensors(options.kernel), *ridge) if needs_gradient(tensor)]
        if not learned:
            return options, ()
        copies = Replicate.apply(self.comm, gradient_scale, *learned)
        copy_of = {id(tensor): copy for tensor, copy in zip(learned, copies, strict=True)}
        kernel, new_ridge = with_tensors(options.kernel, copy_of), copy_of.get(id(options.ridge), options.ridge)
        return options.but(kernel=kernel, ridge=new_ridge), copies

    def _check_support(self, centers: Tensor, values: Tensor) -> None:
        self.comm.agree([], lambda: self._check_rows(centers, values), "construct the layer")
        numbers = [len(centers), centers.shape[1], values.shape[1]]
        sizes = self.comm.agree(numbers, None, "construct the layer", centers.dtype)
        if bool((sizes[:, 1:] != sizes[0, 1:]).any()):
            raise ShapeError(
                f"Centers and values must have as many features and outputs on every rank, got {sizes[:, 1:].tolist()}. "
                "A rank without centers gives tensors of shape (0, features) and (0, outputs)."
            )
        self.shards = Shards(tuple(sizes[:, 0].tolist()))

    def _check_rows(self, centers: Tensor, values: Tensor, *, present: bool = False) -> None:
        check_points("centers", centers, maybe_empty=True)
        check_values(values, maybe_empty=True)
        check_finite("centers", centers)
        check_finite("values", values)
        check_same_rows("centers", centers, "values", values)
        check_alike(centers=centers, values=values, **({"present": self.centers} if present else {}))
        if present:
            check_same_features("centers", centers, "the centers of the layer", self.centers)
            check_same_features("values", values, "the values of the layer", self.values)

    def _apply(self, fn: Any, recurse: bool = True) -> ShardedLocalKernelRidge:
        super()._apply(fn, recurse)
        if self._comm is not None:
            self._comm.device = self.centers.device
        return self

    def _kernel_named(self, name: str, centers: Tensor) -> Kernel:
        return kernel_class(name)(input_transform=_fit_standard_mean(centers.detach(), self.num_centers, self.comm))

    def _flat(self, query: Tensor) -> Tensor:
        check_tensor("query", query)
        if query.ndim and query.shape[-1] and not query.numel():
            check_same_features("query", query, "the centers of the layer", self.centers)
            return query.reshape(-1, query.shape[-1])
        return super()._flat(query)

    def _own_repr(self) -> list[str]:
        return [*super()._own_repr(), f"own={len(self.centers)}"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "process_group": None, "_comm": None}  # connections cannot be copied


def _tensors(kernel: Kernel) -> tuple[Tensor, ...]:
    return (*kernel.parameters(), *kernel.buffers())


def _fit_standard_mean(x: Tensor, count: int, comm: Communicator) -> StandardMean:
    """`StandardMean().fit` on the rows of all ranks, `count` together, of which `x` `(n, D)` are here; `n` may be zero."""
    transform = StandardMean()
    unit_cube, erf_inv, mean_distance = (cast(Transform, part) for part in transform.transforms)

    def of_each_rank(statistic: Tensor) -> Tensor:
        """`(R, D)`, in float64: combined in the order of the ranks, statistics are equal to the last bit on all of them."""
        return comm.gather(statistic.double()[None], [1] * comm.size, "statistics")

    def mean(function: Callable[[Tensor], Tensor]) -> Tensor:
        chunks = [function(rows.double()).sum(0) for rows in x.split(rows_per_chunk(8 * x.shape[1], SEARCH_BYTES))]
        return of_each_rank(torch.stack(chunks).sum(0)).sum(0) / count

    nothing = x.new_full((1, x.shape[1]), torch.inf)
    low = of_each_rank(torch.cat((x, nothing)).amin(0)).amin(0)
    high = of_each_rank(torch.cat((x, -nothing)).amax(0)).amax(0)
    unit_cube.set_statistics(low, high - low, low.new_tensor(count))
    with torch.no_grad():
        x = erf_inv(unit_cube(x))
    center = mean(lambda rows: rows)
    distance = (2 * mean(lambda rows: (rows - center).square_()).sum()).sqrt()
    mean_distance.set_statistics(torch.where(distance > 0, distance, 1.0))
    return transform
