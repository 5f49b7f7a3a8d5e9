"""Kernels with a polynomial of too low a degree, as scipy allows with a warning: bordered systems that are indefinite.

Nothing is known of such a system, not even that it has a solution. So it is solved as it stands, by elimination in float64,
with derivatives by autograd. Everything else in the library refuses it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._chunking import chunk_bytes, ranges, rows_per_chunk
from ..core import tails
from ..distances import squared_distances
from ..errors import SolveError
from ..kernels import Kernel


def interpolate_indefinite(
    query: Tensor, centers: Tensor, values: Tensor, *, kernel: Kernel, ridge: Tensor, degree: int, indices: Tensor | None
) -> Tensor:
    """Predictions `(Q, C)` from all centers, or from the neighbors `indices` `(Q, M)` of each query.

    The ridge is `(N,)`; a degree of -1 is no polynomial.
    """
    points, places = kernel.embed(centers.double()), kernel.embed(query.double())
    values = values.double()
    if indices is None:
        solved = _solve(kernel, points, values, ridge, degree)
        row_bytes = 4 * len(points) * points.element_size()
        chunks = ranges(len(places), rows_per_chunk(row_bytes, 4 * chunk_bytes(places.device)))
        return torch.cat([_evaluate(kernel, places[rows], points, *solved) for rows in chunks] or [values[:0]])
    width = indices.shape[1]
    chunks = ranges(len(places), rows_per_chunk(8 * 6 * width**2, 4 * chunk_bytes(places.device)))
    parts = []
    for rows in chunks:
        own = points[indices[rows]]
        solved = _solve(kernel, own, values[indices[rows]], ridge[indices[rows]], degree)
        parts.append(_evaluate(kernel, places[rows].unsqueeze(1), own, *solved).squeeze(1))
    return torch.cat(parts or [values[:0]])


def _solve(kernel: Kernel, points: Tensor, values: Tensor, ridge: Tensor, degree: int) -> tuple[Tensor, tails.Frame, int]:
    """Coefficients `(*, M + p, C)`, and the frame and degree of the polynomial."""
    frame = tails.frame_of(points)
    matrix = kernel.of_squared(squared_distances(points, points)) + torch.diag_embed(ridge)
    if degree >= 0:
        border = tails.monomials(frame.coordinates(points), degree)
        corner = border.new_zeros(*border.shape[:-2], *(border.shape[-1],) * 2)
        matrix = torch.cat((torch.cat((matrix, border), -1), torch.cat((border.mT, corner), -1)), -2)
        values = torch.nn.functional.pad(values, (0, 0, 0, border.shape[-1]))
    try:
        return torch.linalg.solve(matrix, values), frame, degree
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise SolveError(
            "The system is singular, which can happen with a polynomial of too low a degree for the kernel, and with "
            f"repeated data sites. Leave `degree` at its default. ({error})"
        ) from None


def _evaluate(kernel: Kernel, query: Tensor, points: Tensor, solved: Tensor, frame: tails.Frame, degree: int) -> Tensor:
    cross = kernel.of_squared(squared_distances(query, points))
    if degree >= 0:
        cross = torch.cat((cross, tails.monomials(frame.coordinates(query), degree)), -1)
    return cross @ solved
