"""Solves with a Cholesky factor: right, differentiable twice, and said to be unsound where the matrix is not positive."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from torchkrr.core.factor import SolveWithFactor, cholesky, unwhiten, whiten

# Torch's own, when forward mode is first entered.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


def problem(*leading):
    root = torch.randn(*leading, 5, 5, dtype=torch.float64)
    return root @ root.mT + torch.eye(5, dtype=torch.float64), torch.randn(*leading, 5, 2, dtype=torch.float64)


def solve(matrix, rhs):
    """Of the symmetric part, as a matrix of a kernel is symmetric."""
    matrix = (matrix + matrix.mT) / 2
    return SolveWithFactor.apply(matrix, cholesky(matrix.detach()).upper, rhs)


def test_both_halves_together_are_the_solution():
    matrix, rhs = problem(3)
    factor = cholesky(matrix)
    assert factor.sound.all()
    torch.testing.assert_close(factor.upper.mT @ factor.upper, matrix)
    torch.testing.assert_close(matrix @ unwhiten(factor, whiten(factor, rhs)), rhs)
    torch.testing.assert_close(SolveWithFactor.apply(matrix, factor.upper, rhs), torch.linalg.solve(matrix, rhs))


def test_only_the_matrix_that_is_not_positive_is_unsound():
    matrix, _ = problem(3)
    matrix[1] -= 100 * torch.eye(5)
    assert cholesky(matrix).sound.tolist() == [True, False, True]


def test_derivatives():
    inputs = [tensor.requires_grad_() for tensor in problem(2)]
    assert gradcheck(solve, inputs, check_forward_ad=True)
    assert gradgradcheck(solve, inputs)


def test_forward_mode_is_that_of_torch():
    (matrix, rhs), (tangent, _) = problem(), problem()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(matrix, tangent)
        found = forward_ad.unpack_dual(SolveWithFactor.apply(dual, cholesky(matrix).upper, rhs)).tangent
        expected = forward_ad.unpack_dual(torch.linalg.solve(dual, rhs)).tangent
    torch.testing.assert_close(found, expected)


def test_vmap_is_a_loop():
    matrix, rhs = problem(4)
    expected = torch.stack([solve(*each) for each in zip(matrix, rhs, strict=True)])
    torch.testing.assert_close(torch.func.vmap(solve)(matrix, rhs), expected)
    torch.testing.assert_close(torch.func.vmap(solve, (None, 0))(matrix[0], rhs), torch.linalg.solve(matrix[0], rhs))
