r"""Normalizing maps for columns of tables, whose values may lie in any distribution.

`Staircase` turns distances by sums of absolute differences into Euclidean ones: with knots $t_0 < t_1 < \dots$ a value
becomes one coordinate per step, $\sqrt{t_{j+1}-t_j}$ times the part of the step below it, so that between knots

$$ |e(a) - e(b)|^2 = |a - b|, $$

and the Gaussian profile on it is the product of exponentials $\prod_d e^{-|a_d-b_d|/(2\ell_d^2)}$, the Laplacian kernel of
scikit-learn. Like a tree it follows single features, and it is flat outside the range of the data.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import ShapeError
from ..transforms import Standardize, Transform

STEPS = 32
KNOTS = 64


class Staircase(Transform):
    """One coordinate per step between quantiles of each feature; sums of absolute differences become squared distances.

    Shape:
        - `(*, D)` to `(*, E)`, with at most 32 columns for each feature

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> e = Staircase().fit(x)(x)
        >>> torch.cdist(e, e).square().round(decimals=4)[0]
        tensor([0., 1., 3.])
    """

    statistics = ("steps",)

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = []
        for feature, column in enumerate(x.T):
            knots = _knots(column, STEPS + 1)
            if len(knots) > 1:
                low, width = knots[:-1], knots.diff()
                parts.append(torch.stack((low, width, torch.full_like(low, feature))))
        if not parts:  # nothing varies: one step that every point is on
            parts.append(x.new_tensor([[0.0], [1.0], [0.0]]))
        return (torch.cat((*parts, x.new_tensor([[0.0], [1.0], [x.shape[1]]])), dim=1),)  # the last column keeps D

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        steps = statistics[0]
        if x.shape[-1] != int(steps[2, -1]):
            raise ShapeError(f"x has {x.shape[-1]} features but Staircase was fitted on {int(steps[2, -1])}.")
        low, width, feature = steps[0, :-1], steps[1, :-1], steps[2, :-1].long()
        return ((x[..., feature] - low) / width).clamp(0, 1) * width.sqrt()

    def groups(self) -> Tensor:
        """The feature that each coordinate belongs to, `(E,)`."""
        steps = self.get_buffer("steps")
        return steps[2, :-1].long()


class Ranks(Transform):
    """The share of fitted values below each value, between quantiles by interpolation, at zero mean and unit variance.

    Example:
        >>> Ranks().fit(torch.tensor([[1.0], [10.0], [1000.0]]))(torch.tensor([[10.0]])).abs().round(decimals=4)
        tensor([[0.]])
    """

    statistics = ("knots", "levels")

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        knots, levels = [], []
        for column in x.T:
            places = _knots(column, KNOTS)
            ordered = column.sort().values
            below = torch.searchsorted(ordered, places) + torch.searchsorted(ordered, places, right=True)
            share = below.to(x.dtype) / (2 * len(column))
            own = _interpolate(column, places, share)
            share = (share - own.mean()) / own.std(correction=0).clamp_min(1e-12)
            pad = KNOTS - len(places)
            knots.append(torch.cat((places, places[-1:].expand(pad))))
            levels.append(torch.cat((share, share[-1:].expand(pad))))
        return torch.stack(knots), torch.stack(levels)  # (D, KNOTS) each

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        knots, levels = statistics
        if x.shape[-1] != len(knots):
            raise ShapeError(f"x has {x.shape[-1]} features but Ranks was fitted on {len(knots)}.")
        columns = x.reshape(-1, len(knots)).mT  # (D, n)
        return _interpolate(columns, knots, levels).mT.reshape(x.shape)


class Beside(Transform):
    """Several transforms of the same points, their columns side by side.

    Example:
        >>> Beside(Standardize(), Ranks()).fit(torch.rand(9, 2))(torch.rand(3, 2)).shape
        torch.Size([3, 4])
    """

    def __init__(self, *transforms: Transform) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    def fit(self, x: Tensor) -> Beside:
        for transform in self.transforms:
            transform.fit(x)  # type: ignore[operator]
        return self

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([transform(x) for transform in self.transforms], dim=-1)


class Columns(Transform):
    """Some of the columns only; fitted, those that vary.

    Example:
        >>> Columns().fit(torch.tensor([[1.0, 2.0, 3.0], [1.0, 5.0, 0.0]]))(torch.tensor([[7.0, 8.0, 9.0]]))
        tensor([[8., 9.]])
    """

    statistics = ("kept",)

    @classmethod
    def keeping(cls, kept: Tensor) -> Columns:
        """Those where `kept` `(E,)` is true."""
        columns = cls()
        columns._buffers["kept"] = kept.double()
        return columns

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        return ((x.amax(0) > x.amin(0)).double(),)

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        return x.index_select(-1, statistics[0].nonzero().squeeze(1))


def values_and_ranks() -> Beside:
    """Each feature twice, as it is and by its rank: the metric decides which counts."""
    return Beside(Standardize(), Ranks())


def _knots(column: Tensor, count: int) -> Tensor:
    """At most `count` different values of a column, all of them or its quantiles, in order."""
    different = column.unique()
    if len(different) <= count:
        return different  # type: ignore[no-any-return]
    ordered = column.sort().values
    places = torch.linspace(0, len(ordered) - 1, count, dtype=torch.float64).round().long()
    return ordered[places].unique()  # type: ignore[no-any-return]


def _interpolate(x: Tensor, knots: Tensor, levels: Tensor) -> Tensor:
    """Piecewise linear through `(knots, levels)`, constant outside; `(*, n)` by `(*, K)`."""
    last = knots.shape[-1] - 1
    right = torch.searchsorted(knots.contiguous(), x.contiguous()).clamp_(min(1, last), last)
    left = (right - 1).clamp_min_(0)
    start, below = knots.gather(-1, left), levels.gather(-1, left)
    width, rise = knots.gather(-1, right) - start, levels.gather(-1, right) - below
    share = (x - start).div_(width.clamp_min_(torch.finfo(x.dtype).tiny)).clamp_(0, 1)
    return share.mul_(rise).add_(below)
