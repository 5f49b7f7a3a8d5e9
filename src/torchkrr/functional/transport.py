r"""Optimal-transport functionals: losses that match or spread points, up to a permutation.

The Monge functional compares points of one space under the best assignment; the Gromov-Monge functional compares the
distances inside two spaces, whatever their dimensions, and is the paper's regularizer for learned centers and values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import (
    check_alike,
    check_count,
    check_finite,
    check_points,
    check_same_features,
    check_same_rows,
    check_tensor,
)
from .._extras import import_extra
from .._tensors import full_precision
from ..distances import safe_sqrt, squared_distances
from ..errors import ShapeError

Cost = Callable[[Tensor, Tensor], Tensor]


def euclidean_cost(a: Tensor, b: Tensor) -> Tensor:
    """Distances `(A, B)`, finite in every derivative at zero."""
    return safe_sqrt(squared_distances(a, b))


@full_precision
def assignment(x: Tensor, y: Tensor, *, cost: Cost | None = None) -> Tensor:
    r"""The permutation $\bar\sigma$ that minimizes $\sum_n c(x^n, y^{\sigma^n})$, by scipy's linear sum assignment.

    Args:
        x, y: as many points in one space.
        cost: function of `(N, D)` and `(N, D)` points that gives the `(N, N)` costs; `None` is the squared Euclidean
            distance.

    Shape:
        - x, y: `(N, D)`
        - output: `(N,)` int64; `y[output]` is `y` in the order of `x`

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> assignment(x, x.flip(0))
        tensor([2, 1, 0])
    """
    return _assigned(_costs(x, y, cost).detach())


@full_precision
def monge_cost(x: Tensor, y: Tensor, *, cost: Cost | None = None) -> Tensor:
    r"""The Monge functional $\sum_n c(x^n, y^{\bar\sigma^n})$ under the best permutation.

    Differentiable in `x` and `y` through the cost; the permutation is piecewise constant. Zero exactly where `x` and `y` are
    the same set.

    Equivalent to

        order = torchkrr.functional.assignment(x, y)
        result = (x - y[order]).square().sum()

    Arguments as in `assignment`.

    Shape:
        - x, y: `(N, D)`
        - output: scalar

    Example:
        >>> monge_cost(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.5], [0.0]]))
        tensor(0.2500)
    """
    costs = _costs(x, y, cost)
    return costs.gather(1, _assigned(costs.detach()).unsqueeze(1)).sum()


@full_precision
def gromov_monge(
    x: Tensor,
    y: Tensor,
    *,
    cost_x: Cost | None = None,
    cost_y: Cost | None = None,
    sample_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The Gromov-Monge functional $\sum_{i,j} |c_x(x^i, x^j) - c_y(y^i, y^j)|^2$.

    Row $i$ of `x` belongs to row $i$ of `y`; their spaces may differ. Zero where the one is an isometric copy of the other.

    Equivalent to

        result = (torch.cdist(x, x) - torch.cdist(y, y)).square().sum()

    Args:
        x, y: as many points, each in its space.
        cost_x, cost_y: functions of two sets of points that give the matrix of costs; `None` is the Euclidean distance.
        sample_size: estimate the sum, without bias, from the pairs among this many random rows.
        generator: of the random rows.

    Shape:
        - x: `(N, D)`; y: `(N, C)`
        - output: scalar

    Example:
        >>> x = torch.randn(20, 3)
        >>> bool(gromov_monge(x, torch.nn.functional.pad(-x, (0, 2))) < 1e-6)
        True
    """
    _check_pair(x, y)
    count = len(x)
    if sample_size is not None:
        check_count("sample_size", sample_size, count, least=2)
        rows = torch.randperm(count, generator=generator)[:sample_size].to(x.device)
        x, y = x.index_select(0, rows), y.index_select(0, rows)
    inside_x = _cost_matrix("cost_x", cost_x or euclidean_cost, x, x)
    inside_y = _cost_matrix("cost_y", cost_y or euclidean_cost, y, y)
    gaps = (inside_x - inside_y).square()
    if len(x) == count:
        return gaps.sum()
    own = gaps.diagonal().sum()  # a pair of a row with itself is drawn more often than a pair of two rows
    n = len(x)
    return own * (count / n) + (gaps.sum() - own) * (count * (count - 1) / (n * (n - 1)))


def _costs(x: Tensor, y: Tensor, cost: Cost | None) -> Tensor:
    _check_pair(x, y)
    if cost is None:
        check_same_features("x", x, "y", y)
    return _cost_matrix("cost", cost or squared_distances, x, y)


def _check_pair(x: Tensor, y: Tensor) -> None:
    check_points("x", x)
    check_points("y", y)
    check_alike(x=x, y=y)
    check_same_rows("x", x, "y", y)
    check_finite("x", x)
    check_finite("y", y)


def _cost_matrix(name: str, cost: Cost, a: Tensor, b: Tensor) -> Tensor:
    costs = cost(a, b)
    check_tensor(f"the result of {name}", costs)
    if tuple(costs.shape) != (len(a), len(b)):
        raise ShapeError(f"{name} must give one number for each pair, shape {(len(a), len(b))}, got {tuple(costs.shape)}.")
    check_finite(f"the result of {name}", costs)
    return costs


def _assigned(costs: Tensor) -> Tensor:
    optimize = import_extra("scipy.optimize", "An assignment", extra="ot")
    _, columns = optimize.linear_sum_assignment(costs.double().cpu().numpy())
    return torch.from_numpy(columns).to(device=costs.device, dtype=torch.int64)
