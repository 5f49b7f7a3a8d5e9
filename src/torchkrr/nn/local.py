"""Local kernel ridge regression, the paper's sparse kernel, as a layer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice, check_integer, check_ridge, check_searchable, check_trend
from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from .._tensors import full_precision
from ..core.compiled import FactorCache
from ..core.local import solve_local
from ..core.options import Kind, Normalize, OnSingular, SolveOptions, Trend
from ..distances import safe_sqrt
from ..errors import BackendError, InputError
from ..functional.left_out import LeftOut, local_leave_one_out
from ..functional.local import dispatch_local
from ..kernels import Kernel
from ..native import Backend
from ..neighbors import AutoIndex, ExactIndex, NeighborIndex, StreamedIndex, nearest
from ..neighbors.auto import index_from
from .base import Fingerprint
from .labels import ClassLayer


class Explanation(NamedTuple):
    """Which centers made a prediction, and with what weight: `(weights[..., None] * values[indices]).sum(-2)` is it."""

    indices: Tensor  # (*, M) rows of the centers
    weights: Tensor  # (*, M)


class LocalKernelRidge(ClassLayer):
    r"""Kernel ridge regression on the `num_neighbors` nearest centers of each query. Nothing is trained.

    Each of the three inputs of the regressor can be fixed or learned: the query arrives from the layer before, `centers` and
    `values` belong to this one. Neighbors follow the centers when these move. Several threads may predict at a time;
    whatever changes the layer, or learns its centers or kernel, has to be alone.

    Args:
        centers: points the regressor is built on.
        values: values at the centers; for classification see `from_labels`.
        num_neighbors: centers per prediction; all of them while there are fewer. Cost grows with its cube, the error
            indicator falls with it.
        kernel: a kernel, or the name of one, which is then put on `StandardMean`, fitted on `centers` here and never again:
            "exponential" (the paper's, as `None`), "gaussian", "matern32", "matern52", "rational_quadratic",
            "inverse_multiquadric".
        ridge, trend, fade, normalize, on_singular, backend: as in `torchkrr.functional.local_kernel_ridge`; the ridge is one
            for all centers, and `num_neighbors` counts without the neighbor that sets the radius of the fading.
        index: how neighbors are found, see `torchkrr.neighbors`; `None` is exact search, `"auto"` chooses by the number of
            centers and states its choice (`AutoIndex`). Built again whenever centers or kernel change.
        keep_factors: keep the factors of so many neighborhoods, those used last, for queries to come with the same
            neighbors: a stream on a grid. Each takes M^2 numbers. Only without gradients, and with the fused backend.
        learn_centers, learn_values: make them Parameters.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; query: `(*, D)`; output: `(*, C)`

    Example:
        >>> features, labels = torch.randn(500, 16), torch.randint(0, 3, (500,))
        >>> head = LocalKernelRidge.from_labels(features, labels, num_neighbors=20)
        >>> head(torch.randn(7, 16)).argmax(-1).shape
        torch.Size([7])
    """

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int = 100,
        *,
        kernel: Kernel | str | None = None,
        ridge: float | Tensor = 1e-9,
        trend: Trend = None,
        fade: bool = False,
        normalize: Normalize = None,
        index: NeighborIndex | Literal["auto"] | None = None,
        on_singular: OnSingular = "warn",
        backend: Backend = "auto",
        keep_factors: int = 0,
        learn_centers: bool = False,
        learn_values: bool = False,
    ) -> None:
        super().__init__(centers, values, kernel, ridge, trend, on_singular, learn_centers, learn_values)
        check_at_least_one("num_neighbors", num_neighbors)
        check_choice("normalize", normalize, (None, "cell"))
        check_choice("backend", backend, ("auto", "fused", "torch"))
        check_integer("keep_factors", keep_factors)
        if keep_factors < 0:
            raise InputError(f"keep_factors must be at least 0, got {keep_factors}.")
        self.num_neighbors = num_neighbors
        self.fade = fade
        self.normalize: Normalize = normalize
        self.backend: Backend = backend
        self.keep_factors = keep_factors
        self.index = index_from(index)
        self.refresh()

    def forward(self, query: Tensor) -> Tensor:
        mean, _, _ = self._solve(self._flat(query), self.centers, self.values, "mean")
        return mean if query.ndim == 2 else mean.reshape(*query.shape[:-1], self.out_features)

    def power_function(self, query: Tensor) -> Tensor:
        """The local error indicator, `(*, D)` to `(*,)`: 0 at a center, 1 far from all."""
        _, power_squared, _ = self._solve(self._flat(query), self.centers, self.values, "mean")
        return safe_sqrt(power_squared.clamp_min(0)).to(query.dtype).reshape(query.shape[:-1])

    def explain(self, query: Tensor) -> Explanation:
        """The centers behind each prediction, nearest first, and their weights, `(*, D)` to `(*, M)` each.

        With `fade` there is one column more, of weight zero: the center that sets the radius.
        """
        weights, _, indices = self._solve(self._flat(query), self.centers, self.values, "weights")
        shape = (*query.shape[:-1], indices.shape[1])
        return Explanation(indices.reshape(shape), weights.reshape(shape))

    def neighbors(self, query: Tensor) -> Tensor:
        """The rows of the centers that each prediction uses, nearest first, `(*, D)` to `(*, M)`."""
        indices = self._neighbors(self._flat(query), self.centers)
        return indices.reshape(*query.shape[:-1], indices.shape[1])

    def leave_one_out(self, rows: Tensor | None = None) -> LeftOut:
        """`torchkrr.tuning.local_leave_one_out` of the layer; with fewer neighbors where it has all of them."""
        names = ("kernel", "ridge", "trend", "fade", "normalize", "on_singular")
        count = min(self.num_neighbors, max(1, self.num_centers - 1))
        options = {name: getattr(self, name) for name in names}
        return local_leave_one_out(self.centers, self.values, count, rows=rows, **options)

    def _left_out_means(self, rows: Tensor) -> Tensor:
        return self.leave_one_out(rows).means

    def append(self, centers: Tensor, values: Tensor) -> None:
        current, before = self._is_current() and self._embedded is not None, len(self.centers)
        super().append(centers, values)
        if current:
            with torch.inference_mode(False), torch.no_grad():
                self.index.append(self._embed(self.centers[before:]))
            self._mark_current()

    def refresh(self) -> None:
        self._forget_index()

    def _forget_index(self) -> None:
        self._fingerprint: Fingerprint | None = None  # of what the index was built from
        self._embedded: Tensor | None = None  # the points of the index; None if it streams: then no tensor holds them all
        self._factors: FactorCache | None = None

    def _keep_rows(self, keep: Tensor) -> None:
        current = self._is_current() and self._embedded is not None
        super()._keep_rows(keep)
        if current:
            with torch.inference_mode(False), torch.no_grad():
                self.index.remove((~keep).nonzero().squeeze(1))
            self._mark_current()

    @full_precision
    def _neighbors(self, query: Tensor, centers: Tensor) -> Tensor:
        if self._check_query(query, centers) != "plain" or not len(query):
            return self._traced_neighbors(query, centers, self.num_used)
        self._embedded_centers()  # builds the index, where it has to be
        return self.index.search(self._embed(query), self.num_used).indices

    @full_precision
    def _solve(self, query: Tensor, centers: Tensor, values: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Mean or weights, squared power function and neighbor indices for rows `(Q, D)`."""
        # With every center a neighbor nothing can leave the list, so there is nothing to fade.
        fade = self.fade and self.num_neighbors < len(centers)
        options = self._options(fade)
        if self._check_query(query, centers, values) != "plain" or not len(query):
            indices = self._traced_neighbors(query, centers, self.num_used + fade)
            first, power_squared = dispatch_local(query, centers, values, indices, options, kind)
            return first.to(query.dtype), power_squared, indices
        points, embedded = self._embed(query), self._embedded_centers()
        check_searchable("query", points, among_themselves=False)
        indices = self.index.find(points.detach(), self.num_used + fade).indices
        if embedded is not None:
            both, cache = (points, embedded), self._factor_cache() if self.keep_factors else None
            first, power_squared = solve_local(query, centers, values, indices, options, kind, embedded=both, cache=cache)
            return first.to(query.dtype), power_squared, indices
        # Only neighbors are embedded, those of so many queries at a time.
        row_bytes = indices.shape[1] * (centers.shape[1] + values.shape[1]) * centers.element_size()
        parts = [
            solve_local(query[chunk], centers, values, indices[chunk], options, kind)
            for chunk in ranges(len(query), rows_per_chunk(row_bytes, SEARCH_BYTES))
        ]
        first, power_squared = (torch.cat(column) for column in zip(*parts, strict=True))
        return first.to(query.dtype), power_squared, indices

    def _options(self, fade: bool) -> SolveOptions:
        check_ridge(self.ridge)
        check_trend(self.trend, self.kernel)
        return SolveOptions(self.kernel, self.ridge, self.trend, fade, self.normalize, self.on_singular, self.backend)

    def _traced_neighbors(self, query: Tensor, centers: Tensor, count: int) -> Tensor:
        """Neighbors of queries that are not plain, by a search without an index."""
        if not isinstance(self.index, (ExactIndex, AutoIndex, StreamedIndex)) and len(query):
            raise BackendError(
                f"{type(self.index).__name__} cannot be searched inside torch.func, torch.compile or torch.export. Give the "
                "layer an ExactIndex there, or find the neighbors outside and call torchkrr.functional.local_kernel_ridge."
            )
        return nearest(query, centers, count, kernel=self.kernel)

    def _embedded_centers(self) -> Tensor | None:
        """Embedded centers, with their graph if something in it is learned; the index is built on them.

        `None` if the index streams.
        """
        if self._is_learning() and not self.index.streams:
            self._forget_index()
            self.index.release()
            embedded = self._embed(self.centers)
            self.index.build(embedded)
            return embedded
        if not self._unchanged(self._fingerprint, self.index.points):
            with self._lock:
                if not self._is_current():  # another thread may have built it meanwhile
                    self._forget_index()
                    # Tensors made in inference mode could not take part in a later backward pass.
                    with torch.inference_mode(False), torch.no_grad():
                        self.index.build_embedded(self.centers, self._embed)
                    self._mark_current()
        return self._embedded

    def _factor_cache(self) -> FactorCache | None:
        if self._fingerprint is None:
            return None
        if self._factors is None or self._factors.capacity != self.keep_factors:
            self._factors = FactorCache(self.keep_factors)
        return self._factors

    def _mark_current(self) -> None:
        self._factors, self._embedded = None, None if self.index.streams else self.index.points
        # The index is named too, since another layer may build it anew.
        self._fingerprint = Fingerprint([self.centers], self.kernel, (self.index.points,))

    def _is_current(self) -> bool:
        """Whether the index is built from centers and kernel as they are."""
        return self._unchanged(self._fingerprint, self.index.points)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fingerprint": None, "_embedded": None, "_factors": None}

    def _own_repr(self) -> list[str]:
        words = [f"num_neighbors={self.num_neighbors}"] + (["fade=True"] if self.fade else [])
        return words + ([f"normalize={self.normalize!r}"] if self.normalize else [])
