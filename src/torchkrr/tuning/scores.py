r"""What a prediction is judged by when something is chosen by leave-one-out.

For a mean $m$, a variance $v = \epsilon^2 + \lambda$ in units of the unknown scale, and the value $y$ that was left out:

| loss | per query | fitted along the way |
|---|---|---|
| `mse` | $(m-y)^2$ | |
| `huber` | $\tfrac12(m-y)^2$ up to $\lvert m-y\rvert=\delta$, then $\delta(\lvert m-y\rvert-\tfrac12\delta)$ | |
| `log_score` | $\tfrac12\log(2\pi s^2 v) + (m-y)^2/(2s^2v)$ | scale $s^2$ = mean of $(m-y)^2/v$ |
| `cross_entropy` | $-\sum_c y_c\log\operatorname{softmax}(m/T)_c$ | temperature $T$ |

Outputs are averaged, except in the last.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from .._checks import check_choice
from ..errors import InputError

Loss = Literal["mse", "cross_entropy", "log_score", "huber"]
LOSSES: tuple[Loss, ...] = ("mse", "cross_entropy", "log_score", "huber")
# Predictions of one-hot values differ by about one at most: from all but sure of the largest to sure of none.
TEMPERATURES = torch.logspace(-2.5, 1.5, 41, dtype=torch.float64)
SMALLEST_VARIANCE = 1e-12


def check_loss(loss: str, values: Tensor) -> None:
    check_choice("loss", loss, LOSSES)
    if loss != "cross_entropy":
        return
    sums, remedy = values.sum(-1), "Give torch.nn.functional.one_hot(labels).to(dtype), or choose another loss."
    if values.shape[-1] < 2:
        raise InputError(f"cross_entropy needs one column of values per class, got 1. {remedy}")
    if bool((values < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        needed = "values that are class probabilities (non-negative, rows sum to one)"
        raise InputError(f"cross_entropy needs {needed}, got others. {remedy}")


def score(
    loss: Loss, means: Tensor, variances: Tensor, targets: Tensor, *, delta: float = 1.0, temperature: Tensor | None = None
) -> Tensor:
    """Losses per query.

    Shape:
        - means: `(Q, *, C)`; variances: `(Q, *)`; targets: `(Q, C)`; temperature: `(*)`, fitted if it is `None`
        - output: `(Q, *)`
    """
    targets = targets.view(len(targets), *[1] * (means.ndim - 2), targets.shape[-1])
    if loss == "cross_entropy":
        return _cross_entropy(means, targets, best_temperature(means, targets) if temperature is None else temperature)
    residual = means - targets
    if loss == "mse":
        return residual.square().mean(-1)
    if loss == "huber":
        return huber_loss(means, targets.expand_as(means), reduction="none", delta=delta).mean(-1)
    variances = variances.clamp_min(SMALLEST_VARIANCE).unsqueeze(-1)
    scale = (residual.square() / variances).mean(0, keepdim=True).clamp_min(SMALLEST_VARIANCE)
    spread = scale * variances
    return (0.5 * (math.log(2 * math.pi) + spread.log() + residual.square() / spread)).mean(-1)


def unit_of(values: Tensor, loss: Loss) -> float:
    """The size of the values, their root mean square deviation. Losses are taken in this unit: no floor or step then depends
    on whether lengths are in metres or miles."""
    if loss == "cross_entropy":
        return 1.0
    wide = values.detach().double()
    unit = float((wide - wide.mean(0)).square().mean().sqrt())
    return unit if math.isfinite(unit) and unit > 0 else 1.0


def in_given_units(losses: Tensor, name: Loss, unit: float) -> Tensor:
    """Losses of values divided by `unit`, for the values as they were."""
    if name == "log_score":
        return losses + math.log(unit)
    return losses if name == "cross_entropy" else losses * unit * unit


def best_temperature(means: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
    """The temperature with the least mean cross-entropy: `(Q, *, C)` and `(Q, 1.., C)` to `(*)`.

    The largest of those that are no more than 1 / Q above it: Q rows without an error say no more than that errors are
    rarer than about one in Q, which is not a reason to be surer still. With `counts` `(Q,)` each stands for so many rows.
    """
    with torch.no_grad():
        candidates = TEMPERATURES.to(means)
        counts = means.new_ones(len(means)) if counts is None else counts.to(means)
        total, shares = counts.sum(), (counts / counts.sum()).view(-1, *[1] * (means.ndim - 2))
        losses = torch.stack(
            [(shares * _cross_entropy(means, targets, t.expand(means.shape[1:-1]))).sum(0) for t in candidates]
        )
        good = losses <= losses.amin(0) + 1 / total
        places = torch.arange(len(candidates), device=means.device).view(-1, *[1] * (losses.ndim - 1))
        return candidates[torch.where(good, places, 0).amax(0)]


def _cross_entropy(means: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
    return -(targets * torch.log_softmax(means / temperature.unsqueeze(-1), dim=-1)).sum(-1)
