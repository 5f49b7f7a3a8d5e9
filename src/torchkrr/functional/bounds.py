r"""Pointwise error bounds and norms.

For $f$ in the space of the kernel and data without noise, $|f(z) - f_k(z)| \le \epsilon_k(z)\,\|f\|$, and on each cell
the same holds with the local power function. The norm of $f$ is the caller's to give. The norm of the *fitted* function is
a lower estimate of it, so a bound made with that one is only an indicator, and is named so.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from .._checks import check_finite, check_indices, check_positive, check_scalar, check_values
from .._chunking import SEARCH_BYTES, rows_per_chunk
from .._tensors import as_double, full_precision
from ..core.dense import solve_dense
from ..core.options import DenseOptions, OnSingular, SolveOptions, with_options_of
from ..distances import safe_sqrt
from ..kernels import Kernel
from .local import local_power_function
from .ridge import power_function, rkhs_norm


@with_options_of(power_function)
def error_bound(
    query: Tensor, centers: Tensor, *, kernel: Kernel, norm: float | Tensor, **options: Unpack[DenseOptions]
) -> Tensor:
    r"""The bound $\epsilon_k(z)\,\|f\|$ on the error of the dense interpolant of a function of known norm.

    Equivalent to

        result = torchkrr.functional.power_function(query, centers, kernel=kernel, ridge=ridge) * norm

    Args:
        query: points to bound the error at.
        centers: points where the function is known.
        kernel: kernel whose space holds the function.
        norm: norm of the function in that space, a positive number or 0-d tensor.
        ridge, trend, on_singular: as in `kernel_ridge`; the bound holds for the weights that these give.

    Shape:
        - query: `(*, Q, D)`; centers: `(*, N, D)`
        - output: `(*, Q)`

    Example:
        >>> error_bound(torch.tensor([[0.0], [99.0]]), torch.tensor([[0.0]]), kernel=Exponential(), norm=2.0, ridge=0.0)
        tensor([0., 2.])
    """
    _check_norm(norm)
    return power_function(query, centers, kernel=kernel, **options) * norm


@with_options_of(power_function)
def local_error_bound(
    query: Tensor,
    centers: Tensor,
    neighbor_indices: Tensor,
    *,
    kernel: Kernel,
    norm: float | Tensor,
    **options: Unpack[DenseOptions],
) -> Tensor:
    r"""The bound $\epsilon_k^\sigma(z)\,\|f\|$ on the error of the local interpolant of a function of known norm.

    Equivalent to

        result = torchkrr.functional.local_power_function(
            query, centers, neighbor_indices, kernel=kernel, ridge=ridge
        ) * norm

    Arguments as in `error_bound` and `local_kernel_ridge`.

    Shape:
        - query: `(Q, D)`; centers: `(N, D)`; neighbor_indices: `(Q, M)`
        - output: `(Q,)`

    Example:
        >>> x, z = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0]])
        >>> local_error_bound(z, x, torch.tensor([[0]]), kernel=Exponential(), norm=2.0, ridge=0.0)
        tensor([0.])
    """
    _check_norm(norm)
    return local_power_function(query, centers, neighbor_indices, kernel=kernel, **options) * norm


def error_indicator(
    query: Tensor,
    centers: Tensor,
    values: Tensor,
    *,
    kernel: Kernel,
    ridge: float | Tensor = 1e-9,
    on_singular: OnSingular = "warn",
) -> Tensor:
    r"""Power function times the norm of the *fitted* function, per output: an indicator, not a bound.

    Equivalent to

        power = torchkrr.functional.power_function(query, centers, kernel=kernel, ridge=ridge)
        result = power[..., None] * torchkrr.functional.rkhs_norm(centers, values, kernel=kernel, ridge=ridge)

    Arguments as in `kernel_ridge`.

    Shape:
        - query: `(*, Q, D)`; centers: `(*, N, D)`; values: `(*, N, C)`
        - output: `(*, Q, C)`

    Example:
        >>> x = torch.tensor([[0.0]])
        >>> error_indicator(torch.tensor([[99.0]]), x, torch.tensor([[3.0]]), kernel=Exponential(), ridge=0.0)
        tensor([[3.]])
    """
    choices: dict[str, Any] = {"kernel": kernel, "ridge": ridge, "on_singular": on_singular}
    return power_function(query, centers, **choices).unsqueeze(-1) * rkhs_norm(centers, values, **choices).unsqueeze(-2)


@with_options_of(power_function)
@full_precision
def local_rkhs_norm(
    centers: Tensor, values: Tensor, neighbor_indices: Tensor, *, kernel: Kernel, **options: Unpack[DenseOptions]
) -> Tensor:
    r"""The norm of $\mathcal H_k^M$ over the cells met, $\sqrt{\sum_\sigma \|y_k^\sigma\|^2}$, each cell once, per output.

    Equivalent to

        cells = {tuple(sorted(row)): row for row in neighbor_indices.tolist()}
        norms = [
            torchkrr.functional.rkhs_norm(centers[row], values[row], kernel=kernel, ridge=ridge) for row in cells.values()
        ]
        result = torch.stack(norms).square().sum(0).sqrt()

    Arguments as in `local_kernel_ridge`; `neighbor_indices` are those of the query set that meets the cells.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; neighbor_indices: `(Q, M)`
        - output: `(C,)`

    Example:
        >>> x, y = torch.tensor([[0.0], [9e9]]), torch.tensor([[3.0], [4.0]])
        >>> local_rkhs_norm(x, y, torch.tensor([[0], [1], [1]]), kernel=Exponential(), ridge=0.0)
        tensor([5.])
    """
    check_values(values)
    solve_options = SolveOptions(kernel, **options)
    solve_options.check_problem(centers, centers, values)
    check_indices("neighbor_indices", neighbor_indices, None, centers)
    check_finite("values", values)
    ridge = as_double(solve_options.ridge, centers.device)
    cells = torch.unique(neighbor_indices.long().sort(dim=1).values, dim=0)  # (cells, M)
    width = cells.shape[1]
    row_bytes = width * (4 * width + 2 * centers.shape[1] + 3 * values.shape[1]) * centers.element_size()
    total = torch.zeros((), device=centers.device)
    for members in cells.split(rows_per_chunk(row_bytes, SEARCH_BYTES)):
        local = centers[members]  # (cells, M, D)
        own = solve_options.but(ridge=ridge[members] if ridge.ndim else ridge)
        squared = solve_dense("norm", local, local, values[members], own)  # (cells, C)
        total = total + squared.clamp_min(0).sum(0)
    return safe_sqrt(total).to(centers.dtype)


def _check_norm(norm: Any) -> None:
    check_positive("norm", norm)
    check_scalar("norm", norm)
