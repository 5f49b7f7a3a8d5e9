r"""Dense kernel ridge regression on every center, with any leading batch dimensions.

With $A = k(x, x) + \lambda I$ and $w(z) = A^{-1}k(x, z)$, the prediction is $w^\top y$, the power function
$\sqrt{1 - k(z, x)\,w}$, and leaving a center out costs no refit.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from .._checks import check_choice, check_finite, check_points, check_trend, check_values
from .._tensors import full_precision
from ..core import compiled, traced
from ..core.dense import DenseKind, solve_dense
from ..core.options import DenseOptions, OnSingular, SolveOptions, Trend, with_options_of
from ..distances import safe_sqrt
from ..errors import InputError
from ..kernels import Kernel
from ..native import Backend, chosen


@full_precision
def kernel_ridge(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    *,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    trend: Trend = None,
    on_singular: OnSingular = "warn",
    backend: Backend = "auto",
) -> Tensor:
    r"""Kernel ridge regression, $k(z, x)\,(k(x, x) + \lambda I)^{-1} y$.

    Differentiable, twice, in the first three arguments, in the parameters of `kernel` and in `ridge`.

    Equivalent to

        gram = kernel(centers, centers) + ridge * torch.eye(centers.shape[-2])
        result = kernel(query, centers) @ torch.linalg.solve(gram, values)

    Args:
        query: points to predict at.
        centers: points the regressor is built on.
        values: values at the centers.
        kernel: positive definite kernel, or one that is so with the trend given.
        ridge: non-negative number or 0-d tensor added to the diagonal, or one per center, shape `(N,)`.
        trend: `"constant"` makes the weights sum to one, so that constants are reproduced (ordinary kriging); `"linear"`, or
            the degree of a polynomial, reproduces polynomials up to that degree (universal kriging). Centers that do not
            determine the polynomial give the one of the smallest norm and a `TrendWarning`, or raise `SolveError`.
        on_singular: what stays singular in float64 is solved with a larger ridge and a `RidgeRaisedWarning`, or raises
            `SolveError`.
        backend: `"auto"` solves small problems on the CPU by the compiled library, where there is one; `"torch"` never
            does, and `"fused"` is an error where it cannot. What the library does not surely resolve is solved by torch,
            whichever is asked for.

    Shape:
        - query: `(*, Q, D)`; centers: `(*, N, D)`; values: `(*, N, C)`
        - output: `(*, Q, C)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> kernel_ridge(x, x, torch.tensor([[5.0], [7.0]]), kernel=Exponential()).round(decimals=5)
        tensor([[5.],
                [7.]])
    """
    check_trend(trend)
    check_choice("on_singular", on_singular, ("warn", "raise"))
    check_choice("backend", backend, ("auto", "fused", "torch"))
    obstacle = compiled.dense_obstacle(query, centers, values, kernel, ridge, trend)
    if backend == "torch" or obstacle is not None:  # else they are known to be right
        check_values(values, batched=True)
    is_empty = isinstance(query, Tensor) and query.numel() == 0
    if not is_empty and chosen(backend, obstacle, "solve this"):
        found = compiled.dense_mean(query, centers, values, kernel=kernel, ridge=float(ridge))
        if found is not None:
            return found
    return _solve("mean", query, centers, values, kernel, ridge, trend, on_singular)


@full_precision
def _solve(
    kind: DenseKind,
    query: Tensor | None,
    centers: Tensor,
    values: Tensor | None,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    trend: Trend = None,
    on_singular: OnSingular = "warn",
) -> Tensor:
    options = SolveOptions(kernel, ridge, trend, on_singular=on_singular)
    query = centers if query is None else query
    values = options.check_problem(query, centers, values, batched=True)
    check_finite("centers", centers)
    check_finite("values", values)
    state = options.state(query, centers, values)
    if state == "plain":
        result = solve_dense(kind, query, centers, values, options)
    else:
        solve = traced.symbolic_dense if state == "symbolic" else traced.transformed_dense
        result = solve(kind, query, centers, values, options)
    return result.to(query.dtype)


@with_options_of(_solve)
def cardinal_weights(query: Tensor, centers: Tensor, *, kernel: Kernel, **options: Unpack[DenseOptions]) -> Tensor:
    r"""The weight of each center's value in the prediction, $\psi(z) = k(z, x)\,(k(x, x) + \lambda I)^{-1}$.

    At ridge 0 and at the centers this is the identity: the cardinal (Lagrange) basis.

    Equivalent to

        gram = kernel(centers, centers) + ridge * torch.eye(centers.shape[-2])
        result = torch.linalg.solve(gram, kernel(centers, query)).mT

    Arguments as in `kernel_ridge`.

    Shape:
        - query: `(*, Q, D)`; centers: `(*, N, D)`
        - output: `(*, Q, N)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> cardinal_weights(x, x, kernel=Exponential(), ridge=0.0).round(decimals=5).abs()
        tensor([[1., 0.],
                [0., 1.]])
    """
    return _solve("weights", query, centers, None, kernel, **options)


@with_options_of(_solve)
def power_function(query: Tensor, centers: Tensor, *, kernel: Kernel, **options: Unpack[DenseOptions]) -> Tensor:
    r"""The error indicator $\epsilon_k(z) = \sqrt{1 - k(z, x)\,(k(x, x) + \lambda I)^{-1}k(x, z)}$.

    The standard deviation of a Gaussian process with this kernel. With a constant trend $(1-b)^2/c$ joins under the root,
    with $b = 1^\top w$ and $c = 1^\top A^{-1} 1$; in general it is $\varphi(0) - 2k^\top w + w^\top A w$ for the weights
    used. Clamped at zero, with zero gradient there.

    Equivalent to

        weights = torchkrr.functional.cardinal_weights(query, centers, kernel=kernel, ridge=ridge)
        result = (1 - (weights * kernel(query, centers)).sum(-1)).clamp_min(0).sqrt()

    Arguments as in `kernel_ridge`.

    Shape:
        - query: `(*, Q, D)`; centers: `(*, N, D)`
        - output: `(*, Q)`

    Example:
        >>> power_function(torch.tensor([[0.0], [9e9]]), torch.tensor([[0.0]]), kernel=Exponential(), ridge=0.0)
        tensor([0., 1.])
    """
    squared = _solve("power", query, centers, None, kernel, **options)
    return safe_sqrt(squared.clamp_min(0))


@with_options_of(_solve)
def leave_one_out(centers: Tensor, values: Tensor, *, kernel: Kernel, **options: Unpack[DenseOptions]) -> Tensor:
    r"""The prediction at each center from all the others, in closed form: $y_i - [A^{-1}y]_i / [A^{-1}]_{ii}$.

    Equivalent to

        rows = []
        for i in range(len(centers)):
            rest = torch.arange(len(centers)) != i
            rows.append(torchkrr.functional.kernel_ridge(
                centers[i : i + 1], centers[rest], values[rest], kernel=kernel, ridge=ridge
            ))
        result = torch.cat(rows)

    Arguments as in `kernel_ridge`.

    Shape:
        - centers: `(*, N, D)`; values: `(*, N, C)`
        - output: `(*, N, C)`

    Example:
        >>> x = torch.tensor([[0.0], [0.1], [0.2]])
        >>> leave_one_out(x, torch.tensor([[0.0], [1.0], [2.0]]), kernel=Exponential()).squeeze()
        tensor([0.9048, 0.9950, 0.9048])
    """
    check_points("centers", centers, batched=True)
    check_values(values, batched=True)
    if options.get("trend") is not None and centers.shape[-2] < 2:
        raise InputError("leave_one_out with a trend needs at least two centers, got 1. Use trend=None.")
    return _solve("leave_one_out", None, centers, values, kernel, **options)


@with_options_of(_solve)
def rkhs_norm(centers: Tensor, values: Tensor, *, kernel: Kernel, **options: Unpack[DenseOptions]) -> Tensor:
    r"""The norm of the fitted function, $\sqrt{\alpha^\top K\alpha}$ with $\alpha = (K+\lambda I)^{-1}y$, for each output.

    A lower estimate of the norm of the function the values came from.

    Equivalent to

        gram = kernel(centers, centers)
        alpha = torch.linalg.solve(gram + ridge * torch.eye(centers.shape[-2]), values)
        result = (alpha * (gram @ alpha)).sum(-2).sqrt()

    Arguments as in `kernel_ridge`.

    Shape:
        - centers: `(*, N, D)`; values: `(*, N, C)`
        - output: `(*, C)`

    Example:
        >>> rkhs_norm(torch.tensor([[0.0]]), torch.tensor([[2.0]]), kernel=Exponential(), ridge=0.0)
        tensor([2.])
    """
    check_values(values, batched=True)
    squared = _solve("norm", None, centers, values, kernel, **options)
    return safe_sqrt(squared.clamp_min(0))
