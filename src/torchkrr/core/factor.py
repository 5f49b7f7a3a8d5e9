r"""Cholesky factors, and whether they can be trusted.

A cell is *unresolved* in its dtype when its factorization fails or when

$$ \varepsilon\,\|w\|_2 / p_{\min} > 10^{-3} \quad (10^{-4}\text{ in float32}), $$

with $w$ the weights and $p_{\min}$ the smallest squared pivot: an estimate of the rounding error of the prediction relative
to the values. Rounding of A, of norm about $\varepsilon\|A\|$, moves the prediction by
$\varepsilon\|A\|\,\|w\|\,\|A^{-1}y\|$, where $\|A^{-1}y\|$ may reach $\sqrt M\max|y|/p_{\min}$. So for the same error
the limit falls as $1/(\|A\|\sqrt M)$, with $\|A\|$ at most the largest sum of a row, which is at most M. The numbers above
hold up to a hundred rows; in float32 they fall beyond.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Estimated rounding of a prediction, relative to the values, from which on a dtype is not trusted. The estimate can be low
# (the smallest pivot may lie far above the smallest eigenvalue), and solving a float32 cell again costs only time.
UNRESOLVED = {torch.float32: 1e-4, torch.float64: 1e-3}
ROWS = 100  # up to which these hold
_TRUSTED = {dtype: limit / torch.finfo(dtype).eps for dtype, limit in UNRESOLVED.items()}


class Factor(NamedTuple):
    upper: Tensor  # (*, M, M) with A = upper.mT @ upper
    sound: Tensor  # (*,) bool: the factorization went through
    smallest_pivot: Tensor  # (*,): squared
    largest_norm: Tensor  # (*,): of weights with which the system is resolved


def cholesky(matrix: Tensor) -> Factor:
    # The upper factor is what LAPACK finds without transposing a row-major matrix: a quarter faster than the lower one.
    upper, info = torch.linalg.cholesky_ex(matrix, upper=True)
    sound = info == 0
    smallest = upper.detach().diagonal(dim1=-2, dim2=-1).amin(-1).square()
    return Factor(upper, sound, smallest, _largest_norm(upper.detach(), smallest))


def whiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-\top} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper.mT, rhs, upper=False)
    return solved


def unwhiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-1} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper, rhs, upper=True)
    return solved


def is_resolved(factor: Factor, weight_norm: Tensor) -> Tensor:
    """The rule of this file; `weight_norm` broadcasts against the batch of factors. NaN counts as unresolved."""
    return factor.sound & (weight_norm.detach() <= factor.largest_norm)


def _largest_norm(upper: Tensor, smallest_pivot: Tensor) -> Tensor:
    limit: Tensor = _TRUSTED[upper.dtype] * smallest_pivot
    if not _depends_on_size(upper.dtype, upper.shape[-1]):
        return limit
    row_sums = upper.mT @ upper.sum(-1, keepdim=True)  # A 1 = U' (U 1)
    size: Tensor = row_sums.amax((-2, -1)) * (math.sqrt(upper.shape[-1]) / ROWS**1.5)
    return limit / size.clamp_min(1)


def trusted_norm(dtype: torch.dtype, num_rows: int) -> float:
    """The same in units of the smallest squared pivot, whatever the entries of a kernel matrix with so many rows are.

    Example:
        >>> trusted_norm(torch.float32, 1000) < trusted_norm(torch.float32, 100) == trusted_norm(torch.float32, 5)
        True
    """
    limit = _TRUSTED[dtype]
    return limit * (ROWS / num_rows) ** 1.5 if _depends_on_size(dtype, num_rows) else limit


def _depends_on_size(dtype: torch.dtype, num_rows: int) -> bool:
    # Not in float64: what the rule refuses there is solved with another ridge, not more precisely.
    return num_rows > ROWS and dtype is torch.float32
