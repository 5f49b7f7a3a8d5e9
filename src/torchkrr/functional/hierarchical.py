r"""Hierarchical regression: a coarse part for all, and a local correction that fades before its neighbors leave.

The coarse part $y^0$ is kernel ridge regression on a few points that are spread out. The faded local regressor of what it
leaves over, $y - y^0(x)$, is added. Both are continuous, so their sum is. Coarse points and neighbors are arguments: they
are piecewise constant, so they carry no gradient.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from .._checks import check_choice, check_finite, check_index_list, check_ridge, check_values, degree_of
from .._chunking import SEARCH_BYTES, collect, ranges, rows_per_chunk
from .._tensors import any_requires_grad, full_precision, is_plain, working_dtype
from ..core.least_squares import RidgeSpectrum, inverse_root
from ..core.options import BackendOptions, SolveOptions, Trend, with_options_of
from ..core.trust import value_sizes
from ..distances import squared_distances
from ..errors import InputError
from ..kernels import Kernel
from .local import dispatch_local, solve_local
from .ridge import kernel_ridge

Coarse = Literal["least_squares", "interpolate"]
COARSE_RIDGES = {"least_squares": 0.1, "interpolate": 1e-9}  # the default of each


class CoarsePart(NamedTuple):
    """Kernel ridge regression on coarse points, as the kernel expansion it is."""

    points: Tensor  # (n, D), as given
    table: Tensor  # (n + 1, C), float64: the coefficients, and below them the constant

    def predict(self, query: Tensor, kernel: Kernel) -> Tensor:
        """`(Q, D)` to `(Q, C)`, in float64: what is left over may be small beside the values."""
        points = kernel.embed(self.points.double())
        differentiated = has_derivatives(query, points, self.table, kernel=kernel)
        with_grad = differentiated and torch.is_grad_enabled()  # which workers do not know

        def work(rows: slice) -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(with_grad):
                cross = kernel.of_squared(squared_distances(kernel.embed(query[rows].double()), points))
                return (torch.addmm(self.table[-1], cross, self.table[:-1]),)

        if differentiated or not len(query):
            return work(slice(None))[0]
        chunks = ranges(len(query), rows_per_chunk(32 * (len(points) + points.shape[1]), SEARCH_BYTES))
        return collect(work, chunks, query.device)[0]

    def residuals(self, centers: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
        """What is left of the values, `(N, C)`, in the working dtype."""
        return (values.double() - self.predict(centers, kernel)).to(working_dtype(values.dtype))


@with_options_of(kernel_ridge)
@full_precision
def hierarchical_kernel_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    coarse_indices: Tensor,
    neighbor_indices: Tensor,
    *,
    kernel: Kernel,
    coarse: Coarse = "least_squares",
    coarse_ridge: float | None = None,
    fade: bool = True,
    **options: Unpack[BackendOptions],
) -> Tensor:
    r"""Coarse kernel ridge regression, plus the faded local one of what it leaves over.

    $$ y^0(z) + P_{\sigma(z)}\bigl(x, y - y^0(x)\bigr)(z), $$

    $P$ the regressor of `local_kernel_ridge` with `fade=True`, and $y^0$ the function $k(z, x^0)\,\alpha + c$ of the coarse
    points $x^0$ for which $\sum_i |y^0(x_i) - y_i|^2 + \lambda |k(\cdot, x^0)\,\alpha|_k^2$ is least. Continuous everywhere,
    and with a small ridge it interpolates the values. Differentiable, twice, in the first three arguments, in the parameters
    of `kernel` and in `ridge`; with gradients of centers or values the coarse fit takes memory for N n numbers, else it
    works in blocks of rows. If every center is a coarse point, it is `kernel_ridge`.

    Equivalent to

        points = centers[coarse_indices]
        cross, gram = kernel(centers, points), kernel(points, points)
        free = cross - cross.mean(0)
        alpha = torch.linalg.solve(free.T @ free + 0.1 * gram, free.T @ values)
        constant = (values - cross @ alpha).mean(0)
        rest = values - cross @ alpha - constant
        local = torchkrr.functional.local_kernel_ridge(
            query, centers, rest, neighbor_indices, kernel=kernel, ridge=ridge, fade=True
        )
        result = kernel(query, points) @ alpha + constant + local

    Args:
        query: points to predict at.
        centers: points the regressor is built on.
        values: values at the centers.
        coarse_indices: rows of `centers` that are coarse points, no two the same point, for instance by `farthest_points`.
        neighbor_indices: for each query its nearest rows of `centers`, nearest first; the last column only sets the radius
            of the fading.
        kernel: positive definite kernel, of both parts.
        coarse: `"least_squares"` fits $y^0$ to all values (subset of regressors). `"interpolate"` is `kernel_ridge` on the
            coarse points alone.
        coarse_ridge: $\lambda$, the variance of the noise over that of the function; scale and number of the values do not
            matter. `None` is 1e-9 for `"interpolate"` and 0.1 for least squares: on features of pictures and sentences the
            coarse part alone is best between 0.3 and 1, but the sum is best at 0.1, and within 0.3 points of that up to 3.
        fade: `False` where `neighbor_indices` names every center, so that none can leave.
        ridge, trend, on_singular, backend: as in `local_kernel_ridge`. The trend is one of both parts.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; values: `(N, C)`
        - coarse_indices: `(n,)`; neighbor_indices: `(Q, M + 1)`
        - output: `(Q, C)`

    Example:
        >>> x, y, z = torch.rand(50, 2), torch.rand(50, 1), torch.rand(3, 2)
        >>> coarse, near = torchkrr.functional.farthest_points(x, 10), torchkrr.neighbors.nearest(z, x, 9)
        >>> hierarchical_kernel_ridge(z, x, y, coarse, near, kernel=Exponential()).shape
        torch.Size([3, 1])
    """
    check_values(values)
    solve_options = SolveOptions(kernel, fade=fade, **options)
    solve_options.check_problem(query, centers, values)
    check_index_list("coarse_indices", coarse_indices, centers)
    check_coarse(coarse, coarse_ridge)
    check_both_parts(kernel, solve_options.trend)
    if len(coarse_indices) == len(centers):
        return kernel_ridge(query, centers, values, kernel=kernel, **options)
    part = fit_coarse(centers, values, coarse_indices, solve_options, coarse, coarse_ridge)
    dtype, solve_options = working_dtype(values.dtype), solve_options.but(value_scale=size_of_values(values))
    rest = part.residuals(centers, values, kernel)
    correction, _ = solve_local(query.to(dtype), centers.to(dtype), rest, neighbor_indices, solve_options)
    return (part.predict(query, kernel) + correction).to(query.dtype)


def fit_coarse(
    centers: Tensor,
    values: Tensor,
    coarse_indices: Tensor,
    options: SolveOptions,
    coarse: Coarse,
    coarse_ridge: float | None,
) -> CoarsePart:
    """The coarse part, with gradients where they are asked for."""
    check_finite("centers", centers)
    check_finite("values", values)
    ridge = COARSE_RIDGES[coarse] if coarse_ridge is None else float(coarse_ridge)
    points = centers.index_select(0, coarse_indices.long())
    if coarse == "least_squares":
        return CoarsePart(points, _least_squares(points.double(), centers, values.double(), options.kernel, ridge))
    # The coefficients serve queries not yet known, whose weights may be of any size.
    options = options.but(ridge=ridge, fade=False, least_norm=len(points) ** 0.5)
    everyone = torch.arange(len(points), device=points.device).unsqueeze(0)
    own = values.index_select(0, coarse_indices.long())
    table, _ = dispatch_local(points[:1].double(), points.double(), own.double(), everyone, options, "coefficients")
    return CoarsePart(points, table.squeeze(0))


def check_both_parts(kernel: Kernel, trend: Trend) -> None:
    """A kernel and a trend that the coarse part can have too."""
    if kernel.order > 0 or degree_of(trend) > 0:
        raise InputError(
            "The coarse part has no polynomial trend, so the hierarchical form takes a positive definite kernel and "
            f'trend=None or "constant", got {type(kernel).__name__} and trend={trend!r}. Use LocalKernelRidge(fade=True).'
        )


def check_coarse(coarse: Coarse, coarse_ridge: float | None) -> None:
    check_choice("coarse", coarse, tuple(COARSE_RIDGES))
    if isinstance(coarse_ridge, Tensor):
        raise InputError("coarse_ridge is a number, for it is not learned. Use coarse_ridge.item().")
    if coarse_ridge is not None:
        check_ridge(coarse_ridge)


def has_derivatives(*tensors: Tensor, kernel: Kernel) -> bool:
    """Whether autograd or `torch.func` is watching one of the tensors, or the kernel."""
    tensors = *tensors, *kernel.parameters(), *kernel.buffers()
    return any_requires_grad(*tensors) or not is_plain(*tensors)


def size_of_values(values: Tensor) -> Tensor:
    """The size `(C,)` of what is predicted: that of the values about their middle, not of what the coarse part leaves."""
    return value_sizes(values.detach(), trend=True)


def _least_squares(points: Tensor, centers: Tensor, values: Tensor, kernel: Kernel, ridge: float) -> Tensor:
    """Coefficients and constant, `(n + 1, C)`: ridge regression on features whose inner products are the kernel's."""
    fixed = points.detach()
    with torch.no_grad():
        basis = inverse_root(kernel(fixed, fixed).detach())

        def features(rows: slice | Tensor) -> Tensor:
            cross: Tensor = kernel(centers[rows].detach().double(), fixed).detach()
            return cross @ basis

        spectrum = RidgeSpectrum(features, values.detach())
        fit = spectrum.solve(ridge)
        coefficients = basis @ fit.coefficients
    if not has_derivatives(points, values, kernel=kernel):
        return torch.cat((coefficients, fit.intercept.unsqueeze(0)))
    # Steps of Newton's method at the solution: they do not move it, but each adds one order of derivatives.
    inverse = basis @ spectrum.inverse(ridge) @ basis.T
    cross, gram = kernel(centers.double(), points), kernel(points, points)
    for _ in range(2):
        rest = values - cross @ coefficients
        coefficients = coefficients + inverse @ (cross.T @ (rest - rest.mean(0)) - ridge * (gram @ coefficients))
    return torch.cat((coefficients, (values - cross @ coefficients).mean(0, keepdim=True)))
