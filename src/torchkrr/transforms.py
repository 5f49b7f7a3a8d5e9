r"""Normalizing maps $S$: what a kernel does to its inputs before it measures distances.

A transform is fitted once (`fit(x)`) and then called. What it learned lives in its `state_dict`, in float64, and is
cast to the dtype of the data at use. `StandardMean` is the paper's map; for network features
`Compose(UnitNorm(), MeanDistance())` is the usual alternative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ._checks import check_finite, check_floating, check_points, check_same_features, check_tensor
from ._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from ._state import keep_double, register_setting, resize_buffers, usable
from ._tensors import HALF, is_plain, needs_gradient, working_dtype
from .distances import squared_distances
from .errors import InputError, InputTypeError, NotFittedError

ROOT_OFFSET = 0.1  # in root mean squares of a row

__all__ = [
    "Compose",
    "ErfInv",
    "Linear",
    "MeanDistance",
    "MinDistance",
    "SignedRoot",
    "StandardMean",
    "Standardize",
    "Transform",
    "UnitCube",
    "UnitNorm",
]


class Transform(nn.Module):
    """Base of all normalizing maps.

    A subclass lists its fitted statistics in `statistics`, computes them in `_statistics_of` and uses them in
    `_map`. Without statistics, `fit` does nothing and the transform is always ready.
    """

    statistics: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        for name in self.statistics:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def fit(self, x: Tensor) -> Transform:
        """Learn the statistics from points `x` of shape `(N, D)`; returns the transform itself."""
        check_points("x", x)
        check_finite("x", x)
        if self.statistics:
            self.set_statistics(*self._statistics_of(x.detach().double()))
        return self

    def set_statistics(self, *statistics: Tensor) -> None:
        """Take statistics that were computed elsewhere, in the order of `self.statistics`."""
        for name, statistic in zip(self.statistics, statistics, strict=True):
            self._buffers[name] = usable(statistic)

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            check_tensor("x", x)
            check_floating("x", x)
        wide = x.float() if x.dtype in HALF else x  # in half precision, counts of points overflow
        return self._map(wide, *self._fitted(wide)).to(x.dtype)

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        raise NotImplementedError

    def _fitted(self, x: Tensor) -> tuple[Tensor, ...]:
        """The statistics in the dtype of `x`, or an error if there are none."""
        name, fitted = type(self).__name__, []
        for statistic in map(self._buffers.__getitem__, self.statistics):
            if statistic is None or statistic.numel() == 0:
                raise NotFittedError(f"{name} is not fitted. Call {name}().fit(x) on the training points, or load a state.")
            if statistic.device != x.device:
                raise InputError(
                    f"x is on {x.device} but {name} was fitted on {statistic.device}. "
                    "Move one of them, for instance with transform.to(x.device)."
                )
            if statistic.ndim == 1 and len(statistic) != x.shape[-1]:
                check_same_features("x", x, f"the data {name} was fitted on", statistic)
            fitted.append(statistic.to(x.dtype))
        return tuple(fitted)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        resize_buffers(self, self.statistics, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> Transform:
        return super()._apply(keep_double(self, fn), recurse)  # type: ignore[no-any-return]


class Standardize(Transform):
    """Zero mean and unit variance per feature; a constant feature becomes zero.

    Example:
        >>> Standardize().fit(torch.tensor([[1.0], [3.0]]))(torch.tensor([[3.0]]))
        tensor([[1.]])
    """

    statistics = ("mean", "std")

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(0), _one_if_zero(x.std(0, correction=0))

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        mean, std = statistics
        return (x - mean) / std


class UnitCube(Transform):
    r"""Each feature to the open unit interval.

    $$ u = \frac{x-\min+\frac{0.5}{N}\Delta}{\Delta\,(1+\frac1N)}, \qquad \Delta=\max-\min, $$

    clipped to $[\frac{0.5}{N+1},\,1-\frac{0.5}{N+1}]$, the range of the fitted points, so that new points outside it stay
    inside the interval. A constant feature becomes 0.5.

    Example:
        >>> UnitCube().fit(torch.tensor([[0.0], [1.0]]))(torch.tensor([[0.0], [0.5], [9.0]])).squeeze()
        tensor([0.1667, 0.5000, 0.8333])
    """

    statistics = ("low", "width", "count")

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        low, high = x.amin(0), x.amax(0)
        return low, high - low, x.new_tensor(len(x))

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        low, width, count = statistics
        constant, part = width == 0, count.reciprocal()
        inside = ((x - low) / torch.where(constant, 1.0, width)).clamp(0, 1)  # the range that u is clipped to, as it is in x
        return torch.where(constant, 0.5, (inside + 0.5 * part) / (1 + part))


class ErfInv(Transform):
    r"""$\mathrm{erfinv}(2u-1)$ per feature: a uniform feature becomes normal with variance one half.

    Computed in float64 and never infinite: $u$ is kept half a unit in the last place away from 0 and 1.

    Example:
        >>> ErfInv()(torch.tensor([[0.5, 0.975]]))
        tensor([[0.0000, 1.3859]])
    """

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        # While compiling, to ask for the size would fix it.
        if torch.compiler.is_compiling() or x.ndim < 2 or 16 * x.numel() <= SEARCH_BYTES:
            return self._of(x)
        if needs_gradient(x) or not is_plain(x):
            return self._of(x)
        # In float64 all rows at a time would take four times their own memory.
        mapped = torch.empty_like(x)
        for rows in ranges(len(x), rows_per_chunk(16 * x[0].numel(), SEARCH_BYTES)):
            mapped[rows] = self._of(x[rows])
        return mapped

    def _of(self, x: Tensor) -> Tensor:
        edge = torch.finfo(torch.float64).eps / 2
        return torch.erfinv((2 * x.double() - 1).clamp(-1 + edge, 1 - edge)).to(x.dtype)


class _Scaling(Transform):
    """Division by one number."""

    statistics = ("scale",)

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        (scale,) = statistics
        return x / scale


class MeanDistance(_Scaling):
    r"""Divide by the root mean square distance over all pairs, $\sqrt{2\sum_d \mathrm{var}_d}$.

    Example:
        >>> MeanDistance().fit(torch.tensor([[0.0], [2.0]]))(torch.tensor([[2.0]]))
        tensor([[1.4142]])
    """

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        return (_one_if_zero((2 * x.var(0, correction=0).sum()).sqrt()),)


class MinDistance(_Scaling):
    """Divide by the root mean square distance to the nearest other point, zero distances left out.

    Example:
        >>> MinDistance().fit(torch.tensor([[0.0], [2.0], [2.0], [4.0]]))(torch.tensor([[2.0]]))
        tensor([[1.]])
    """

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        nearest = [
            squared_distances(x[chunk], x).diagonal_scatter(x.new_full((len(x[chunk]),), torch.inf), chunk.start).amin(1)
            for chunk in ranges(len(x), rows_per_chunk(4 * len(x) * x.element_size(), SEARCH_BYTES))
        ]
        squared = torch.cat(nearest)
        apart = squared[(squared > 0) & squared.isfinite()]
        return (apart.mean().sqrt() if len(apart) else x.new_tensor(1.0),)


class UnitNorm(Transform):
    """Each row to Euclidean length one; a zero row stays zero.

    Example:
        >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        return _unit_rows(x)


def _unit_rows(x: Tensor) -> Tensor:
    # Dividing by the largest entry first keeps the squares of huge and tiny rows in range.
    largest = x.detach().abs().amax(-1, keepdim=True)
    return _at_unit_length(x / torch.where(largest > 0, largest, 1.0))


def _at_unit_length(rows: Tensor) -> Tensor:
    squared = rows.square().sum(-1, keepdim=True)
    return rows / torch.where(squared > 0, squared, 1.0).sqrt()


class SignedRoot(Transform):
    r"""Each row at length one, its entries drawn together by a square root that keeps their sign.

    With $u = x / \mathrm{rms}(x)$ the entries become $u_j / \sqrt{|u_j| + c}$, $c = 0.1$, and the row is brought to length
    one again. For features of networks, of which few are large in each row: without it these alone decide how far apart
    rows are. $c$ keeps the slope at zero finite, where features after a ReLU are.

    Example:
        >>> SignedRoot()(torch.tensor([[9.0, -4.0, 0.0]])).round(decimals=2)
        tensor([[ 0.8400, -0.5400,  0.0000]])
    """

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        rows = _unit_rows(x)
        return _at_unit_length(rows / (rows.abs() + ROOT_OFFSET / x.shape[-1] ** 0.5).sqrt())


class Linear(Transform):
    r"""A linear map $x \mapsto x W^\top$, given or learned: the metric of the kernel becomes $W^\top W$.

    Args:
        weight: matrix of shape `(E, D)`, from `D` features to `E`, as in `torch.nn.Linear`.
        learn: make `weight` a Parameter.

    Example:
        >>> Linear(torch.tensor([[1.0, 1.0]]))(torch.tensor([[2.0, 3.0]]))
        tensor([[5.]])
    """

    def __init__(self, weight: Tensor, *, learn: bool = False) -> None:
        super().__init__()
        check_points("weight", weight)
        check_finite("weight", weight)
        register_setting(self, "weight", weight, learn=learn)

    weight: Tensor

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        check_same_features("x", x, "the weight of Linear", self.weight)
        return x @ self.weight.to(x.dtype).mT

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        resize_buffers(self, ("weight",), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"in_features={columns}, out_features={rows}, learn={isinstance(self.weight, nn.Parameter)}"


class Compose(Transform):
    """Several transforms in turn, each fitted on what the ones before it give.

    Example:
        >>> Compose(UnitNorm(), MeanDistance()).fit(torch.randn(50, 3))(torch.randn(4, 3)).shape
        torch.Size([4, 3])
    """

    def __init__(self, *transforms: Transform) -> None:
        super().__init__()
        for transform in transforms:
            if not isinstance(transform, nn.Module):
                raise InputTypeError(
                    f"Compose takes transforms, as in Compose(UnitNorm(), MeanDistance()), got {type(transform).__name__}."
                )
        self.transforms = nn.ModuleList(transforms)

    def fit(self, x: Tensor) -> Compose:
        check_points("x", x)
        x = x.detach().to(working_dtype(x.dtype))
        for transform in self.transforms:
            transform.fit(x)  # type: ignore[operator]
            with torch.no_grad():
                x = transform(x)
        return self

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class StandardMean(Compose):
    """The paper's normalizing map: unit cube, then inverse error function, then unit mean distance.

    Example:
        >>> x = torch.randn(200, 3)
        >>> e = StandardMean().fit(x)(x)
        >>> bool(torch.isclose(torch.cdist(e, e).square().mean(), torch.tensor(1.0), rtol=1e-4))
        True
    """

    def __init__(self) -> None:
        super().__init__(UnitCube(), ErfInv(), MeanDistance())


def _one_if_zero(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)
