r"""Nested subsets of points, chosen one after the other.

`farthest_points` looks at the points alone (Gonzalez; the paper's greedy rule), `power_greedy` at the error indicator of a
kernel, `residual_greedy` at the values as well. All cost $O(Nn)$ kernel evaluations for $n$ of $N$ points and return indices
in the order they were chosen, so that every prefix is the answer for fewer points.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import check_alike, check_count, check_finite, check_integer, check_points, check_same_rows, check_values
from .._tensors import full_precision, working_dtype
from ..distances import squared_distances
from ..errors import InputError
from ..kernels import Kernel
from ..kernels.names import check_definite

Distance = Callable[[Tensor, Tensor], Tensor]
CANCELS = 1e-2  # of the squares of two points: a smaller squared distance loses more than two digits to their product


@full_precision
def farthest_points(points: Tensor, num_points: int, *, start: int = 0, distance: Kernel | Distance | None = None) -> Tensor:
    r"""Each next point is the one farthest from those chosen: $\arg\max_x \min_{x' \in X^n} d(x, x')$.

    The covering radius is at most twice the best possible for as many points (k-center).

    Equivalent to

        distances = torch.cdist(points, points)
        chosen = [start]
        while len(chosen) < num_points:
            chosen.append(int(distances[:, chosen].min(1).values.argmax()))
        result = torch.tensor(chosen)

    Args:
        points: points to choose from.
        num_points: how many.
        start: index of the first one.
        distance: a kernel, whose metric is then used, or a function of `(N, D)` and `(1, D)` points that gives `(N,)` or
            `(N, 1)` distances; `None` is the Euclidean one.

    Shape:
        - points: `(N, D)`
        - output: `(n,)` int64, nested, ties by lowest index

    Example:
        >>> farthest_points(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), 3)
        tensor([0, 2, 3])
    """
    points = _prepared(points, num_points, start)
    if distance is None or isinstance(distance, Kernel):
        points = points if distance is None else distance.embed(points)
        distance = _ordered_as_distance_in(points)
    chosen = torch.empty(num_points, dtype=torch.int64, device=points.device)
    nearest: Tensor | None = None
    chosen[0] = start
    for step in range(num_points):
        at = chosen[step : step + 1]
        to_last = distance(points, points[at]).reshape(-1)
        nearest = to_last if nearest is None else torch.minimum(nearest, to_last)
        nearest[at] = -torch.inf  # chosen once, even where rounding leaves it a distance to itself
        if step + 1 < num_points:
            chosen[step + 1] = nearest.argmax()
    return chosen


@full_precision
def power_greedy(points: Tensor, num_points: int, *, kernel: Kernel, start: int = 0) -> Tensor:
    r"""Each next point is the one with the largest power function of those chosen (P-greedy).

    A partial Cholesky factorization of the kernel matrix with diagonal pivoting: $O(Nn^2)$ operations, the matrix is never
    formed.

    Equivalent to

        chosen = [start]
        while len(chosen) < num_points:
            power = torchkrr.functional.power_function(points, points[chosen], kernel=kernel, ridge=0.0)
            chosen.append(int(power.argmax()))
        result = torch.tensor(chosen)

    Args:
        points: points to choose from.
        num_points: how many; fewer come back if the kernel matrix has no more independent rows.
        kernel: positive definite kernel.
        start: index of the first one (the power function of nothing is the same everywhere).

    Shape:
        - points: `(N, D)`
        - output: `(n,)` int64, nested

    Example:
        >>> power_greedy(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), 3, kernel=Exponential())
        tensor([0, 2, 3])
    """
    check_definite(kernel)
    points = _prepared(points, num_points, start)
    newton = NewtonBasis(kernel.embed(points), kernel, num_points)
    newton.add(start)
    while newton.size < num_points and newton.add(int(newton.power_squared.argmax())):
        pass
    return newton.chosen


@full_precision
def residual_greedy(points: Tensor, values: Tensor, num_points: int, *, kernel: Kernel) -> Tensor:
    r"""Each next point is the one where the interpolant of those chosen is most wrong (f-greedy).

    Equivalent to

        chosen = [int(torch.linalg.vector_norm(values, dim=1).argmax())]
        while len(chosen) < num_points:
            fitted = torchkrr.functional.kernel_ridge(points, points[chosen], values[chosen], kernel=kernel, ridge=0.0)
            chosen.append(int(torch.linalg.vector_norm(values - fitted, dim=1).argmax()))
        result = torch.tensor(chosen)

    Args:
        points: points to choose from.
        values: values at the points; several outputs are measured by their Euclidean norm.
        num_points: how many; fewer come back if the kernel matrix has no more independent rows.
        kernel: positive definite kernel.

    Shape:
        - points: `(N, D)`; values: `(N, C)`
        - output: `(n,)` int64, nested

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0], [2.0]])
        >>> residual_greedy(points, torch.tensor([[0.0], [3.0], [1.0], [0.0]]), 2, kernel=Exponential())
        tensor([1, 0])
    """
    check_points("points", points)
    check_values(values)
    check_alike(points=points, values=values)
    check_same_rows("points", points, "values", values)
    check_finite("values", values)
    check_definite(kernel)
    points = _prepared(points, num_points, 0)
    residual = values.detach().to(points.dtype)
    newton = NewtonBasis(kernel.embed(points), kernel, num_points)
    while newton.size < num_points:
        at = int(torch.linalg.vector_norm(residual, dim=1).index_fill(0, newton.chosen, -torch.inf).argmax())
        if not newton.add(at):
            break
        column = newton.columns[:, newton.size - 1]
        residual = residual - column.unsqueeze(1) * (residual[at] / column[at])
    return newton.chosen


class NewtonBasis:
    """Pivoted partial Cholesky columns of a kernel matrix, and the power function they leave."""

    def __init__(self, embedded: Tensor, kernel: Kernel, num_points: int) -> None:
        self.embedded, self.kernel, self.size = embedded, kernel, 0
        self.columns = embedded.new_zeros(len(embedded), num_points)
        self.rows = torch.empty(num_points, dtype=torch.int64, device=embedded.device)
        self.power_squared = embedded.new_ones(len(embedded))

    @property
    def chosen(self) -> Tensor:
        return self.rows[: self.size]

    def reserve(self, more: int) -> None:
        """Have room for one more point, and if there is none for so many."""
        if self.size == self.columns.shape[1]:
            self.columns = torch.cat((self.columns, self.columns.new_zeros(len(self.columns), more)), dim=1)
            self.rows = torch.cat((self.rows, self.rows.new_zeros(more)))

    def add(self, at: int) -> bool:
        """Add the point `at`; False if it is, to rounding, determined by the others."""
        pivot = self.power_squared[at]
        # Each point chosen has taken off a square that was rounded.
        if float(pivot) <= 4 * (self.size + 1) * torch.finfo(pivot.dtype).eps:
            return False
        known = self.columns[:, : self.size]
        kernel_column = self.kernel.of_squared(squared_distances(self.embedded, self.embedded[at : at + 1])).squeeze(1)
        column = (kernel_column - known @ known[at]) / pivot.sqrt()
        self.columns[:, self.size] = column
        self.rows[self.size] = at
        self.size += 1
        self.power_squared = (self.power_squared - column.square()).clamp_min(0)
        self.power_squared[self.chosen] = -torch.inf
        return True


def _ordered_as_distance_in(points: Tensor) -> Distance:
    """Something that grows with the distance of all `points` to one of them, which is all that is compared."""
    if not points.is_cpu:  # finding the close ones, as below, would wait for the device
        return lambda points, point: torch.cdist(points, point, compute_mode="donot_use_mm_for_euclid_dist")
    middle = points.mean(0)
    centered = points - middle
    squares = centered.square().sum(1)

    def squared_distance(points: Tensor, point: Tensor) -> Tensor:
        """By one matrix-vector product; where that cancels by difference, of the points themselves: centering rounds."""
        at = (point - middle)[0]
        both = squares + at.square().sum()
        squared = torch.addmv(both, centered, at, alpha=-2)
        close = (squared < CANCELS * both).nonzero().squeeze(1)
        squared[close] = (points[close] - point).square().sum(1)
        return squared

    return squared_distance


def _prepared(points: Tensor, num_points: int, start: int) -> Tensor:
    check_points("points", points)
    check_finite("points", points)
    check_count("num_points", num_points, len(points))
    check_integer("start", start)
    if not 0 <= start < len(points):
        raise InputError(f"start must lie between 0 and {len(points) - 1}, got {start}.")
    return points.detach().to(working_dtype(points.dtype))
