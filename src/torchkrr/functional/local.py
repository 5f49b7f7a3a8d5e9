r"""Local kernel ridge regression: the paper's sparse kernel.

The prediction at a query uses only its nearest centers. The neighbor indices are an argument: they are piecewise constant
in the query and in the centers, so they carry no gradient, and finding them is the business of `torchkrr.neighbors`.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

from torch import Tensor

from .._checks import check_indices, check_values
from .._tensors import full_precision
from ..core import local, traced
from ..core.options import Kind, LocalOptions, Normalize, OnSingular, SolveOptions, Trend, with_options_of
from ..distances import safe_sqrt
from ..errors import InputError, ShapeError
from ..kernels import Kernel
from ..native import NO_MEMORY, Backend, chosen


class Path(NamedTuple):
    """Predictions and power functions for every number of neighbors up to M."""

    means: Tensor  # (Q, M, C)
    powers: Tensor  # (Q, M)


def local_kernel_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    neighbor_indices: Tensor,
    *,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    trend: Trend = None,
    fade: bool = False,
    normalize: Normalize = None,
    on_singular: OnSingular = "warn",
    backend: Backend = "auto",
) -> Tensor:
    r"""Kernel ridge regression on the neighbors of each query.

    For a query $z$ with neighbors $\sigma(z)$ this is

    $$ k(z, x^\sigma)\,\bigl(k(x^\sigma, x^\sigma) + \lambda I\bigr)^{-1} y^\sigma, $$

    with $x$ the centers, $y$ the values and $\lambda$ the ridge. Differentiable, twice, in the first three arguments, in the
    parameters of `kernel` and in `ridge`. Continuous inside a cell of constant $\sigma$, in general discontinuous across
    cells; `fade=True` makes it continuous.

    Equivalent to

        rows = []
        for z, row in zip(query, neighbor_indices):
            x, y = centers[row], values[row]
            gram = kernel(x, x) + ridge * torch.eye(len(x))
            rows.append(kernel(z[None], x) @ torch.linalg.solve(gram, y))
        result = torch.cat(rows)

    Args:
        query: points to predict at.
        centers: points the regressor is built on.
        values: values at the centers.
        neighbor_indices: for each query the rows of `centers` to use, nearest first (`neighbors.nearest`).
        kernel: positive definite kernel, or one that is so with the trend given.
        ridge: non-negative number or 0-d tensor added to the diagonal, or one per center, shape `(N,)`.
        trend: `"constant"` makes the weights sum to one, so that constants are reproduced (ordinary kriging); `"linear"`, or
            the degree of a polynomial in the embedded features, reproduces polynomials up to that degree (universal
            kriging). Neighbors that do not determine the polynomial give the one of the smallest norm and a `TrendWarning`,
            or raise `SolveError`.
        fade: let the influence of a neighbor fall to zero before it leaves the list. The last column of
            `neighbor_indices` then only sets the radius: pass M + 1 columns to use M neighbors. The fading ring, the
            outer quarter of them, needs M of at least 4, and distances that are not all equal.
        normalize: `"cell"` divides all distances of a neighborhood by the root mean square distance of its members to the
            query, so that the kernel is as wide as the centers are apart there. A common lengthscale cancels. Not for
            queries far outside: their distances are all near one, so that the power function does not tend to one; nor
            without a trend for kernels that vanish from one on (`Wendland`).
        on_singular: cells that stay singular in float64 are solved with a larger ridge and a `RidgeRaisedWarning`, or
            raise `SolveError`.
        backend: `"fused"` is compiled and several times faster; `"torch"` runs anywhere; `"auto"` takes the first where it
            can (see `torchkrr.backend_report`). The same numbers up to rounding.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; values: `(N, C)`; neighbor_indices: `(Q, M)`
        - output: `(Q, C)`

    Example:
        >>> x, y, z = torch.rand(50, 2), torch.rand(50, 1), torch.rand(3, 2)
        >>> indices = torchkrr.neighbors.nearest(z, x, 8)
        >>> local_kernel_ridge(z, x, y, indices, kernel=Exponential()).shape
        torch.Size([3, 1])
    """
    check_values(values)
    options = SolveOptions(kernel, ridge, trend, fade, normalize, on_singular, backend)
    mean, _ = solve_local(query, centers, values, neighbor_indices, options, "mean")
    return mean


@with_options_of(local_kernel_ridge)
def local_cardinal_weights(
    query: Tensor, centers: Tensor, neighbor_indices: Tensor, *, kernel: Kernel, **options: Unpack[LocalOptions]
) -> Tensor:
    r"""The weight of each neighbor's value in the prediction, $\psi = k(z, x^\sigma)(k(x^\sigma, x^\sigma)+\lambda I)^{-1}$.

    Equivalent to

        gathered = centers[neighbor_indices]
        gram = kernel(gathered, gathered) + ridge * torch.eye(neighbor_indices.shape[1])
        cross = kernel(gathered, query[:, None])
        result = torch.linalg.solve(gram, cross).squeeze(-1)

    Arguments as in `local_kernel_ridge`. With `fade` the weight of the last column is zero.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; neighbor_indices: `(Q, M)`
        - output: `(Q, M)`, column by column the weight of `neighbor_indices`

    Example:
        >>> x, z = torch.rand(50, 2), torch.rand(3, 2)
        >>> indices = torchkrr.neighbors.nearest(z, x, 8)
        >>> weights = local_cardinal_weights(z, x, indices, kernel=Exponential(), trend="constant")
        >>> bool(torch.allclose(weights.sum(1), torch.ones(3)))
        True
    """
    weights, _ = solve_local(query, centers, None, neighbor_indices, SolveOptions(kernel, **options), "weights")
    return weights


@with_options_of(local_kernel_ridge)
def local_power_function(
    query: Tensor, centers: Tensor, neighbor_indices: Tensor, *, kernel: Kernel, **options: Unpack[LocalOptions]
) -> Tensor:
    r"""The local error indicator $\epsilon_k^\sigma$, how far a query is from being determined by its neighbors.

    $$ \epsilon^2 = 1 - 2k^\top w + w^\top(K+\lambda I)w $$

    for the weights $w$ actually used; $1 - k^\top w$ without trend and fade, where it lies in $[0, 1]$. Zero at a center (up
    to the ridge), one far away from all. Clamped at zero, with zero gradient there.

    Equivalent to

        weights = torchkrr.functional.local_cardinal_weights(query, centers, neighbor_indices, kernel=kernel, ridge=ridge)
        cross = kernel(query[:, None], centers[neighbor_indices]).squeeze(1)
        result = (1 - (cross * weights).sum(1)).clamp_min(0).sqrt()

    Arguments as in `local_kernel_ridge`.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; neighbor_indices: `(Q, M)`
        - output: `(Q,)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> z = torch.tensor([[1.0], [50.0]])
        >>> local_power_function(z, x, torchkrr.neighbors.nearest(z, x, 2), kernel=Exponential(), ridge=0.0)
        tensor([0., 1.])
    """
    _, power = solve_local(query, centers, None, neighbor_indices, SolveOptions(kernel, **options), "mean")
    return power


@with_options_of(local_kernel_ridge)
def local_path(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    neighbor_indices: Tensor,
    *,
    kernel: Kernel,
    **options: Unpack[LocalOptions],
) -> Path:
    r"""Predictions and power functions with the first $m$ neighbors, for every $m \le M$, from one factorization.

    With $l = L^{-1}k$ and $V = L^{-1}y$ the mean with $m$ neighbors is $\sum_{j\le m} l_j V_j$ and
    $\epsilon_m^2 = 1 - \sum_{j\le m} l_j^2$.

    Equivalent to

        functional = torchkrr.functional
        means, powers = [], []
        for m in range(1, neighbor_indices.shape[1] + 1):
            first = neighbor_indices[:, :m]
            means.append(functional.local_kernel_ridge(query, centers, values, first, kernel=kernel, ridge=ridge))
            powers.append(functional.local_power_function(query, centers, first, kernel=kernel, ridge=ridge))
        result = torch.stack(means, 1), torch.stack(powers, 1)

    Arguments as in `local_kernel_ridge`, except that `fade` and `normalize` must be off: their radius moves with $m$.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; values: `(N, C)`; neighbor_indices: `(Q, M)`, nearest first
        - means: `(Q, M, C)`; powers: `(Q, M)`

    Example:
        >>> x, y, z = torch.rand(50, 2), torch.rand(50, 1), torch.rand(3, 2)
        >>> means, powers = local_path(z, x, y, torchkrr.neighbors.nearest(z, x, 8), kernel=Exponential())
        >>> means.shape, powers.shape
        (torch.Size([3, 8, 1]), torch.Size([3, 8]))
    """
    if options.get("fade") or options.get("normalize") is not None:
        what, size = ("fade", "fading radius") if options.get("fade") else ("normalize", "size of the neighborhood")
        raise InputError(
            f"local_path cannot {what}: the {size} moves with the number of neighbors. "
            "Call local_kernel_ridge once for each number of neighbors instead."
        )
    check_values(values)
    means, powers = solve_local(query, centers, values, neighbor_indices, SolveOptions(kernel, **options), "path")
    return Path(means, powers)


@full_precision
def solve_local(
    query: Tensor,
    centers: Tensor,
    values: Tensor | None,
    neighbor_indices: Tensor,
    options: SolveOptions,
    kind: Kind = "mean",
) -> tuple[Tensor, Tensor]:
    """Check the arguments; the mean, weights or path, and the power function with it."""
    values = options.check_problem(query, centers, values)
    if kind == "path" and options.bordered:
        raise InputError(
            f"local_path cannot follow trend={options.trend!r} with {type(options.kernel).__name__}: the first neighbors do "
            "not determine its polynomial. Call local_kernel_ridge once for each number of neighbors instead."
        )
    check_indices("neighbor_indices", neighbor_indices, query.shape[0], centers)
    if options.fade and neighbor_indices.shape[1] < 2:
        raise ShapeError(
            "fade=True needs at least two columns of neighbor_indices, got 1: the last one only sets the radius. "
            "Search num_neighbors + 1 neighbors."
        )
    first, power_squared = dispatch_local(query, centers, values, neighbor_indices.long(), options, kind)
    return first.to(query.dtype), safe_sqrt(power_squared.clamp_min(0)).to(query.dtype)


def dispatch_local(
    query: Tensor, centers: Tensor, values: Tensor, indices: Tensor, options: SolveOptions, kind: Kind
) -> tuple[Tensor, Tensor]:
    """The result of `kind` and the squared power function, for tensors that have been checked, in any state of torch."""
    state = options.state(query, centers, values)
    if state == "plain":
        return local.solve_local(query, centers, values, indices, options, kind)
    if state == "transformed":
        chosen(options.backend, NO_MEMORY, "solve this")  # an error where the compiled solver was asked for
    solve = traced.symbolic_local if state == "symbolic" else traced.transformed_local
    return solve(query, centers, values, indices, options, kind)
