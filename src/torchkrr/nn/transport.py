"""Transport functionals as loss modules, for learned centers and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional.transport import Cost, gromov_monge, monge_cost


class MongeLoss(nn.Module):
    """Cost of moving `x` onto `y` by the best assignment; arguments as in `torchkrr.functional.monge_cost`.

    Shape:
        - x, y: `(N, D)`; output: scalar

    Example:
        >>> MongeLoss()(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]]))
        tensor(0.)
    """

    def __init__(self, *, cost: Cost | None = None) -> None:
        super().__init__()
        self.cost = cost

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return monge_cost(x, y, cost=self.cost)


class GromovMongeLoss(nn.Module):
    """How far the distances inside `x` are from those inside `y`; arguments as in `torchkrr.functional.gromov_monge`.

    As a regularizer, `loss + weight * GromovMongeLoss()(layer.centers, layer.values)` keeps learned centers as far apart as
    their values are, so centers with equal values are drawn together. To spread centers over the data use `MongeLoss`
    against a spread sample of them, `inputs[functional.farthest_points(inputs, len(layer.centers))]`.

    Shape:
        - x: `(N, D)`; y: `(N, C)`; output: scalar

    Example:
        >>> x = torch.randn(20, 3)
        >>> bool(GromovMongeLoss()(x, x + 1) < 1e-6)
        True
    """

    def __init__(
        self,
        *,
        cost_x: Cost | None = None,
        cost_y: Cost | None = None,
        sample_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.cost_x, self.cost_y = cost_x, cost_y
        self.sample_size, self.generator = sample_size, generator

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        size = self.sample_size if self.sample_size is not None and self.sample_size < len(x) else None
        return gromov_monge(x, y, cost_x=self.cost_x, cost_y=self.cost_y, sample_size=size, generator=self.generator)
