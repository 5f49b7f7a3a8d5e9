"""Every formula of the library as a float64 loop over queries. Slow, plain, and independent: nothing here imports torchkrr.

Points are embedded already (divide them by the lengthscale), a kernel is a profile of the distance, and distances are taken
by difference. Where the library has a derivation of its own (one factor for all m, a projected trend, a tapered system),
this file goes the long way: separate solves, a saddle-point system, a penalty on the diagonal.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial

Profile = Callable[[np.ndarray], np.ndarray]


# Profiles, by the name of the kernel.


def exponential(d: np.ndarray) -> np.ndarray:
    return np.exp(-d)


def matern32(d: np.ndarray) -> np.ndarray:
    return (1 + np.sqrt(3) * d) * np.exp(-np.sqrt(3) * d)


def matern52(d: np.ndarray) -> np.ndarray:
    return (1 + np.sqrt(5) * d + 5 * d**2 / 3) * np.exp(-np.sqrt(5) * d)


def gaussian(d: np.ndarray) -> np.ndarray:
    return np.exp(-(d**2) / 2)


def rational_quadratic(d: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return (1 + d**2 / (2 * alpha)) ** -alpha


def inverse_multiquadric(d: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(1 + d**2)


def inverse_quadratic(d: np.ndarray) -> np.ndarray:
    return 1 / (1 + d**2)


def linear(d: np.ndarray) -> np.ndarray:
    return -d


def thin_plate_spline(d: np.ndarray) -> np.ndarray:
    return np.where(d > 0, d**2 * np.log(np.where(d > 0, d, 1.0)), 0.0)


def cubic(d: np.ndarray) -> np.ndarray:
    return d**3


def quintic(d: np.ndarray) -> np.ndarray:
    return -(d**5)


def multiquadric(d: np.ndarray) -> np.ndarray:
    return -np.sqrt(1 + d**2)


def wendland(d: np.ndarray, dimension: int = 3, smoothness: int = 1) -> np.ndarray:
    return np.where(d < 1, wendland_polynomial(dimension, smoothness)(np.minimum(d, 1.0)), 0.0)


@functools.cache
def wendland_polynomial(dimension: int, smoothness: int) -> Polynomial:
    r"""Wendland's construction itself: $(1-t)^n$, repeatedly through $f \mapsto \int_d^1 t f(t)\,dt$, scaled to 1 at 0."""
    polynomial = Polynomial([1, -1]) ** (dimension // 2 + smoothness + 1)
    for _ in range(smoothness):
        integral = (Polynomial([0, 1]) * polynomial).integ()
        polynomial = integral(1.0) - integral
    return polynomial / polynomial(0.0)


PROFILES: dict[str, Callable[..., np.ndarray]] = {
    "Exponential": exponential,
    "Matern32": matern32,
    "Matern52": matern52,
    "Gaussian": gaussian,
    "RationalQuadratic": rational_quadratic,
    "InverseMultiquadric": inverse_multiquadric,
    "InverseQuadratic": inverse_quadratic,
    "Wendland": wendland,
}
CONDITIONAL: dict[str, Profile] = {  # they need a trend
    "Linear": linear,
    "ThinPlateSpline": thin_plate_spline,
    "Cubic": cubic,
    "Quintic": quintic,
    "Multiquadric": multiquadric,
}


# One cell.


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`(A, D)` and `(B, D)` to `(A, B)`, by difference."""
    return np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(-1))


def taper(to_members: np.ndarray, radius: float) -> np.ndarray:
    """1 for the nearest members falling to 0 at `radius`, the distance of the neighbor after the last; distances `(M,)`."""
    inner = to_members[math.ceil(3 * len(to_members) / 4) - 1]
    faded = np.empty(len(to_members))
    for j, d in enumerate(to_members):
        if radius > inner:
            t = min(max((d - inner) / (radius - inner), 0.0), 1.0)
            faded[j] = 1 - (10 * t**3 - 15 * t**4 + 6 * t**5)
        else:
            faded[j] = 1.0 if d < radius else 0.0
    return faded


Trend = str | int | None


def polynomials(points: np.ndarray, trend: Trend) -> np.ndarray:
    """The monomials of a trend, `(n, D)` to `(n, p)`: products of powers, one at a time."""
    degree = -1 if trend is None else {"constant": 0, "linear": 1}.get(trend, trend)
    powers = [p for p in itertools.product(range(max(degree, 0) + 1), repeat=points.shape[1]) if sum(p) <= degree]
    return np.stack([np.prod(points ** np.array(p), axis=1) for p in powers], 1) if powers else np.empty((len(points), 0))


def saddle_point(matrix: np.ndarray, border: np.ndarray) -> np.ndarray:
    return np.block([[matrix, border], [border.T, np.zeros((border.shape[1],) * 2)]])


def cell_weights(
    point: np.ndarray,
    members: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
    faded: np.ndarray | None = None,
    unit: float = 1.0,
) -> np.ndarray:
    """Weights `(M,)` of the members `(M, D)` in the prediction at one point `(D,)`.

    Fading adds 1/s^2 - 1, times the size of the kernel, to the diagonal: infinite for a member with s = 0, which is
    therefore dropped. A trend is the Lagrange multipliers of the constraints that polynomials are reproduced.
    """
    count = len(members)
    ridge = np.broadcast_to(np.asarray(ridge, dtype=float), (count,))
    faded = np.ones(count) if faded is None else faded
    weights = np.zeros(count)
    kept = faded > 0
    if not kept.any():
        # The limit: the polynomial that fits the values best.
        border, at = polynomials(members - point, trend), polynomials(np.zeros((1, len(point))), trend)[0]
        return np.linalg.pinv(border).T @ at
    members, ridge, faded = members[kept], ridge[kept], faded[kept]
    matrix = profile(distances(members, members)) + np.diag(ridge + unit * (1 / faded**2 - 1))
    cross = profile(distances(members, point[None])[:, 0])
    # Monomials of the offsets: at the point itself all are zero but the constant.
    border, at = polynomials(members - point, trend), polynomials(np.zeros((1, len(point))), trend)[0]
    weights[kept] = np.linalg.solve(saddle_point(matrix, border), np.append(cross, at))[: len(members)]
    return weights


def cell_power(
    point: np.ndarray, members: np.ndarray, weights: np.ndarray, *, profile: Profile, ridge: float | np.ndarray = 1e-9
) -> float:
    """The power function of the given weights, from its definition as a quadratic form."""
    matrix = profile(distances(members, members)) + np.diag(np.broadcast_to(np.asarray(ridge, dtype=float), (len(members),)))
    cross = profile(distances(members, point[None])[:, 0])
    at_zero = float(profile(np.zeros(1))[0])
    return math.sqrt(max(0.0, at_zero - 2 * cross @ weights + weights @ matrix @ weights))


# Local functions.


def nearest(query: np.ndarray, centers: np.ndarray, num_neighbors: int) -> np.ndarray:
    """Indices `(Q, M)` by a full sort of every row by (distance, index)."""
    found = np.empty((len(query), num_neighbors), dtype=np.int64)
    for q, z in enumerate(query):
        to_centers = np.sqrt(((centers - z) ** 2).sum(-1))
        found[q] = np.lexsort((np.arange(len(centers)), to_centers))[:num_neighbors]
    return found


def local_cardinal_weights(
    query: np.ndarray,
    centers: np.ndarray,
    indices: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
    fade: bool = False,
    unit: Callable[[float], float] = lambda radius: 1.0,
) -> np.ndarray:
    """`(Q, M)`; with `fade` the last of the M columns only sets the radius and has weight zero."""
    weights = np.zeros(indices.shape)
    for q, (z, row) in enumerate(zip(query, indices, strict=True)):
        faded, size = None, 1.0
        if fade:
            *to_members, radius = np.sqrt(((centers[row] - z) ** 2).sum(-1))
            faded, row, size = taper(np.asarray(to_members), radius), row[:-1], unit(radius)
        weights[q, : len(row)] = cell_weights(
            z, centers[row], profile=profile, ridge=_rows(ridge, row), trend=trend, faded=faded, unit=size
        )
    return weights


def local_kernel_ridge(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    indices: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
    fade: bool = False,
    unit: Callable[[float], float] = lambda radius: 1.0,
) -> np.ndarray:
    """`(Q, C)`."""
    weights = local_cardinal_weights(
        query, centers, indices, profile=profile, ridge=ridge, trend=trend, fade=fade, unit=unit
    )
    return np.stack([w @ values[row] for w, row in zip(weights, indices, strict=True)])


def local_power_function(
    query: np.ndarray,
    centers: np.ndarray,
    indices: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
    fade: bool = False,
    unit: Callable[[float], float] = lambda radius: 1.0,
) -> np.ndarray:
    """`(Q,)`."""
    weights = local_cardinal_weights(
        query, centers, indices, profile=profile, ridge=ridge, trend=trend, fade=fade, unit=unit
    )
    cells = zip(query, indices, weights, strict=True)
    return np.array([cell_power(z, centers[row], w, profile=profile, ridge=_rows(ridge, row)) for z, row, w in cells])


def local_path(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    indices: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Means `(Q, M, C)` and powers `(Q, M)`: a solve of its own for every m."""
    means, powers = [], []
    for m in range(1, indices.shape[1] + 1):
        first = indices[:, :m]
        means.append(local_kernel_ridge(query, centers, values, first, profile=profile, ridge=ridge, trend=trend))
        powers.append(local_power_function(query, centers, first, profile=profile, ridge=ridge, trend=trend))
    return np.stack(means, 1), np.stack(powers, 1)


# Dense functions: every center is a neighbor.


def cardinal_weights(
    query: np.ndarray,
    centers: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> np.ndarray:
    """`(Q, N)`."""
    return np.stack([cell_weights(z, centers, profile=profile, ridge=ridge, trend=trend) for z in query])


def kernel_ridge(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> np.ndarray:
    """`(Q, C)`."""
    return cardinal_weights(query, centers, profile=profile, ridge=ridge, trend=trend) @ values


def power_function(
    query: np.ndarray,
    centers: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> np.ndarray:
    """`(Q,)`."""
    weights = cardinal_weights(query, centers, profile=profile, ridge=ridge, trend=trend)
    return np.array([cell_power(z, centers, w, profile=profile, ridge=ridge) for z, w in zip(query, weights, strict=True)])


def leave_one_out(
    centers: np.ndarray,
    values: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """`(N, C)` by N refits, or only `rows` of it. A single center leaves nothing to predict from: its prediction is zero."""
    rows = np.arange(len(centers)) if rows is None else rows
    predictions = np.zeros((len(rows), values.shape[1]))
    for prediction, i in zip(predictions, rows, strict=True):
        rest = np.arange(len(centers)) != i
        if rest.any():
            prediction[:] = kernel_ridge(
                centers[i : i + 1], centers[rest], values[rest], profile=profile, ridge=_rows(ridge, rest), trend=trend
            )[0]
    return predictions


def rkhs_norm(
    centers: np.ndarray,
    values: np.ndarray,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> np.ndarray:
    """`(C,)`: the norm of the fitted function, one output at a time; a trend is not part of it."""
    gram = profile(distances(centers, centers))
    matrix = gram + np.diag(np.broadcast_to(np.asarray(ridge, dtype=float), (len(centers),)))
    border = polynomials(centers - centers.mean(0), trend)
    norms = []
    for y in values.T:
        rhs = np.append(y, np.zeros(border.shape[1]))
        coefficients = np.linalg.solve(saddle_point(matrix, border), rhs)[: len(centers)]
        norms.append(math.sqrt(max(0.0, coefficients @ gram @ coefficients)))
    return np.array(norms)


# Continuous forms.


def blending_weights(to_anchors: np.ndarray, radius: float) -> np.ndarray:
    """Shares `(K,)` from distances `(K,)`; those at zero take all, and equal ones share."""
    if (to_anchors == 0).any():
        shares = (to_anchors == 0).astype(float)
    elif (to_anchors >= radius).all():
        shares = np.ones(len(to_anchors))
    else:
        shares = np.maximum(radius - to_anchors, 0) ** 2 / (radius * to_anchors) ** 2
    return shares / shares.sum()


def blended_kernel_ridge(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    anchors: np.ndarray,
    num_neighbors: int,
    num_blended: int,
    *,
    profile: Profile,
    ridge: float | np.ndarray = 1e-9,
    trend: Trend = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Means `(Q, C)` and bounds `(Q,)` on the power function, from the rows of the centers that are anchors."""
    means, bounds = np.zeros((len(query), values.shape[1])), np.zeros(len(query))
    for q, z in enumerate(query):
        to_anchors = np.sqrt(((centers[anchors] - z) ** 2).sum(-1))
        order = np.lexsort((np.arange(len(anchors)), to_anchors))
        blended = order[:num_blended]
        radius = to_anchors[order[num_blended]] if num_blended < len(anchors) else 2 * to_anchors[blended[-1]]
        for share, a in zip(blending_weights(to_anchors[blended], radius), blended, strict=True):
            row = nearest(centers[anchors[a]][None], centers, num_neighbors)
            choices = {"profile": profile, "ridge": ridge, "trend": trend}
            means[q] += share * local_kernel_ridge(z[None], centers, values, row, **choices)[0]
            bounds[q] += share * local_power_function(z[None], centers, row, **choices)[0]
    return means, bounds


def coarse_kernel_ridge(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    coarse: np.ndarray,
    *,
    profile: Profile,
    fit: str = "least_squares",
    ridge: float,
    trend: Trend = None,
) -> np.ndarray:
    """Means `(Q, C)` of the coarse part, from its normal equations; `coarse` are rows of the centers."""
    points = centers[coarse]
    if fit == "interpolate":
        return cardinal_weights(query, points, profile=profile, ridge=ridge, trend=trend) @ values[coarse]
    cross, gram = profile(distances(centers, points)), profile(distances(points, points))
    free = cross - cross.mean(0)
    alpha = np.linalg.solve(free.T @ free + ridge * gram, free.T @ values)
    return profile(distances(query, points)) @ alpha + (values - cross @ alpha).mean(0)


def hierarchical_kernel_ridge(
    query: np.ndarray,
    centers: np.ndarray,
    values: np.ndarray,
    coarse: np.ndarray,
    num_neighbors: int,
    *,
    profile: Profile,
    ridge: float = 1e-9,
    trend: Trend = None,
    fit: str = "least_squares",
    coarse_ridge: float,
) -> np.ndarray:
    """Means `(Q, C)`: the coarse part, and the faded local regressors of what it leaves."""
    choices = {"profile": profile, "fit": fit, "ridge": coarse_ridge, "trend": trend}
    coarse_part = functools.partial(coarse_kernel_ridge, centers=centers, values=values, coarse=coarse, **choices)
    rows = nearest(query, centers, num_neighbors + 1)
    rest = values - coarse_part(centers)
    local = local_kernel_ridge(query, centers, rest, rows, profile=profile, ridge=ridge, trend=trend, fade=True)
    return coarse_part(query) + local


# Bounds of distances from integers.


class Parts(NamedTuple):
    """A point less the mean, y = s c + e."""

    length: float  # |y|
    scale: float  # s
    integers: np.ndarray  # c
    rest: float  # |e|


def quantized(point: np.ndarray, mean: np.ndarray) -> Parts:
    """Integers from -127 to 127, and the scale that makes the rest orthogonal to them."""
    y = point - mean
    largest = np.abs(y).max()
    integers = np.rint(y * (127 / largest)) if largest > 0 else np.zeros_like(y)
    scale = y @ integers / (integers @ integers) if largest > 0 else 0.0
    return Parts(float(np.linalg.norm(y)), float(scale), integers, float(np.linalg.norm(y - scale * integers)))


def distance_bounds(query: np.ndarray, points: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between what, `(Q, N)` each, squared distances must lie if only the parts of queries and points are known."""
    lower, upper = np.empty((2, len(query), len(points)))
    known = [quantized(point, mean) for point in points]
    for i, p in enumerate(quantized(point, mean) for point in query):
        for j, y in enumerate(known):
            product = p.scale * y.scale * (p.integers @ y.integers)
            cosine = product / (p.length * y.length) if p.length * y.length > 0 else 0.0
            sine = math.sqrt(max(0.0, 1 - cosine**2))
            width = 2 * (sine * (p.length * y.rest + y.length * p.rest) + p.rest * y.rest)
            lower[i, j] = p.length**2 + y.length**2 - 2 * product - width
            upper[i, j] = lower[i, j] + 2 * width
    return lower, upper


# A prior and kernels on what it leaves over.


class Sum(NamedTuple):
    """Every row that there is; the rows that a fit uses are picked from them."""

    features: np.ndarray | None  # (N, P) of the prior, which is ridge regression; None without one
    prior_ridge: float
    members: list[tuple[Profile, np.ndarray, float, float]]  # profile, embedded rows (N, E), ridge, share
    values: np.ndarray  # (N, C)
    weights: np.ndarray  # (N,)
    groups: np.ndarray  # (N,): rows that are left out together


def ridge_regression(problem: Sum, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`(Q, C)`: the prior fitted to some rows; weighted, its intercept not penalized; from the normal equations."""
    if problem.features is None:
        return np.zeros((len(query), problem.values.shape[1]))
    design = np.column_stack((problem.features, np.ones(len(problem.features))))
    known, weights = design[rows], problem.weights[rows, None]
    penalty = problem.prior_ridge * np.diag(np.append(np.ones(design.shape[1] - 1), 0.0))
    solution = np.linalg.solve(known.T @ (weights * known) + penalty, known.T @ (weights * problem.values[rows]))
    return design[query] @ solution


def prior_and_kernels(problem: Sum, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`(Q, C)`: fitted to some rows, of which each is left out of the prior, with its group, for its own residual."""
    rest = np.zeros((len(rows), problem.values.shape[1]))
    for group in np.unique(problem.groups[rows]):
        own = problem.groups[rows] == group
        rest[own] = problem.values[rows[own]] - ridge_regression(problem, rows[own], rows[~own])
    prediction = ridge_regression(problem, query, rows)
    for profile, points, ridge, share in problem.members:
        choices = {"profile": profile, "ridge": ridge / problem.weights[rows], "trend": "constant"}
        prediction = prediction + share * kernel_ridge(points[query], points[rows], rest, **choices)
    return prediction


def leave_out_of_sum(problem: Sum) -> np.ndarray:
    """`(N, C)`: every row predicted by a fit without its group."""
    predictions = np.zeros_like(problem.values)
    for group in np.unique(problem.groups):
        out = problem.groups == group
        predictions[out] = prior_and_kernels(problem, out.nonzero()[0], (~out).nonzero()[0])
    return predictions


def _rows(ridge: float | np.ndarray, rows: np.ndarray) -> float | np.ndarray:
    return ridge[rows] if isinstance(ridge, np.ndarray) and ridge.ndim else ridge
