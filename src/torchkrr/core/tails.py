r"""Polynomial tails: trends of any degree, by projection onto the complement of the polynomials.

With a trend the weights $w$ of a prediction, and the multipliers $\mu$ of their constraints, solve the bordered system

$$ \begin{pmatrix} A & P \\ P^\top & 0 \end{pmatrix} \begin{pmatrix} w \\ \mu \end{pmatrix}
   = \begin{pmatrix} k \\ \pi \end{pmatrix}, \qquad A = K + \Lambda, $$

$P$ `(M, p)` the monomials at the members and $\pi$ those at the query; the coefficients $\alpha$ and the polynomial $\beta$
of the regressor solve it for $(y, 0)$. The system is symmetric, so the power function, leave-one-out and all derivatives are
those of a regressor without a trend on $M + p$ rows.

With $P = QR$ and $\Pi = I - QQ^\top$ the weights are $w_0 + v$, where $w_0 = QR^{-\top}\pi$ fulfils the constraints and $v$
lies in the complement of the polynomials, on which $A$ is positive definite, whether the kernel is or only conditionally so.
So

$$ B = \Pi A\,\Pi + s\,QQ^\top, \qquad v = \Pi B^{-1}\Pi\,(k - A w_0), \qquad \mu = R^{-1}Q^\top(k - A w), $$

with one small QR and the same Cholesky as ever; $s > 0$ is the size of the kernel. Where the members do not determine the
polynomial (they lie on a line, or are fewer than $p$) the pseudo-inverse takes the place of $R^{-1}$: the polynomial is that
of the smallest norm.

Monomials are those of coordinates about the mean of the members, each divided by its largest size there. The result does not
depend on that choice, only its rounding does; so it has no gradient.

A constant on a positive definite kernel needs none of this: $A$ has a factor, and one more right-hand side does
(`cells.TrendPart`).
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._tensors import WithoutDerivative, any_requires_grad
from . import trust
from .factor import Factor, cholesky

NOISE = 16  # units in the last place of a coordinate that are not taken for its spread
ROUNDING = 2  # units in the last place by which a coordinate may be off
# Rounding of a tail in float32, estimated by the condition of the monomials, from which on float64 solves the cell.
TRUSTED_CONDITION = 1e-4


def num_monomials(features: int, degree: int) -> int:
    return math.comb(features + degree, degree)


@functools.lru_cache(maxsize=256)
def _steps(features: int, degree: int) -> tuple[tuple[list[int], list[int]], ...]:
    """For each degree from two on: its monomials as one of the degree before, times a coordinate."""
    steps = []
    before: list[tuple[int, ...]] = [(feature,) for feature in range(features)]
    for power in range(2, degree + 1):
        now = list(itertools.combinations_with_replacement(range(features), power))
        numbers = {monomial: number for number, monomial in enumerate(before)}
        steps.append(([numbers[monomial[:-1]] for monomial in now], [monomial[-1] for monomial in now]))
        before = now
    return tuple(steps)


def monomials(points: Tensor, degree: int) -> Tensor:
    """All monomials up to a degree, `(*, n, D)` to `(*, n, p)`: the constant, the coordinates, their products.

    Example:
        >>> monomials(torch.tensor([[2.0, 3.0]]), 2)
        tensor([[1., 2., 3., 4., 6., 9.]])
    """
    parts = [torch.ones_like(points[..., :1])]
    if degree > 0:
        parts.append(points)
    for parents, coordinates in _steps(points.shape[-1], degree):
        parts.append(parts[-1][..., parents] * points[..., coordinates])
    return torch.cat(parts, dim=-1)


class Frame(NamedTuple):
    """The coordinates whose monomials are taken."""

    shift: Tensor  # (*, 1, D)
    scale: Tensor  # (*, 1, D): infinite for a coordinate that all members share
    noise: Tensor  # (*,): rounding of the coordinates

    def coordinates(self, points: Tensor) -> Tensor:
        return (points - self.shift) / self.scale


def frame_of(members: Tensor, places: Tensor | None = None, precision: float = 0.0) -> Frame:
    """The frame of members `(*, M, D)`, which may be offsets of points at `places` `(*, M, D)`.

    `precision` is the relative rounding of the points as they were given, where that is more than of their dtype.
    """
    members = members.detach()
    shift = members.mean(-2, keepdim=True)
    spread = (members - shift).abs().amax(-2, keepdim=True)
    largest = (members if places is None else places.detach()).abs().amax(-2, keepdim=True)
    rounding = max(precision, torch.finfo(members.dtype).eps) * largest
    scale = torch.where(spread > NOISE * rounding, spread, torch.inf)
    return Frame(shift, scale, ROUNDING * (rounding / scale).amax(-1).squeeze(-1))


def size_of(gram: Tensor, unit: Tensor) -> Tensor:
    r"""$\sqrt{\|K\|_\infty\max|K|}$ of kernel matrices `(*, M, M)`, relative to the size of the kernel; `(*,)`."""
    sizes = gram.detach().abs()
    # Divided one by one: their product may be more than a number holds.
    return (sizes.sum(-1).amax(-1) / unit * (sizes.flatten(-2).amax(-1) / unit)).sqrt()


def inverse_norm(solved: Tensor, vectors: Tensor) -> Tensor:
    """As `trust.inverse_norm`; zero where polynomials leave nothing to solve for."""
    some = solved.flatten(-2).abs().amax(-1) > 0
    return torch.where(some, trust.inverse_norm(solved, vectors), 0.0)


class Bordered(NamedTuple):
    """A bordered system with its factor. Without a graph but for `matrix` and `border`."""

    matrix: Tensor  # (*, M, M): A
    border: Tensor  # (*, M, p): P
    upper: Tensor  # (*, M, M): U with B = U^T U
    basis: Tensor  # (*, M, k): Q, k = min(M, p); columns are zero where members do not determine the polynomial
    back: Tensor  # (*, p, k): R^-1, or what takes its place
    sound: Tensor  # (*,) bool: the factorization went through
    determined: Tensor  # (*,) bool: the members determine the polynomial
    unit: Tensor  # (*,): s

    @property
    def factor(self) -> Factor:
        return Factor(self.upper, self.sound)

    def solve(self, rhs: Tensor) -> Tensor:
        """For right-hand sides `(*, M + p, C)`, or `(*, M, C)` with zeros below: `(*, M + p, C)`."""
        rows, columns = self.border.shape[-2:]
        leading = torch.broadcast_shapes(self.matrix.shape[:-2], rhs.shape[:-2])
        rhs = rhs.expand(*leading, -1, -1)
        if rhs.shape[-2] == rows:
            rhs = torch.nn.functional.pad(rhs, (0, 0, 0, columns))
        parts = [part.expand(*leading, -1, -1) for part in self[:5]]
        if not any_requires_grad(*parts[:2], rhs) and not torch._C._are_functorch_transforms_active():
            return _solve(Factored(*parts), rhs)
        return SolveBordered.apply(*parts, rhs)  # type: ignore[no-any-return]

    def needed(self) -> Tensor | None:
        """Members without which the others determine less of the polynomial, `(*, M)` bool; `None` if there are none."""
        if torch._C._are_functorch_transforms_active():
            return None
        needed = 1 - self.basis.square().sum(-1) < math.sqrt(torch.finfo(self.basis.dtype).eps)
        return needed if bool(needed.any()) else None

    def complement_inverse(self) -> Tensor:
        r"""$\Pi B^{-1}\Pi$, `(*, M, M)`: the upper left block of the inverse."""
        polynomials = self.basis @ self.basis.mT / self.unit[..., None, None]
        return torch.cholesky_inverse(self.upper, upper=True) - polynomials


def bordered(matrix: Tensor, border: Tensor, unit: Tensor, noise: Tensor) -> Bordered:
    """The system with its factor; `unit` `(*,)` is the size of the kernel, `noise` `(*,)` as in `Frame`.

    What cannot be factored has the identity for its factor, which keeps the gradients of the others finite.
    """
    found = _Factored.apply(matrix.detach(), border.detach(), unit.detach(), noise)
    upper, basis, back, sound, determined = found
    return Bordered(matrix, border, upper, basis, back, sound, determined, unit.detach())


class _Factored(WithoutDerivative):
    """The factor of bordered systems, any leading dimensions."""

    @staticmethod
    def forward(matrix: Tensor, border: Tensor, unit: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        basis, back, determined = _polynomials(border, noise)
        image = matrix @ basis
        half = image - 0.5 * (basis @ (basis.mT @ image)) - 0.5 * unit[..., None, None] * basis
        product = half @ basis.mT
        projected = (matrix - product).sub_(product.mT)
        del product
        upper, sound = cholesky(projected)
        # An overflow is a failure too.
        sound = sound & torch.isfinite(upper.diagonal(dim1=-2, dim2=-1)).all(-1) & torch.isfinite(back).flatten(-2).all(-1)
        if not bool(sound.all()):
            identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
            upper, back = torch.where(sound[..., None, None], upper, identity), back.nan_to_num(0.0, 0.0, 0.0)
        return upper, basis, back, sound, determined

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:  # type: ignore[override]
        return (None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return _Factored.apply(*_fronts(info, in_dims, inputs)), (0,) * 5


def _polynomials(border: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis `(*, M, k)` of the columns of the border, what leads back from it, and where it has full rank."""
    rows, columns = border.shape[-2:]
    precision = torch.finfo(border.dtype).eps
    tolerance = max(rows, columns) * precision + noise  # (*,)
    limit = TRUSTED_CONDITION / precision if border.dtype != torch.float64 else math.inf
    if rows >= columns:
        basis, triangle = torch.linalg.qr(border)
        identity = torch.eye(columns, dtype=border.dtype, device=border.device).expand_as(triangle)
        back = torch.linalg.solve_triangular(triangle, identity, upper=True)
        condition = torch.linalg.matrix_norm(triangle) * torch.linalg.matrix_norm(back)
        determined = condition * tolerance < 1  # an infinite or undefined one is not
    else:
        basis, back = border.new_zeros(*border.shape[:-1], rows), border.new_zeros(*border.shape[:-2], columns, rows)
        condition, determined = torch.full_like(noise, torch.inf), torch.zeros_like(noise, dtype=torch.bool)
    if not bool(determined.all()):
        doubtful = ~determined
        left, sizes, right = torch.linalg.svd(border[doubtful].nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
        kept = sizes > tolerance[doubtful].unsqueeze(-1) * sizes[..., :1]
        inverse = torch.where(kept, 1 / torch.where(kept, sizes, 1.0), 0.0)
        basis, back = basis.clone(), back.clone()
        basis[doubtful], back[doubtful] = left * kept.unsqueeze(-2), right.mT * inverse.unsqueeze(-2)
        determined[doubtful] = kept.all(-1) & (rows >= columns)
    return basis, back, determined & (condition < limit)


class SolveBordered(torch.autograd.Function):
    r"""Solve a bordered system, given its factor, for `rhs` `(*, M + p, C)`.

    As `factor.SolveWithFactor`: with $G$ arriving at $X$, $\bar R = S^{-1}G$ and
    $\bar S = -\tfrac12(\bar RX^\top + X\bar R^\top)$, of which the blocks of $A$ and $P$ are returned. The backward pass
    applies this function again; the factor has no graph.
    """

    @staticmethod
    def forward(matrix: Tensor, border: Tensor, upper: Tensor, basis: Tensor, back: Tensor, rhs: Tensor) -> Tensor:
        return _solve(Factored(matrix, border, upper, basis, back), rhs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:5], output)
        ctx.save_for_forward(*inputs[:5], output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return SolveBordered.apply(*_fronts(info, in_dims, inputs)), 0

    @staticmethod
    def jvp(
        ctx: Any, matrix_tangent: Tensor, border_tangent: Tensor, _: Any, __: Any, ___: Any, rhs_tangent: Tensor
    ) -> Tensor:
        *system, solution = ctx.saved_tensors
        rows = system[0].shape[-1]
        weights, multipliers = solution[..., :rows, :], solution[..., rows:, :]
        moved = torch.cat((matrix_tangent @ weights + border_tangent @ multipliers, border_tangent.mT @ weights), dim=-2)
        return _solve(Factored(*system), rhs_tangent - moved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *system, solution = ctx.saved_tensors
        grad_rhs = SolveBordered.apply(*system, grad)
        rows = system[0].shape[-1]
        grad_matrix = grad_border = None
        above, below = grad_rhs[..., :rows, :], grad_rhs[..., rows:, :]
        weights, multipliers = solution[..., :rows, :], solution[..., rows:, :]
        if ctx.needs_input_grad[0]:
            product = above @ weights.mT
            grad_matrix = -0.5 * (product + product.mT)
        if ctx.needs_input_grad[1]:
            grad_border = -(above @ multipliers.mT + weights @ below.mT)
        return grad_matrix, grad_border, None, None, None, grad_rhs


class Factored(NamedTuple):
    """The first fields of `Bordered`."""

    matrix: Tensor
    border: Tensor
    upper: Tensor
    basis: Tensor
    back: Tensor


def _solve(system: Factored, rhs: Tensor) -> Tensor:
    matrix, _, upper, basis, back = system
    rows = matrix.shape[-1]
    top, bottom = rhs[..., :rows, :], rhs[..., rows:, :]
    start = basis @ (back.mT @ bottom)
    rest = top - matrix @ start
    inner = torch.cholesky_solve(_complement(basis, rest), upper, upper=True)
    inner = _complement(basis, inner)
    multipliers = back @ (basis.mT @ (rest - matrix @ inner))
    return torch.cat((start + inner, multipliers), dim=-2)


def _complement(basis: Tensor, vectors: Tensor) -> Tensor:
    return vectors - basis @ (basis.mT @ vectors)


def _fronts(info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The inputs with one more leading dimension: any number of them is part of the formulas."""
    return [
        x.expand(info.batch_size, *x.shape) if at is None else x.movedim(at, 0)
        for x, at in zip(inputs, in_dims, strict=True)
    ]
