r"""Networks for the values of actions: three layers, and the same with kernel perturbations of the first and the last.

$$ Q_k(s) = \mathrm{ReLU}\bigl([\mathrm{ReLU}(s\theta_1) + \mathcal P_{k_1}(x_1, y_1)(s)]\,\theta_2\bigr)\,\theta_3
   + \mathcal P_{k_3}(x_3, y_3)(s) $$

$\mathcal P_k(x, y)$ is `torchkrr.nn.KernelRidge` with learned centers $x$ and values $y$. The values start at zero, so both
networks start as the same function.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .._checks import check_at_least_one, check_choice, check_count, check_finite, check_points
from ..functional.greedy import farthest_points
from ..kernels import Exponential
from ..neighbors.base import evenly_spaced_rows
from ..nn.ridge import KernelRidge

Parts = Literal["both", "first", "last"]
Place = Literal["state", "hidden"]
Placing = Literal["sample", "farthest"]
PARTS: tuple[Parts, ...] = ("both", "first", "last")
PLACES: tuple[Place, ...] = ("state", "hidden")
PLACINGS: tuple[Placing, ...] = ("sample", "farthest")
MOST_PAIRED = 4096  # points whose distances, each to each, are looked at


class QNetwork(nn.Module):
    r"""Action values by three layers, $\mathrm{ReLU}(\mathrm{ReLU}(s\theta_1)\theta_2)\theta_3$, with biases.

    Args:
        num_features: numbers in a state, S.
        num_actions: A.
        hidden: width of the two hidden layers, L.

    Shape:
        - state: `(*, S)`; output: `(*, A)`

    Example:
        >>> QNetwork(8, 4)(torch.randn(5, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(self, num_features: int, num_actions: int, *, hidden: int = 64) -> None:
        super().__init__()
        for name, count in (("num_features", num_features), ("num_actions", num_actions), ("hidden", hidden)):
            check_at_least_one(name, count)
        self.first = nn.Linear(num_features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, num_actions)

    def forward(self, state: Tensor) -> Tensor:
        hidden = torch.relu(self.first(state))  # (*, L)
        return self.last(torch.relu(self.second(hidden)))  # type: ignore[no-any-return]


class KernelQNetwork(QNetwork):
    r"""`QNetwork` with a kernel ridge regressor added after the first layer, and another added to the action values.

    Equivalent to

        hidden = torch.relu(network.first(state)) + network.first_kernel(state)
        result = network.last(torch.relu(network.second(hidden))) + network.last_kernel(state)

    Centers are taken from `states` and values start at zero: at first it is the `QNetwork` made by the same layers. The
    kernels are exponential, with a lengthscale for each feature: its standard deviation in `states` times the mean distance
    of standardized states, so that neither the units of the features nor their number matter.

    Args:
        states: states as they occur, for instance under a random policy; centers and scales come from them.
        num_actions: A.
        hidden: width of the two hidden layers, L.
        num_centers: of each kernel part, B.
        parts: `"both"`, or only the `"first"` or the `"last"` part.
        last_on: what the last part is a function of: the `"state"`, or the second `"hidden"` layer.
        placing: which states become centers: a random `"sample"`, or `"farthest"` points.
        lengthscale: multiple of the lengthscales above.
        ridge: of both parts.
        learn_centers, learn_values, learn_lengthscale: what is a Parameter of both parts.

    Shape:
        - states: `(N, S)`; state: `(*, S)`; output: `(*, A)`

    Example:
        >>> network = KernelQNetwork(torch.randn(100, 8), 4)
        >>> state = torch.randn(5, 8)
        >>> torch.equal(network(state), QNetwork.forward(network, state))
        True
    """

    first_kernel: KernelRidge | None
    last_kernel: KernelRidge | None

    def __init__(
        self,
        states: Tensor,
        num_actions: int,
        *,
        hidden: int = 64,
        num_centers: int = 64,
        parts: Parts = "both",
        last_on: Place = "state",
        placing: Placing = "sample",
        lengthscale: float = 1.0,
        ridge: float = 1e-9,
        learn_centers: bool = True,
        learn_values: bool = True,
        learn_lengthscale: bool = False,
    ) -> None:
        check_points("states", states)
        check_finite("states", states)
        check_count("num_centers", num_centers, len(states))
        check_choice("parts", parts, PARTS)
        check_choice("last_on", last_on, PLACES)
        check_choice("placing", placing, PLACINGS)
        super().__init__(states.shape[1], num_actions, hidden=hidden)
        self.to(states)
        self.last_on: Place = last_on

        def part(points: Tensor, num_outputs: int) -> KernelRidge:
            scales = typical_scales(points)
            chosen = _placed(points / scales, num_centers, placing)
            return KernelRidge(
                points[chosen],
                points.new_zeros(num_centers, num_outputs),
                kernel=Exponential(lengthscale * scales, learn_lengthscale=learn_lengthscale),
                ridge=ridge,
                learn_centers=learn_centers,
                learn_values=learn_values,
            )

        self.first_kernel = part(states, hidden) if parts != "last" else None
        with torch.no_grad():
            seen = states if last_on == "state" else self._hidden(states)
        self.last_kernel = part(seen, num_actions) if parts != "first" else None

    def forward(self, state: Tensor) -> Tensor:
        hidden = self._hidden(state)  # (*, L)
        values: Tensor = self.last(hidden)
        if self.last_kernel is None:
            return values
        perturbation: Tensor = self.last_kernel(state if self.last_on == "state" else hidden)
        return values + perturbation

    def _hidden(self, state: Tensor) -> Tensor:
        hidden = torch.relu(self.first(state))
        if self.first_kernel is not None:
            hidden = hidden + self.first_kernel(state)
        return torch.relu(self.second(hidden))

    def kernel_parts(self) -> list[KernelRidge]:
        """The kernel parts there are, first and last."""
        return [part for part in (self.first_kernel, self.last_kernel) if part is not None]


def typical_scales(points: Tensor) -> Tensor:
    r"""A lengthscale for each feature: its standard deviation times the mean distance of standardized points.

    Features without variance get the scale of a standard deviation of one. Of more than 4096 points, so many, evenly spaced,
    stand for all in the mean distance.

    Shape:
        - points: `(N, D)`; output: `(D,)`

    Example:
        >>> typical_scales(torch.tensor([[0.0, 0.0], [2.0, 20.0]]))
        tensor([ 2.8284, 28.2843])
    """
    deviation = points.std(0, correction=0) if len(points) > 1 else torch.ones_like(points[0])
    deviation = torch.where(deviation > 0, deviation, 1.0)
    paired = points[evenly_spaced_rows(len(points), MOST_PAIRED, points.device)]
    distances = torch.pdist(paired / deviation) if len(points) > 1 else points.new_ones(1)
    distance = distances.mean()
    return deviation * torch.where(distance > 0, distance, 1.0)


def _placed(points: Tensor, count: int, placing: Placing) -> Tensor:
    if placing == "farthest":
        return farthest_points(points, count)
    return torch.randperm(len(points))[:count]
