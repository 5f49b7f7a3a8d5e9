"""Cholesky factors and solves with them; eigendecompositions."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._threads import threads

FEW = 600  # rows: two threads gain little, and wait for each other at every column, for seconds where cores are busy


class Factor(NamedTuple):
    upper: Tensor  # (*, M, M) with A = upper.mT @ upper
    sound: Tensor  # (*,) bool: the factorization went through


def cholesky(matrix: Tensor) -> Factor:
    # The upper factor is what LAPACK finds without transposing a row-major matrix: a quarter faster than the lower one.
    upper, info = torch.linalg.cholesky_ex(matrix, upper=True)
    return Factor(upper, info == 0)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix `(n, n)`."""
    with threads(1) if matrix.shape[-1] <= FEW else contextlib.nullcontext():
        values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def whiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-\top} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper.mT, rhs, upper=False)
    return solved


def unwhiten(factor: Factor, rhs: Tensor) -> Tensor:
    r"""$U^{-1} B$ for a matrix `(*, M, C)`."""
    solved: Tensor = torch.linalg.solve_triangular(factor.upper, rhs, upper=True)
    return solved


class SolveWithFactor(torch.autograd.Function):
    r"""Solve $AX = B$ for symmetric positive definite $A$, given its Cholesky factor.

    With $G$ arriving at $X$: $\bar B = A^{-1}G$ and $\bar A = -\tfrac12(\bar B X^\top + X\bar B^\top)$, so the backward pass
    needs one more solve and no new factorization. It applies this function again, not `cholesky_solve`: the factor carries
    no graph, so second derivatives in the matrix would silently be lost.
    """

    @staticmethod
    def forward(matrix: Tensor, upper: Tensor, rhs: Tensor) -> Tensor:
        return torch.cholesky_solve(rhs, upper, upper=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        matrix, upper, _ = inputs
        ctx.save_for_backward(matrix, upper, output)
        ctx.save_for_forward(matrix, upper, output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        # Leading dimensions are part of the formula, so that one more in front is all there is to it.
        fronts = [
            x.expand(info.batch_size, *x.shape) if at is None else x.movedim(at, 0)
            for x, at in zip(inputs, in_dims, strict=True)
        ]
        return SolveWithFactor.apply(*fronts), 0

    @staticmethod
    def jvp(ctx: Any, matrix_tangent: Tensor, _: Any, rhs_tangent: Tensor) -> Tensor:
        # A X' = B' - A' X
        _, upper, solution = ctx.saved_tensors
        return torch.cholesky_solve(rhs_tangent - matrix_tangent @ solution, upper, upper=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, upper, solution = ctx.saved_tensors
        grad_rhs = SolveWithFactor.apply(matrix, upper, grad)
        grad_matrix = None
        if ctx.needs_input_grad[0]:
            product = grad_rhs @ solution.mT
            grad_matrix = (-0.5 * (product + product.mT)).sum_to_size(matrix.shape)
        return grad_matrix, None, grad_rhs
