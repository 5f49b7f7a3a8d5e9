"""True answers of kernel ridge problems, in extended precision. Independent: nothing here imports torchkrr.

A problem is a batch of cells: one query each, and the members it is predicted from. Dense problems and left-out centers are
cells as well. Numbers are 80-bit (u = 5e-20), so what float64 can solve at all is known here to four digits or more. Whether
it is known is measured: every cell is solved twice, the second time with its matrix changed by 20 units of rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np

Long = np.longdouble
EPSILON = np.finfo(Long).eps
TRUSTED = 1e-4  # of the scale of the answer: how far the change of the matrix may move it
FACTORED = 120  # larger matrices are factored in float64, and the solution refined with 80-bit residuals


class Arithmetic(NamedTuple):
    number: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]


LONG = Arithmetic(Long, np.exp, np.sqrt)
MANY_DIGITS = Arithmetic(mpmath.mpf, mpmath.exp, mpmath.sqrt)


class Radial(NamedTuple):
    """A kernel: its name, its shape parameters and its lengthscale."""

    name: str
    lengthscale: float
    alpha: float = 1.0
    dimension: int = 3
    smoothness: int = 1


# Profiles and their slopes divided by the distance.


def profile(kernel: Radial, d: Any, a: Arithmetic = LONG) -> Any:
    match kernel.name:
        case "Exponential":
            return a.exp(-d)
        case "Matern32":
            s = a.sqrt(a.number(3)) * d
            return (1 + s) * a.exp(-s)
        case "Matern52":
            s = a.sqrt(a.number(5)) * d
            return (1 + s + s * s / 3) * a.exp(-s)
        case "Gaussian":
            return a.exp(-d * d / 2)
        case "RationalQuadratic":
            return (1 + d * d / (2 * a.number(kernel.alpha))) ** -a.number(kernel.alpha)
        case "InverseMultiquadric":
            return 1 / a.sqrt(1 + d * d)
        case "InverseQuadratic":
            return 1 / (1 + d * d)
    n = kernel.dimension // 2 + kernel.smoothness + 1
    factor = [
        1,
        (n + 1) * d + 1,
        ((n**2 + 4 * n + 3) * d * d + (3 * n + 6) * d + 3) / 3,
        ((n**3 + 9 * n**2 + 23 * n + 15) * d**3 + (6 * n**2 + 36 * n + 45) * d * d + (15 * n + 45) * d + 15) / 15,
    ][kernel.smoothness]
    return (d < 1) * (1 - d) ** (n + kernel.smoothness) * factor


def slope_over_distance(kernel: Radial, d: np.ndarray) -> np.ndarray:
    """Zero at zero where there is no limit: coinciding points do not push each other."""
    over = 1 / np.where(d > 0, d, np.inf)
    n, inside = kernel.dimension // 2 + kernel.smoothness + 1, np.maximum(1 - d, 0)
    match kernel.name:
        case "Exponential":
            return -np.exp(-d) * over
        case "Matern32":
            return -3 * np.exp(-np.sqrt(Long(3)) * d)
        case "Matern52":
            s = np.sqrt(Long(5)) * d
            return -Long(5) / 3 * (1 + s) * np.exp(-s)
        case "Gaussian":
            return -np.exp(-d * d / 2)
        case "RationalQuadratic":
            return -((1 + d * d / (2 * Long(kernel.alpha))) ** -(Long(kernel.alpha) + 1))
        case "InverseMultiquadric":
            return -((1 + d * d) ** Long(-1.5))
        case "InverseQuadratic":
            return -2 / (1 + d * d) ** 2
    match kernel.smoothness:
        case 0:
            return -n * (d < 1) * inside ** (n - 1) * over
        case 1:
            return -(n + 1) * (n + 2) * inside**n
        case 2:
            return -Long((n + 3) * (n + 4)) / 3 * inside ** (n + 1) * ((n + 1) * d + 1)
    quadratic = (n**2 + 4 * n + 3) * d * d + (3 * n + 6) * d + 3
    return -Long((n + 5) * (n + 6)) / 15 * inside ** (n + 2) * quadratic


def embedded_distances(kernel: Radial, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`(..., A, D)` and `(..., B, D)` to `(..., A, B)`: differences first, so that close points lose nothing."""
    apart = (a[..., :, None, :].astype(Long) - b[..., None, :, :]) / Long(kernel.lengthscale)
    return np.sqrt((apart * apart).sum(-1))


# Batched solves in extended precision; what cannot be solved is NaN.


def cholesky(matrix: np.ndarray) -> np.ndarray:
    """`(Q, M, M)` to the lower factor."""
    factor = np.zeros_like(matrix)
    with np.errstate(invalid="ignore", divide="ignore"):
        for j in range(matrix.shape[1]):
            column = matrix[:, j:, j] - (factor[:, j:, :j] @ factor[:, j, :j, None])[..., 0]
            factor[:, j:, j] = column / np.sqrt(column[:, :1])
    return factor


def forward(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution = np.empty_like(right)
    for j in range(factor.shape[1]):
        solution[:, j] = (right[:, j] - (factor[:, None, j, :j] @ solution[:, :j])[:, 0]) / factor[:, j, j, None]
    return solution


def backward(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    turned = factor[:, ::-1, ::-1].transpose(0, 2, 1)
    return forward(turned, right[:, ::-1])[:, ::-1]


def refined(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution = np.full(right.shape, np.nan, dtype=Long)
    for q, one in enumerate(matrix):  # one at a time: one that cannot be factored must not stop the others
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(one.astype(np.float64)))
        except np.linalg.LinAlgError:
            continue
        found, last = np.zeros_like(right[q]), np.inf
        for _ in range(30):
            step = inverse.T @ (inverse @ (right[q] - one @ found).astype(np.float64))
            size = np.abs(step).max() / max(np.abs(found + step).max(), 1e-300)
            if size > 0.5 * last:
                break
            found, last = found + step, size
        if last < 1e-14:
            solution[q] = found
    return solution


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """`(Q, M, M)`, `(Q, M, R)` to `(Q, M, R)`."""
    with np.errstate(all="ignore"):
        if matrix.shape[1] > FACTORED:
            return refined(matrix, right)
        factor = cholesky(matrix)
        return backward(factor, forward(factor, right))


# Answers.


class Cells(NamedTuple):
    kernel: Radial
    query: np.ndarray  # (Q, D)
    members: np.ndarray  # (Q, M, D)
    values: np.ndarray  # (Q, M, C)
    ridge: float
    trend: bool
    directions: np.ndarray  # (Q, C): what the gradient is the gradient of
    points: np.ndarray | None = None  # (N, D), where the members are some of these
    rows: np.ndarray | None = None  # (Q, M): which


class Part(NamedTuple):
    """One array of an answer, first axis the cells, with the size that errors are relative to."""

    true: np.ndarray
    scale: np.ndarray  # (Q,)


class Answer(NamedTuple):
    parts: list[Part]
    known: np.ndarray  # (Q,)

    def errors(self, parts: list[np.ndarray]) -> np.ndarray:
        """`(Q,)`: the largest error of each cell; what is not finite is infinitely wrong."""
        with np.errstate(all="ignore"):
            found = [
                np.abs((part.astype(Long) - true).reshape(len(part), -1) / scale[:, None]).max(1).astype(np.float64)
                for part, (true, scale) in zip(parts, self.parts, strict=True)
            ]
        return np.nan_to_num(np.max(found, axis=0), nan=np.inf)


def answer(cells: Cells, kind: str, rng: np.random.Generator) -> Answer:
    """`kind`: mean, weights, power, path or gradient."""
    kernel, count, members = cells.kernel, *cells.members.shape[:2]
    # Cells that share points share their distances and kernel values, which are slow in 80 bits.
    points = cells.members if cells.points is None else cells.points
    between = embedded_distances(kernel, points, points)
    gram = profile(kernel, between)
    if cells.rows is not None:
        pairs = cells.rows[:, :, None], cells.rows[:, None, :]
        between, gram = between[pairs], gram[pairs]
    across = embedded_distances(kernel, cells.members, cells.query[:, None])[..., 0]
    matrix = gram + Long(cells.ridge) * np.eye(members, dtype=Long)
    cross = profile(kernel, across)

    noise = rng.normal(size=matrix.shape)
    moved = matrix * (1 + 10 * EPSILON * (noise + noise.transpose(0, 2, 1)))
    moved_cross = cross * (1 + 10 * EPSILON * rng.normal(size=cross.shape))
    twice = cells._replace(
        query=np.tile(cells.query, (2, 1)),
        members=np.tile(cells.members, (2, 1, 1)),
        values=np.tile(cells.values, (2, 1, 1)).astype(Long),
        directions=np.tile(cells.directions, (2, 1)),
    )
    both = np.concatenate([matrix, moved]), np.concatenate([cross, moved_cross])
    with np.errstate(all="ignore"):
        if kind == "path":
            found = _path(twice, *both)
        else:
            found = _plain(twice, *both, np.tile(between, (2, 1, 1)), np.tile(across, (2, 1)), kind)
    result = Answer([Part(true[:count], scale[:count]) for true, scale in found], np.zeros(count, bool))
    return result._replace(known=result.errors([true[count:] for true, _ in found]) < TRUSTED)


def _plain(c: Cells, matrix: np.ndarray, cross: np.ndarray, between: Any, across: Any, kind: str) -> list[Part]:
    ones = np.ones_like(cross)
    solved = solve(matrix, np.concatenate([cross[..., None], ones[..., None], c.values], -1))
    weights, direction, coefficients = solved[..., 0], solved[..., 1], solved[..., 2:]
    if c.trend:
        total = direction.sum(1, keepdims=True)
        weights = weights + direction * (1 - weights.sum(1, keepdims=True)) / total
        coefficients = coefficients - direction[..., None] * (coefficients.sum(1) / total)[:, None]
    largest = np.abs(c.values).max((1, 2))
    if kind == "mean":
        return [Part((weights[:, None] @ c.values)[:, 0], largest)]
    if kind == "weights":  # far away they all underflow in float32
        return [Part(weights, np.maximum(np.abs(weights).max(1), 1e-3))]
    if kind == "power":
        product = (matrix @ weights[..., None])[..., 0]
        squared = 1 - 2 * (cross * weights).sum(1) + (weights * product).sum(1)
        return [Part(np.sqrt(np.maximum(squared, 0)), np.ones_like(squared))]  # the maximum of NaN is NaN

    # With beta = coefficients g: dy = w g^T, dk = beta, dA = -w beta^T.
    beta = (coefficients * c.directions[:, None]).sum(-1)
    scale = Long(c.kernel.lengthscale)
    members = c.members.astype(Long) - c.query[:, None]
    to_query = (beta * slope_over_distance(c.kernel, across))[..., None] * members / scale**2
    pairs = weights[..., None] * beta[:, None]
    pull = -(pairs + pairs.transpose(0, 2, 1)) * slope_over_distance(c.kernel, between)
    to_members = (pull.sum(-1, keepdims=True) * members - pull @ members) / scale**2
    gradients = [-to_query.sum(1), to_query + to_members, weights[..., None] * c.directions[:, None]]
    # Where the function is flat its gradient is rounding alone: a hundredth of the natural size is as small as it gets.
    size = np.abs(c.directions).max(1).astype(Long)
    floors = [size * largest / scale, size * largest / scale, size]
    return [
        Part(true, np.maximum(np.abs(true).reshape(len(true), -1).max(1), floor / 100))
        for true, floor in zip(gradients, floors, strict=True)
    ]


def _path(c: Cells, matrix: np.ndarray, cross: np.ndarray) -> list[Part]:
    """Means and powers of every m, by partial sums over one factor."""
    ones = np.ones_like(cross)
    half = forward(cholesky(matrix), np.concatenate([cross[..., None], ones[..., None], c.values], -1))
    left, one, right = half[..., :1], half[..., 1:2], half[..., 2:]
    means, squared = (left * right).cumsum(1), 1 - (left * left).cumsum(1)
    if c.trend:
        rest, total = 1 - (left * one).cumsum(1), (one * one).cumsum(1)
        means, squared = means + rest * (one * right).cumsum(1) / total, squared + rest**2 / total
    largest = np.abs(c.values).max((1, 2))
    return [Part(means, largest), Part(np.sqrt(np.maximum(squared, 0))[..., 0], np.ones_like(largest))]


def in_many_digits(cells: Cells, kind: str, row: int, digits: int = 150) -> np.ndarray:
    """Mean, weights or power of one cell, by the saddle-point system of its definition. Slow."""
    with mpmath.workdps(digits):
        kernel, members = cells.kernel, [[mpmath.mpf(float(v)) for v in x] for x in cells.members[row]]
        point = [mpmath.mpf(float(v)) for v in cells.query[row]]
        count, size = len(members), len(members) + cells.trend

        def entry(a: list[Any], b: list[Any]) -> Any:
            squared = sum(((u - v) ** 2 for u, v in zip(a, b, strict=True)), mpmath.mpf(0))
            return profile(kernel, mpmath.sqrt(squared) / mpmath.mpf(kernel.lengthscale), MANY_DIGITS)

        matrix, right = mpmath.ones(size, size), mpmath.ones(size, 1)
        for i in range(count):
            for j in range(i + 1):
                matrix[i, j] = matrix[j, i] = entry(members[i], members[j])
            matrix[i, i] += mpmath.mpf(cells.ridge)
            right[i] = entry(members[i], point)
        if cells.trend:
            matrix[count, count] = 0
        weights = mpmath.lu_solve(matrix, right)[:count]
        if kind == "weights":
            found = weights
        elif kind == "power":
            quadratic = sum(weights[i] * weights[j] * matrix[i, j] for i in range(count) for j in range(count))
            found = [mpmath.sqrt(max(0, 1 - 2 * sum(weights[i] * right[i] for i in range(count)) + quadratic))]
        else:
            columns = cells.values[row].T
            found = [sum(w * mpmath.mpf(float(y)) for w, y in zip(weights, column, strict=True)) for column in columns]
        least = mpmath.mpf(10) ** -4000  # below, numpy warns
        return np.array([Long(mpmath.nstr(v, 25)) if abs(v) > least else Long(0) for v in found])
