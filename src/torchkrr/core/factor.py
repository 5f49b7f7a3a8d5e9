r"""Cholesky factors, and whether they can be trusted.

A cell is *unresolved* in its dtype when its factorization fails or when

$$ \varepsilon\,\|w\|_2 / p_{\min} > 10^{-3} \quad (10^{-4}\text{ in float32}), $$

with $w$ the weights and $p_{\min}$ the smallest squared pivot: an estimate of the rounding error of the prediction relative
to the values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Estimated rounding of a prediction, relative to the values, from which on a dtype is not trusted. The estimate can be low
# (the smallest pivot may lie far above the smallest eigenvalue), and solving a float32 cell again costs only time.
UNRESOLVED = {torch.float32: 1e-4, torch.float64: 1e-3}


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
    epsilon = torch.finfo(factor.upper.dtype).eps
    trusted = epsilon * weight_norm.detach() <= UNRESOLVED[factor.upper.dtype] * factor.smallest_pivot
    return factor.sound & trusted
