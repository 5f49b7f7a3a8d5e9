"""Blended local kernel ridge regression, continuous everywhere, as a layer."""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from .._checks import check_count, check_integer, degree_of
from .._tensors import full_precision, uncompiled, with_a_row
from ..core.expansion import Expansions, Points, Regressors, find_coefficients
from ..core.options import Kind, LayerOptions, SolveOptions, with_options_of
from ..distances import squared_distances_to
from ..errors import InputError
from ..functional.blended import Blend, blending_weights, solve_blended
from ..functional.greedy import farthest_points
from ..neighbors import ExactIndex, NeighborIndex
from ..neighbors.auto import index_from
from .base import CachedLayer, SupportLayer
from .local import Explanation


class _Anchors(NamedTuple):
    """The layout of a blended layer."""

    embedded: Tensor  # (N, E) centers
    rows: Tensor  # (A,) rows of the centers that are anchors
    search: NeighborIndex  # for the nearest anchors
    lists: Tensor  # (A, M) rows of the centers each anchor keeps, where `listed`
    listed: Tensor  # (A,) bool
    points: Tensor | None  # of the layer's index, which another layer may build anew


class BlendedKernelRidge(CachedLayer[_Anchors, Expansions]):
    r"""Local kernel ridge regressors of anchors, blended by distance: $\sum_a w_a(z)\,P_{\sigma_a}(z)$. Nothing is trained.

    Each anchor is solved on its own `num_neighbors` nearest centers, when a query first comes near it, and kept: without
    gradients a prediction costs kernel evaluations only, however often it is asked for. That takes memory for
    `num_neighbors` times the outputs in float64 for each anchor met. With gradients, each prediction costs `num_blended`
    local solves. Continuous in the query, and with every center an anchor it interpolates.

    Anchors and what they keep follow from centers and kernel, and are found again whenever one of those changes; while they
    are learned, in every call. A `RidgeRaisedWarning` comes when an anchor is solved, not again while it is kept.

    Arguments as in `LocalKernelRidge`, and

    Args:
        num_neighbors: centers per anchor.
        num_blended: anchors per prediction. More are smoother, and with smooth kernels a little more accurate.
        num_anchors: `None` makes every center an anchor; else as many, spread out by `functional.farthest_points`, which
            bounds the memory and no longer interpolates. No more than the centers are used.
        index: how the neighbors of anchors are found, and the anchors if every center is one.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; query: `(*, D)`; output: `(*, C)`

    Example:
        >>> layer = BlendedKernelRidge(torch.randn(500, 4), torch.randn(500, 1), num_neighbors=20)
        >>> layer(torch.randn(7, 4)).shape
        torch.Size([7, 1])
    """

    @with_options_of(SupportLayer.__init__)
    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int = 100,
        *,
        index: NeighborIndex | Literal["auto"] | None = None,
        num_blended: int = 8,
        num_anchors: int | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(centers, values, num_neighbors, **options)
        check_integer("num_blended", num_blended)
        if num_blended < 1:
            raise InputError(f"num_blended must be at least 1, got {num_blended}. A typical value is 8.")
        if num_anchors is not None:
            check_count("num_anchors", num_anchors, self.num_centers)
        self.num_blended, self.num_anchors, self.index = num_blended, num_anchors, index_from(index)

    def forward(self, query: Tensor) -> Tensor:
        rows = self._flat(query)
        mean = (
            self._solve(rows, self.centers, self.values, "mean")[0]
            if self._needs_derivatives(rows)
            else self._predict(rows, self.centers, self.values)
        )
        return mean.reshape(*query.shape[:-1], self.out_features)

    def power_function(self, query: Tensor) -> Tensor:
        """An upper bound of the error indicator, the blend of those of the anchors, `(*, D)` to `(*,)`."""
        return self._solve(self._flat(query), self.centers, self.values, "mean")[1].reshape(query.shape[:-1])

    def explain(self, query: Tensor) -> Explanation:
        """The centers behind each prediction and their weights, `(*, D)` to `(*, K M)` each, anchor by anchor.

        A center that several anchors keep is named several times; its weights add up.
        """
        weights, _, blend = self._solve(self._flat(query), self.centers, self.values, "weights")
        shape = (*query.shape[:-1], weights.shape[1])
        return Explanation(blend.members.reshape(shape), weights.reshape(shape))

    def _make_layout(self, embedded: Tensor) -> _Anchors:
        self.index.build(embedded)
        if self.num_anchors is None:
            rows, index = torch.arange(len(embedded), device=embedded.device), self.index
        else:
            rows = farthest_points(embedded, min(self.num_anchors, len(embedded)))
            index = ExactIndex().build(embedded.detach()[rows])
        lists = torch.empty(len(rows), self.num_used, dtype=torch.int64, device=embedded.device)
        listed = torch.zeros(len(rows), dtype=torch.bool, device=embedded.device)
        return _Anchors(embedded, rows, index, lists, listed, self.index.points)

    def _no_solutions(self, layout: _Anchors) -> Expansions:
        return Expansions(len(layout.rows), layout.rows.device)

    def _settings(self) -> tuple[object, ...]:
        return self.num_neighbors, self.num_anchors, self.index, id(self.index.points)

    def _own_repr(self) -> list[str]:
        anchors = [] if self.num_anchors is None else [f"num_anchors={self.num_anchors}"]
        return [f"num_neighbors={self.num_neighbors}", f"num_blended={self.num_blended}", *anchors]

    def _find(self, query: Tensor, anchors: _Anchors) -> tuple[Tensor, Tensor]:
        """Anchors near embedded queries: those that are blended `(Q, K)`, whose lists are made, and all of them."""
        last_sets_radius = self.num_blended < len(anchors.rows)
        near = anchors.search.search(query, self.num_blended + 1 if last_sets_radius else len(anchors.rows)).indices
        blended = near[:, :-1] if last_sets_radius else near
        numbers = torch.unique(blended)
        numbers = numbers[~anchors.listed[numbers]]
        if len(numbers):
            found = self.index.search(anchors.embedded.detach()[anchors.rows[numbers]], self.num_used).indices
            anchors.lists[numbers], anchors.listed[numbers] = found, True
        return blended, near

    @uncompiled
    @full_precision
    def _solve(self, query: Tensor, centers: Tensor, values: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Blend]:
        """Mean or weights, power function and blend for rows `(Q, D)`, with gradients."""
        if not len(query):
            first, power, blend = self._solve(torch.cat((query, centers[:1].detach())), centers, values, kind)
            return first[:0], power[:0], blend._replace(anchors=blend.anchors[:0], members=blend.members[:0])
        self._check_query(query, centers)
        anchors = self._current_layout()
        embedded = self._embed(query), anchors.embedded
        blended, near = self._find(embedded[0], anchors)
        blend = Blend(anchors.rows[near], anchors.lists[blended], near.shape != blended.shape)
        options = SolveOptions(**self._solve_arguments())
        return *solve_blended(query, centers, values, blend, options, kind, embedded), blend

    def _regressors(
        self, missing: Tensor, numbers: Tensor, owners: Tensor, anchors: _Anchors, centers: Points, values: Tensor
    ) -> Regressors:
        """Coefficients of the `missing` anchors; messages name the first query that met one."""
        position = torch.searchsorted(missing, numbers).clamp_max(len(missing) - 1)
        met = missing[position] == numbers
        first = torch.full_like(missing, len(owners)).scatter_reduce(0, position[met], owners[met], "amin")
        members = anchors.lists[missing]
        return find_coefficients(
            centers.given[anchors.rows[missing]],
            centers,
            values,
            members,
            scale=values[members].abs().amax(1),
            options=SolveOptions(self.kernel, self._ridge(), self.trend, on_singular=self.on_singular),
            names=first,
        )

    @uncompiled
    @full_precision
    @with_a_row()
    def _predict(self, query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
        """The mean for rows `(Q, D)`, without gradients, from kept coefficients."""
        self._check_query(query, centers, values)
        with torch.inference_mode(False), torch.no_grad():
            anchors = self._current_layout()
            solved = self._current_solutions(anchors)
            at, points = Points(query, self._embed(query)), self._points(anchors.embedded)
            numbers, near = self._find(at.embedded, anchors)
            (count, shared), flat = numbers.shape, numbers.flatten().contiguous()
            owners = torch.arange(count, device=query.device).repeat_interleave(shared)
            with self._lock:
                missing = solved.missing(flat)
                if len(missing):
                    solved.add(missing, self._regressors(missing, flat, owners, anchors, points, values))
            parts = solved.evaluate(at, points, flat, owners, anchors.lists, self.kernel, degree_of(self.trend))
            squared = squared_distances_to(at.embedded, anchors.embedded, anchors.rows[near])
            weights = blending_weights(squared, last_sets_radius=near.shape != numbers.shape)
            return (parts.view(count, shared, -1) * weights.unsqueeze(-1)).sum(1).to(query.dtype)
