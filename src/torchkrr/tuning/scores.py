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

from torch import Tensor
from torch.nn.functional import huber_loss

from .._checks import check_choice
from ..core.temperature import best_temperature, check_memberships, cross_entropy

Loss = Literal["mse", "cross_entropy", "log_score", "huber"]
LOSSES: tuple[Loss, ...] = ("mse", "cross_entropy", "log_score", "huber")
SMALLEST_VARIANCE = 1e-12


def check_loss(loss: str, values: Tensor) -> None:
    check_choice("loss", loss, LOSSES)
    if loss != "cross_entropy":
        return
    check_memberships(values, "cross_entropy", "Give torch.nn.functional.one_hot(labels).to(dtype), or choose another loss.")


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
        return cross_entropy(means, targets, best_temperature(means, targets) if temperature is None else temperature)
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
