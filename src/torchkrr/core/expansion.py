r"""Local regressors as kernel expansions: solved once, then evaluated.

A regressor on fixed centers is $k(z, x^\sigma)\,\alpha + m(z)$ for every query, so that its coefficients, found in float64
and kept, leave only kernel evaluations. Coefficients of smooth kernels are large and cancel: where the dtype of the data
could not hold the sum, it is taken in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._chunking import chunk_bytes, collect, ranges, rows_per_chunk
from .._tensors import working_dtype
from ..kernels import Kernel
from . import tails
from .local import solve_local
from .options import SolveOptions

LOST_IN_SUMS = 1e-4  # rounding of a sum, relative to what it predicts, from which on it is taken in float64


class Regressors(NamedTuple):
    """Coefficients of local regressors."""

    table: Tensor  # (q, M + p, C): alpha, and the polynomial of the trend below
    wide: Tensor  # (q,) bool: to be evaluated in float64


class Points(NamedTuple):
    """Points as given, and embedded in the working dtype."""

    given: Tensor  # (P, D)
    embedded: Tensor  # (P, E)

    def wide(self, rows: Tensor, kernel: Kernel) -> Tensor:
        """Some of them embedded in float64."""
        return kernel.embed(self.given.index_select(0, rows).double())


def find_coefficients(
    at: Tensor,
    centers: Points,
    values: Tensor,
    members: Tensor,
    *,
    scale: Tensor,
    options: SolveOptions,
    names: Tensor | None = None,
) -> Regressors:
    """Coefficients of the regressors on `members` `(q, M)`, each near a point `at` `(q, D)`.

    `scale` `(q, C)` is the size of what is predicted; the ridge is `()` or `(q, M)`; `names` are for messages.
    """
    used, positions = torch.unique(members, return_inverse=True)
    table, _ = solve_local(
        at.double(),
        centers.given.index_select(0, used).double(),
        values.index_select(0, used).double(),
        positions,
        options,
        "coefficients",
        names=names,
        least_norm=math.sqrt(members.shape[1]),  # they serve queries not yet known
    )
    working = working_dtype(at.dtype)
    if working == torch.float64:
        return Regressors(table, torch.zeros(len(table), dtype=torch.bool, device=table.device))
    # Rounding of a kernel value: that of the embedded points it comes from, relative to a distance of one.
    reach = torch.linalg.vector_norm(centers.embedded.index_select(0, used), dim=1)[positions].amax(1).clamp_min(1)
    size = torch.linalg.vector_norm(table[:, : members.shape[1]], dim=1)  # (q, C)
    rounding = torch.finfo(working).eps * members.shape[1] ** 0.5 * reach.unsqueeze(1) * size
    # A kernel that grows with the distance has terms that cancel wherever the query is.
    return Regressors(table, (rounding > LOST_IN_SUMS * scale).any(1) | (options.kernel.order > 0))


class Expansions:
    """Numbered regressors, added as they are met."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.size = 0
        self._slots = torch.full((count,), -1, device=device)
        self.regressors: Regressors | None = None  # with room for more than `size`

    def missing(self, numbers: Tensor) -> Tensor:
        """Those of the numbers that have no coefficients yet, once each, in order."""
        unique: Tensor = torch.unique(numbers)
        return unique[self._slots[unique] < 0]

    def add(self, numbers: Tensor, found: Regressors) -> None:
        stop, solved = self.size + len(numbers), self.regressors
        if solved is None or len(solved.wide) < stop:
            # Twice the room each time: single queries would otherwise copy everything for every new regressor.
            room = min(max(stop, 2 * self.size), len(self._slots))
            grown = Regressors(*(part.new_empty(room, *part.shape[1:]) for part in found))
            for new, old in zip(grown, solved or (), strict=False):
                new[: self.size] = old[: self.size]
            self.regressors = solved = grown
        for all_parts, part in zip(solved, found, strict=True):
            all_parts[self.size : stop] = part
        self._slots[numbers] = torch.arange(self.size, stop, device=numbers.device)
        self.size = stop

    def evaluate(
        self,
        query: Points,
        centers: Points,
        numbers: Tensor,
        owners: Tensor,
        members: Tensor,
        kernel: Kernel,
        degree: int = 0,
    ) -> Tensor:
        """The regressors `numbers` `(P,)` at the queries `owners` `(P,)`; `members` `(A, M)` are those of all. `(P, C)`."""
        assert self.regressors is not None
        wide = self.regressors.wide[self._slots[numbers]]
        result = query.embedded.new_empty(len(numbers), self.regressors.table.shape[-1])
        rows = (~wide).nonzero().squeeze(1)
        if len(rows):
            points = query.embedded, centers.embedded
            result[rows] = self._sums(*points, numbers[rows], owners[rows], members, kernel, degree)
        rows = wide.nonzero().squeeze(1)
        if len(rows):
            used, own = _used(members, numbers[rows], len(centers.embedded))
            points = kernel.embed(query.given.double()), centers.wide(used, kernel)
            result[rows] = self._sums(*points, numbers[rows], owners[rows], own, kernel, degree).to(result.dtype)
        return result

    def _sums(
        self,
        query: Tensor,
        centers: Tensor,
        numbers: Tensor,
        owners: Tensor,
        members: Tensor,
        kernel: Kernel,
        degree: int = 0,
    ) -> Tensor:
        assert self.regressors is not None
        table, slots = self.regressors.table, self._slots

        def work(chunk: slice) -> tuple[Tensor, ...]:
            with torch.no_grad():
                which = numbers[chunk]
                offsets = centers[members[which]] - query[owners[chunk]].unsqueeze(1)  # (p, M, E)
                at = None
                if degree > 0:  # the frame is that in which the regressor was solved
                    frame = tails.frame_of(offsets, centers[members[which]])
                    at = tails.monomials(frame.coordinates(torch.zeros_like(offsets[:, :1])), degree)  # (p, 1, monomials)
                cross = kernel.of_squared(offsets.square_().sum(-1)).unsqueeze(1)  # (p, 1, M)
                own = table[slots[which]].to(cross.dtype)  # (p, M + monomials, C)
                alpha, polynomial = own[:, : cross.shape[2]], own[:, cross.shape[2] :]
                if at is not None:
                    polynomial = at @ polynomial
                return (torch.baddbmm(polynomial, cross, alpha).squeeze(1),)

        width, outputs = table.shape[1:]
        row_bytes = width * (2 * query.shape[1] + 3 + 3 * outputs) * query.element_size()
        chunks = ranges(len(numbers), rows_per_chunk(row_bytes, chunk_bytes(query.device)))
        return collect(work, chunks, query.device)[0]


def _used(members: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The rows that the lists `numbers` name, and all lists as positions among those (wrong in the other lists)."""
    named = torch.zeros(count, dtype=torch.bool, device=members.device)
    met = torch.unique(numbers)
    named[members[met].flatten()] = True
    positions = torch.zeros_like(members)
    positions[met] = (named.cumsum(0) - 1)[members[met]]
    return named.nonzero().squeeze(1), positions
