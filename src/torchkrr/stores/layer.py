"""The paper's sparse kernel on rows of a database, as a layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .._checks import check_at_least_one, check_choice, check_finite, check_floating, check_ridge, check_tensor, check_trend
from .._tensors import full_precision, state_of, working_dtype
from ..core.local import solve_local
from ..core.options import Kind, Normalize, OnSingular, SolveOptions, Trend
from ..distances import safe_sqrt
from ..errors import BackendError, ShapeError
from ..native import Backend
from .base import Array, Store


class StoredExplanation(NamedTuple):
    """Which rows made a prediction, and with what weight: the weighted sum of their values is it."""

    ids: Array  # (*, M) of the database
    weights: Tensor  # (*, M)


class StoredKernelRidge(nn.Module):
    r"""`torchkrr.nn.LocalKernelRidge` whose centers and values are the rows of a store. Nothing is trained.

    A batch of queries is one statement to the database; the solve is that of the layer in memory, in the dtype of the query.
    Memory does not grow with the number of rows. Rows that are added or removed, by whatever process, count from the next
    statement on. Gradients reach the query; the kernel is the store's, and fixed.

    Equivalent to

        layer = torchkrr.nn.LocalKernelRidge(points, values, num_neighbors, kernel=store.kernel)
        result = layer(query)

    Args:
        store: a `PgVectorStore` or a `LanceStore`. Several layers may share one, and several threads a layer.
        num_neighbors: rows per prediction; all of them while there are fewer.
        ridge, trend, fade, normalize, on_singular, backend: as in `torchkrr.nn.LocalKernelRidge`.

    Shape:
        - query: `(*, D)`; output: `(*, C)`
    """

    def __init__(
        self,
        store: Store,
        num_neighbors: int = 100,
        *,
        ridge: float = 1e-9,
        trend: Trend = None,
        fade: bool = False,
        normalize: Normalize = None,
        on_singular: OnSingular = "warn",
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        check_at_least_one("num_neighbors", num_neighbors)
        check_ridge(ridge)
        check_trend(trend)
        check_choice("normalize", normalize, (None, "cell"))
        check_choice("on_singular", on_singular, ("warn", "raise"))
        self.store, self.num_neighbors, self.ridge, self.trend, self.fade = store, num_neighbors, ridge, trend, fade
        self.normalize, self.on_singular, self.backend = normalize, on_singular, backend

    def forward(self, query: Tensor) -> Tensor:
        mean, _, _ = self._solve(query, "mean")
        return mean.reshape(*query.shape[:-1], mean.shape[-1])

    def power_function(self, query: Tensor) -> Tensor:
        """The local error indicator, `(*, D)` to `(*,)`: 0 at a center, 1 far from all."""
        _, power_squared, _ = self._solve(query, "mean")
        return safe_sqrt(power_squared.clamp_min(0)).to(query.dtype).reshape(query.shape[:-1])

    def explain(self, query: Tensor) -> StoredExplanation:
        """The rows behind each prediction, nearest first, and their weights, `(*, D)` to `(*, M)` each.

        With `fade` there is one column more, of weight zero: the row that sets the radius.
        """
        weights, _, ids = self._solve(query, "weights")
        shape = (*query.shape[:-1], weights.shape[-1])
        return StoredExplanation(ids.reshape(shape), weights.reshape(shape))

    @full_precision
    def _solve(self, query: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Array]:
        check_tensor("query", query)
        check_floating("query", query)
        if query.ndim == 0:
            raise ShapeError("query must have shape (*, features), got (). Give rows of features, in two dimensions.")
        if state_of(query) != "plain":
            raise BackendError(
                "A database cannot be asked inside torch.func, torch.compile or torch.export. Call store.search outside, "
                "and torchkrr.functional.local_kernel_ridge on what it found."
            )
        check_finite("query", query)
        rows = query.reshape(-1, query.shape[-1])
        check_trend(self.trend, self.store.kernel)
        points = self.store.kernel.embed(rows.to(working_dtype(rows.dtype)))
        choices = self.ridge, self.trend, self.fade, self.normalize, self.on_singular, self.backend
        options = SolveOptions(self.store.profile, *choices)
        return stored_solve(self.store, points, self.num_neighbors, options, kind, query.dtype)

    def extra_repr(self) -> str:
        words = [repr(self.store), f"num_neighbors={self.num_neighbors}", f"ridge={self.ridge:g}"]
        words += [f"trend={self.trend!r}"] if self.trend is not None else []
        return ", ".join(words + (["fade=True"] if self.fade else []))


def stored_solve(
    store: Store,
    points: Tensor,
    num_neighbors: int,
    options: SolveOptions,
    kind: Kind,
    dtype: torch.dtype,
    *,
    weighted: bool = False,
) -> tuple[Tensor, Tensor, Array]:
    """What `kind` asks for, the squared power function, and the ids of the neighbors, of embedded points `(Q, E)`.

    If `weighted`, the last value of a row is its weight, which divides its ridge.
    """
    parts = []
    for chunk in store.batches(len(points), num_neighbors + options.fade):
        embedded = points[chunk]
        block = store.find(embedded.detach(), num_neighbors + options.fade)
        own, values = options, block.values
        if block.rows.shape[1] <= num_neighbors:  # nothing can leave the list
            own = options.but(fade=False)
        if weighted:
            own, values = own.but(ridge=options.ridge / values[:, -1]), values[:, :-1]
        if not len(block.rows):
            width = values.shape[1] if kind == "mean" else num_neighbors
            first, squared = embedded.new_empty(0, width), embedded.new_empty(0)
        else:
            both = embedded, block.points
            first, squared = solve_local(*both, values, block.rows, own, kind, embedded=both)
        parts.append((first.to(dtype), squared, block.ids[block.rows.cpu().numpy()]))
    width = max(ids.shape[1] for _, _, ids in parts)  # rows may have been added or removed between two statements
    if kind == "weights":
        parts = [(nn.functional.pad(first, (0, width - first.shape[1])), squared, ids) for first, squared, ids in parts]
    names = [np.pad(ids, ((0, 0), (0, width - ids.shape[1])), mode="edge") for _, _, ids in parts]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]), np.concatenate(names)
