"""Local leave-one-out: each row predicted from the others, so that a query never sees its own value."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from .._checks import check_alike, check_count, check_finite, check_index_list, check_points, check_same_rows, check_values
from ..core.options import LocalOptions, SolveOptions, with_options_of
from ..errors import ShapeError
from ..kernels import Kernel
from ..neighbors import nearest
from .local import local_kernel_ridge, solve_local


class LeftOut(NamedTuple):
    """Rows predicted without themselves."""

    rows: Tensor  # (n,) which rows
    means: Tensor  # (n, C) their predictions
    powers: Tensor  # (n,) their power functions
    neighbor_indices: Tensor  # (n, M) what they were predicted from


@with_options_of(local_kernel_ridge)
def local_leave_one_out(
    centers: Tensor,
    values: Tensor,
    num_neighbors: int,
    *,
    kernel: Kernel,
    rows: Tensor | None = None,
    **options: Unpack[LocalOptions],
) -> LeftOut:
    r"""Predict rows of the data from their nearest *other* rows.

    Equivalent to

        means, powers = [], []
        for i in range(len(centers)):
            x, y = torch.cat((centers[:i], centers[i + 1 :])), torch.cat((values[:i], values[i + 1 :]))
            layer = torchkrr.nn.LocalKernelRidge(x, y, num_neighbors, kernel=kernel, ridge=ridge)
            means.append(layer(centers[i]))
            powers.append(layer.power_function(centers[i]))
        result = torch.stack(means), torch.stack(powers)

    Args:
        rows: which rows to predict; `None` is all.

    The other arguments are those of `torchkrr.functional.local_kernel_ridge`.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; rows: `(n,)`
        - means: `(n, C)`; powers: `(n,)`; neighbor_indices: `(n, M)`, or `(n, M + 1)` with fade

    Example:
        >>> x = torch.linspace(0, 1, 50)[:, None]
        >>> left_out = local_leave_one_out(x, torch.sin(6 * x), 8, kernel=Exponential(), trend="constant")
        >>> bool((left_out.means - torch.sin(6 * x)).abs().max() < 0.15)
        True
    """
    check_data(centers, values)
    check_count("num_neighbors", num_neighbors, len(centers) - 1, what="the number of other rows")
    rows = torch.arange(len(centers), device=centers.device) if rows is None else rows
    check_index_list("rows", rows, centers)
    rows = rows.long()
    solve_options = SolveOptions(kernel, **options)
    if num_neighbors == len(centers) - 1:
        solve_options = solve_options.but(fade=False)  # nothing can leave the list
    query = centers[rows]
    indices = nearest(query, centers, num_neighbors + solve_options.fade, kernel=kernel, exclude=rows)
    return LeftOut(rows, *solve_local(query, centers, values, indices, solve_options), indices)


def check_data(centers: Tensor, values: Tensor) -> None:
    """Centers and values to choose something from: at least two rows, finite."""
    check_points("centers", centers)
    check_values(values)
    check_alike(centers=centers, values=values)
    check_same_rows("centers", centers, "values", values)
    if len(centers) < 2:
        raise ShapeError("centers has 1 row, but leaving one out needs at least 2.")
    check_finite("centers", centers)
    check_finite("values", values)
