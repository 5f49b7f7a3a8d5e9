r"""Cholesky factors, and whether they can be trusted.

A cell is *unresolved* in its dtype when its factorization fails or when

$$ \varepsilon\,\|w\|_2 / p_{\min} > 10^{-3} \quad (10^{-4}\text{ in float32}), $$

with $w$ the weights and $p_{\min}$ the smallest squared pivot: an estimate of the rounding error of the prediction relative
to the values. Rounding of the entries of A, of norm about $\varepsilon\sqrt M$, moves the prediction by
$\varepsilon\sqrt M\,\|w\|\,\|A^{-1}y\|$, where $\|A^{-1}y\|$ may reach $\sqrt M\max|y|/p_{\min}$: for the same error the
limit has to fall as $1/M$. The numbers above hold up to a hundred rows; in float32 they fall beyond.
"""

from __future__ import annotations

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


def cholesky(matrix: Tensor) -> Factor:
    # The upper factor is what LAPACK finds without transposing a row-major matrix: a quarter faster than the lower one.
    upper, info = torch.linalg.cholesky_ex(matrix, upper=True)
    sound = info == 0
    smallest = upper.detach().diagonal(dim1=-2, dim2=-1).amin(-1).square()
    return Factor(upper, sound, smallest)


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
    limit = trusted_norm(factor.upper.dtype, factor.upper.shape[-1])
    return factor.sound & (weight_norm.detach() <= limit * factor.smallest_pivot)


def trusted_norm(dtype: torch.dtype, num_rows: int) -> float:
    """The largest norm of weights, in units of the smallest squared pivot, with which a system of so many rows is resolved.

    In float64 it does not depend on the number of rows: what it refuses is solved with another ridge, not more precisely.

    Example:
        >>> trusted_norm(torch.float32, 1000) < trusted_norm(torch.float32, 100) == trusted_norm(torch.float32, 5)
        True
    """
    limit = _TRUSTED[dtype]
    return limit * ROWS / num_rows if num_rows > ROWS and dtype is torch.float32 else limit
