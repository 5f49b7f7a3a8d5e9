"""Hierarchical kernel ridge regression, continuous everywhere, as a layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import check_alike, check_integer, check_same_rows
from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from .._tensors import full_precision, uncompiled, with_a_row
from ..core.expansion import Expansions, Points, Regressors, expand, find_coefficients
from ..core.options import OnSingular, SolveOptions, Trend
from ..errors import InputError
from ..functional.greedy import farthest_points
from ..functional.hierarchical import power_of_hierarchical, solve_hierarchical, weights_of_hierarchical
from ..functional.voronoi import LEAST_BUMP, Border, Cells, border_of, bump_at, member_ridge
from ..kernels import Kernel
from ..neighbors import ExactIndex
from .base import CachedLayer
from .local import Explanation


class _Hierarchy(NamedTuple):
    """The layout of a hierarchical layer."""

    embedded: Tensor  # (N, E) centers
    search: ExactIndex  # for the nearest coarse points
    cells: Cells  # with no queries
    border: Border


class _Parts:
    """What has been solved."""

    def __init__(self, local: Expansions) -> None:
        self.coarse: Regressors | None = None
        self.local = local


class HierarchicalKernelRidge(CachedLayer[_Hierarchy, _Parts]):
    r"""A dense regressor on coarse points plus, in the Voronoi cell of each, a local one that vanishes at its border.

    The paper's multiscale form, see `torchkrr.functional.hierarchical_kernel_ridge`. Nothing is trained. The coarse part is
    solved once, with the cube of `num_coarse`, a cell when a query first falls into it; both are kept, so that without
    gradients later predictions cost kernel evaluations only. With gradients both are solved in every call. Continuous in the
    query. It does not interpolate: near borders, and in cells of more than `num_neighbors` centers, it smooths.

    Coarse points and cells follow from centers and kernel, and are found again whenever one of those changes; while they are
    learned, in every call. A `RidgeRaisedWarning` comes when something is solved, not again while it is kept.

    Arguments as in `LocalKernelRidge`, and

    Args:
        num_neighbors: most centers of a cell that its local regressor uses: those nearest to the coarse point.
        num_coarse: coarse points, spread out by `functional.farthest_points`. No more than the centers are used.
        trend: `"constant"` reproduces constants, by the coarse part.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; query: `(*, D)`; output: `(*, C)`

    Example:
        >>> layer = HierarchicalKernelRidge(torch.randn(500, 4), torch.randn(500, 1), num_neighbors=20, num_coarse=50)
        >>> layer(torch.randn(7, 4)).shape
        torch.Size([7, 1])
    """

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int = 100,
        *,
        num_coarse: int = 1000,
        kernel: Kernel | None = None,
        ridge: float | Tensor = 1e-9,
        trend: Trend = None,
        on_singular: OnSingular = "warn",
        learn_centers: bool = False,
        learn_values: bool = False,
    ) -> None:
        super().__init__(centers, values, num_neighbors, kernel, ridge, trend, on_singular, learn_centers, learn_values)
        check_integer("num_coarse", num_coarse)
        if num_coarse < 1:
            raise InputError(f"num_coarse must be at least 1, got {num_coarse}. A typical value is 1000.")
        self.num_coarse = num_coarse

    def forward(self, query: Tensor) -> Tensor:
        rows = self._flat(query)
        run = self._solve if self._needs_derivatives(rows) else self._predict
        return run(rows, self.centers, self.values).reshape(*query.shape[:-1], self.out_features)

    def power_function(self, query: Tensor) -> Tensor:
        """The error indicator of the weights used, `(*, D)` to `(*,)`; slower than a prediction."""
        return self._power(self._flat(query), self.centers).reshape(query.shape[:-1])

    def explain(self, query: Tensor) -> Explanation:
        """The centers behind each prediction and their weights, `(*, D)` to `(*, n + W)` each.

        First the n coarse points, then at most `num_neighbors` members of the cell; a center in both is named twice, and its
        weights add up. Cells with fewer members are filled up by other centers of weight zero.
        """
        indices, weights = self._explain(self._flat(query), self.centers)
        shape = (*query.shape[:-1], indices.shape[1])
        return Explanation(indices.reshape(shape), weights.reshape(shape))

    def _make_layout(self, embedded: Tensor) -> _Hierarchy:
        count = min(self.num_coarse, len(embedded))
        coarse = farthest_points(embedded, count)
        index = ExactIndex()
        index.build(embedded.detach()[coarse])
        distances, nearest = index.search(embedded, min(2, count))
        # Centers in the order of their cells, inside a cell by distance; the list of a small cell runs on into the next one.
        order = distances[:, 0].argsort(stable=True)
        order = order[nearest[order, 0].argsort(stable=True)]
        sizes = torch.bincount(nearest[:, 0], minlength=count)
        width = min(self.num_neighbors, int(sizes.amax()))
        columns = torch.arange(width, device=embedded.device)
        members = order[((sizes.cumsum(0) - sizes).unsqueeze(1) + columns) % len(embedded)]
        cells = Cells(coarse, members, nearest[:0], nearest)
        return _Hierarchy(embedded, index, cells, border_of(embedded, cells))

    def _no_solutions(self, layout: _Hierarchy) -> _Parts:
        return _Parts(Expansions(len(layout.cells.coarse), layout.embedded.device))

    def _settings(self) -> tuple[object, ...]:
        return self.num_neighbors, self.num_coarse

    def _own_repr(self) -> list[str]:
        return [f"num_neighbors={self.num_neighbors}", f"num_coarse={self.num_coarse}"]

    def _find(self, query: Tensor, centers: Tensor) -> tuple[Tensor, _Hierarchy, Cells]:
        """The embedded query, the layout, and the cells with those of the queries."""
        self._check_query(query, centers, self.num_neighbors)
        layout, embedded = self._current_layout(), self._embed(query)
        nearest = layout.search.search(embedded, layout.cells.of_centers.shape[1]).indices
        return embedded, layout, layout.cells._replace(of_query=nearest)

    @uncompiled
    @full_precision
    @with_a_row()
    def _solve(self, query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
        """The mean for rows `(Q, D)`, with gradients."""
        embedded, layout, cells = self._find(query, centers)
        options = SolveOptions(**self._solve_arguments())
        return solve_hierarchical(query, centers, values, cells, options, (embedded, layout.embedded), layout.border)

    @uncompiled
    @full_precision
    @with_a_row()
    def _power(self, query: Tensor, centers: Tensor) -> Tensor:
        _, _, cells = self._find(query, centers)
        return power_of_hierarchical(query, centers, cells, SolveOptions(**self._solve_arguments()))

    @uncompiled
    @full_precision
    @with_a_row()
    def _explain(self, query: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
        _, _, cells = self._find(query, centers)
        width, parts, options = cells.members.shape[1], [], SolveOptions(**self._solve_arguments())
        # In between, the weights of a chunk are spread over all centers.
        for chunk in ranges(len(query), rows_per_chunk(2 * len(centers) * query.element_size(), SEARCH_BYTES)):
            part = cells._replace(of_query=cells.of_query[chunk])
            outer, inner, members = weights_of_hierarchical(query[chunk], centers, part, options)
            missing = (0, width - members.shape[1])  # the lists of a chunk are no longer than they have to be
            coarse = cells.coarse.expand(len(outer), -1)
            parts.append((torch.cat((coarse, pad(members, missing)), 1), torch.cat((outer, pad(inner, missing)), 1)))
        indices, weights = (torch.cat(column) for column in zip(*parts, strict=True))
        return indices, weights

    @uncompiled
    @full_precision
    @with_a_row()
    def _predict(self, query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
        """The mean for rows `(Q, D)`, without gradients, from kept coefficients."""
        with torch.inference_mode(False), torch.no_grad():
            embedded, layout, cells = self._find(query, centers)
            check_alike(query=query, values=values)
            check_same_rows("centers", centers, "values", values)
            solved = self._current_solutions(layout)
            points = self._points(layout.embedded)
            coarse = Points(points.given[cells.coarse], points.embedded[cells.coarse])
            cell = cells.of_query[:, 0]
            with self._lock:
                if solved.coarse is None:
                    solved.coarse = self._coarse(coarse, values[cells.coarse])
                missing = solved.local.missing(cell)
                if len(missing):
                    solved.local.add(missing, self._corrections(missing, coarse, points, values, solved.coarse, layout))
            at = Points(query, embedded)
            owners = torch.arange(len(query), device=query.device)
            local = solved.local.evaluate(at, points, cell, owners, cells.members, self.kernel)
            bump = bump_at(embedded, layout.embedded, cells, layout.border.width)
            return (expand(at, coarse, solved.coarse, self.kernel) + bump * local).to(query.dtype)

    def _coarse(self, coarse: Points, values: Tensor) -> Regressors:
        """The dense regressor on the coarse points, as a single cell."""
        return find_coefficients(
            coarse.given[:1],
            coarse,
            values,
            torch.arange(len(values), device=values.device).unsqueeze(0),
            scale=values.abs().amax(0, keepdim=True),
            options=SolveOptions(self.kernel, self._ridge(), self.trend, on_singular=self.on_singular),
        )

    def _corrections(
        self, missing: Tensor, coarse: Points, centers: Points, values: Tensor, regressor: Regressors, layout: _Hierarchy
    ) -> Regressors:
        """Coefficients of the local regressors of the `missing` cells."""
        members = layout.cells.members[missing]
        used, positions = torch.unique(members, return_inverse=True)
        own = Points(centers.given[used], centers.embedded[used])
        # The rest may be small beside the values, and local weights amplify its rounding: it is taken in float64.
        fitted = expand(own, coarse, regressor._replace(wide=torch.ones_like(regressor.wide)), self.kernel)
        rest = (values[used] - fitted) / layout.border.bumps[used].clamp_min(LEAST_BUMP).unsqueeze(1)
        ridge = member_ridge(members, missing.unsqueeze(1), layout.cells, layout.border, self._ridge())
        return find_coefficients(
            coarse.given[missing],
            own,
            rest,
            positions,
            scale=values[members].abs().amax(1),
            options=SolveOptions(self.kernel, ridge, on_singular=self.on_singular),
        )
