r"""Uncertainty from leave-one-out: a scale for the power function, and intervals with coverage.

The power function $\epsilon$ is the standard deviation of a Gaussian process of unit scale, so $s\,\epsilon$ is that of the
function behind data of scale $s$, and $s\sqrt{\epsilon^2+\lambda}$ that of a new observation. With $r_i$ the leave-one-out
residual of row $i$ and $v_i=\epsilon_i^2+\lambda$ its variance in units of $s^2$,

$$ s^2 = \frac{\sum_i r_i^2}{\sum_i v_i} \quad\text{(global)},\qquad
   s(z) = \sqrt{\tfrac\pi2}\,\frac{m_0\,\overline{|r|} + \sum_{j\in\sigma(z)} |r_j|}{m_0\,\overline{\sqrt v} +
   \sum_{j\in\sigma(z)} \sqrt{v_j}} \quad\text{(per cell)}. $$

Both have the right value for Gaussian residuals. Ratios of sums, not means of ratios: repeated rows have a variance near
zero, and a single one that disagrees with its copies would rule the mean.

Intervals do not rely on the Gaussian: $[m - q\,s\sqrt v,\ m + q\,s\sqrt v]$ with $q$ the $\lceil(n+1)\gamma\rceil$-th
smallest of the normalized residuals $|r_i|/(s_i\sqrt{v_i})$, $\gamma$ the coverage.
"""

from __future__ import annotations

import math
import numbers
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    check_alike,
    check_at_least_one,
    check_choice,
    check_finite,
    check_points,
    check_same_rows,
    check_values,
)
from ..distances import safe_sqrt
from ..errors import InputError, InputTypeError
from ..kernels import Kernel
from ..nn import HierarchicalKernelRidge, LocalKernelRidge
from ..nn.base import Fingerprint
from .leave_one_out import sample_rows
from .scores import SMALLEST_VARIANCE

Scale = Literal["global", "cell"]
# The weight of the global scale in that of a cell, in neighbors.
PRIOR_NEIGHBORS = 3.0
# Of a standard deviation, where all residuals were zero: what is divided by it is multiplied by it again.
SMALLEST = 1e-30


class Interval(NamedTuple):
    """Predictions with their lower and upper limits."""

    mean: Tensor  # (Q, C)
    lower: Tensor  # (Q, C)
    upper: Tensor  # (Q, C)


class Calibration(NamedTuple):
    """Scale and residuals of a layer, for standard deviations and intervals; made by `calibrate`."""

    layer: LocalKernelRidge
    fingerprint: Fingerprint  # of the layer when it was calibrated
    scale: Tensor  # (C,): s
    residuals: Tensor | None  # (N, C) with a scale per cell: |r| of each center
    spreads: Tensor | None  # (N,) likewise: sqrt(v)
    scores: Tensor  # (n, C): normalized residuals, sorted

    def std(self, query: Tensor, *, observation: bool = False) -> Tensor:
        """Standard deviation of the function at `(Q, D)`, or of a new observation there; `(Q, C)`."""
        return self._std(query, observation=observation).to(query.dtype)

    def interval(self, query: Tensor, coverage: float = 0.9) -> Interval:
        """Limits between which a new observation at `(Q, D)` falls with probability `coverage`.

        The limits are infinite where there are too few residuals for the requested coverage.
        """
        half = self.quantile(coverage) * self._std(query, observation=True).clamp_min(SMALLEST)
        mean = self.layer(query)
        return Interval(mean, (mean - half).to(mean.dtype), (mean + half).to(mean.dtype))

    def quantile(self, coverage: float) -> Tensor:
        """Half the width of the interval in standard deviations of an observation; `(C,)`."""
        if not isinstance(coverage, numbers.Real) or not 0 < coverage < 1:
            raise InputError(f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}.")
        # Rounding of the product must not cost a rank.
        rank = math.ceil((len(self.scores) + 1) * coverage - 1e-9)
        return self.scores[rank - 1] if rank <= len(self.scores) else torch.full_like(self.scale, math.inf)

    def _std(self, query: Tensor, *, observation: bool) -> Tensor:
        if not self.fingerprint.matches(*_sources(self.layer)):
            raise InputError("The layer has changed since it was calibrated. Calibrate it again.")
        power = self.layer.power_function(query).double()
        variance = _variance(power, self.layer) if observation else power.square()
        scale = self.scale if self.residuals is None else self._cell_scale(self.layer.neighbors(query))
        return scale * safe_sqrt(variance).unsqueeze(-1)

    def _cell_scale(self, indices: Tensor) -> Tensor:
        """`(Q, C)` from the residuals of the neighbors `(Q, M)`, drawn towards those of all centers."""
        assert self.residuals is not None
        assert self.spreads is not None
        residual = self.residuals[indices].sum(1) + PRIOR_NEIGHBORS * self.residuals.mean(0)
        spread = self.spreads[indices].sum(1) + PRIOR_NEIGHBORS * self.spreads.mean()
        return math.sqrt(math.pi / 2) * residual / spread.unsqueeze(-1)


def calibrate(
    layer: LocalKernelRidge,
    query: Tensor | None = None,
    values: Tensor | None = None,
    *,
    scale: Scale = "cell",
    num_samples: int = 2000,
    seed: int = 0,
) -> Calibration:
    r"""Estimate from residuals how far the predictions of a layer can be trusted.

    Without `query` and `values` the residuals are those of leave-one-out over the centers of the layer (jackknife): no data
    are lost, and coverage holds to the degree that leaving one row out does not change the predictor. With rows that are
    not among the centers (split conformal) the coverage of `interval` is guaranteed, at least `coverage` on average over
    draws of the data, whatever the kernel, as long as these rows and the later ones are exchangeable.

    Args:
        layer: a `LocalKernelRidge`; later changes of its centers or values need a new calibration.
        query, values: rows that are not centers of the layer, or `None` for leave-one-out.
        scale: `"global"` is one scale for all queries; `"cell"` follows how large residuals are around each query. It
            takes a leave-one-out prediction of every center.
        num_samples: rows to leave out for the normalized residuals.
        seed: which rows.

    Shape:
        - query: `(n, D)`; values: `(n, C)`

    Example:
        >>> x = torch.rand(500, 1)
        >>> y = torch.sin(6 * x) + 0.1 * torch.randn(500, 1)
        >>> layer = torchkrr.nn.LocalKernelRidge(x, y, 30, ridge=0.1, trend="constant")
        >>> interval = torchkrr.tuning.calibrate(layer).interval(torch.rand(4, 1), coverage=0.9)
        >>> bool((interval.lower < interval.upper).all())
        True
    """
    if not isinstance(layer, LocalKernelRidge) or isinstance(layer, HierarchicalKernelRidge):
        raise InputTypeError(f"layer must be a torchkrr.nn.LocalKernelRidge, got {type(layer).__name__}.")
    check_choice("scale", scale, ("global", "cell"))
    check_at_least_one("num_samples", num_samples)
    if (query is None) != (values is None):
        raise InputError("Give query and values together, or neither for leave-one-out.")
    with torch.no_grad():
        sampled = sample_rows(layer.num_centers, num_samples, seed, layer.centers.device)
        rows = torch.arange(layer.num_centers, device=sampled.device) if scale == "cell" else sampled
        left_out = layer.leave_one_out(rows)
        # Squares of values in half precision would overflow, and small variances vanish.
        residuals = (left_out.means - layer.values[rows]).double().abs()  # (n, C)
        spreads = _variance(left_out.powers.double(), layer).sqrt()  # (n,)
        overall = (residuals.square().sum(0) / spreads.square().sum()).sqrt()  # (C,)
        calibration = Calibration(layer, Fingerprint(*_sources(layer)), overall, None, None, residuals[:0])
        if scale == "cell":
            calibration = calibration._replace(residuals=residuals, spreads=spreads)
        if query is not None and values is not None:
            check_points("query", query)
            check_values(values)
            check_alike(query=query, values=values, centers=layer.centers)
            check_same_rows("query", query, "values", values)
            check_finite("values", values)
            residuals, std = (layer(query) - values).double().abs(), calibration._std(query, observation=True)
        elif scale == "cell":
            # The neighbors a row was predicted from: its own residual takes no part in its scale.
            cells = left_out.neighbor_indices[sampled][:, : layer.num_neighbors]
            residuals, std = residuals[sampled], calibration._cell_scale(cells) * spreads[sampled].unsqueeze(-1)
        else:
            std = overall * spreads.unsqueeze(-1)
        return calibration._replace(scores=(residuals / std.clamp_min(SMALLEST)).sort(0).values)


def _variance(power: Tensor, layer: LocalKernelRidge) -> Tensor:
    """Of an observation, in units of the squared scale."""
    ridge = torch.as_tensor(layer.ridge, dtype=power.dtype, device=power.device).detach()
    return (power.square() + ridge).clamp_min(SMALLEST_VARIANCE)


def _sources(layer: LocalKernelRidge) -> tuple[list[Tensor], Kernel, tuple[object, ...]]:
    """What a calibration depends on."""
    ridge = float(torch.as_tensor(layer.ridge).detach())
    settings = (layer.num_neighbors, ridge, layer.trend, layer.fade, layer.normalize)
    return [layer.centers, layer.values], layer.kernel, settings
