r"""Networks with kernel layers: a backbone under a kernel head, and Q-networks with kernel terms.

`KernelReadout` is the paper's two-layer model $y_k(f(\cdot,\theta),\theta_x,\theta_y)$; `KernelQNetwork` is its agent's

$$ Q_k(s) = \mathrm{ReLU}\bigl([\mathrm{ReLU}(s\theta_1) + \mathcal P_{k_1}(x_1, y_1)(s)]\,\theta_2\bigr)\,\theta_3
   + \mathcal P_{k_3}(x_3, y_3)(s) , $$

where $\mathcal P_k(x, y)$ is `torchkrr.nn.KernelRidge` with learned centers $x$ and values $y$. The values start at zero, so
it starts as the same function as `QNetwork`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._checks import check_at_least_one, check_choice, check_count, check_finite, check_points, check_tensor
from .._state import register, resize_buffers, usable, without_graph
from ..errors import InputError, InputTypeError, ShapeError
from ..functional.greedy import farthest_points
from ..kernels import Exponential
from ..neighbors.base import evenly_spaced_rows
from ..nn import KernelRidge
from ..nn.base import Fingerprint, SupportLayer
from ..nn.local import Explanation, LocalKernelRidge
from .features import in_mode

Parts = Literal["both", "first", "last"]
Place = Literal["state", "hidden"]
Placing = Literal["sample", "farthest"]
PARTS: tuple[Parts, ...] = ("both", "first", "last")
PLACES: tuple[Place, ...] = ("state", "hidden")
PLACINGS: tuple[Placing, ...] = ("sample", "farthest")
MOST_PAIRED = 4096  # points whose distances, each to each, are looked at


class KernelReadout(nn.Module):
    r"""A backbone $f(\cdot,\theta)$ under a kernel head: $y_k(f(\cdot,\theta),\theta_x,\theta_y)$.

    Each of the three parameter sets is fixed or learned, in every combination:

    - $\theta$: the backbone, by `learn_backbone`;
    - $\theta_x$: the centers are points of the feature space that belong to the head (fixed, or learned by the head's
      `learn_centers`), or, with `inputs`, propagated points $x_\theta=f(x,\theta)$ that follow the backbone;
    - $\theta_y$: the values belong to the head, observed or learned by its `learn_values`.

    `propagated` and `parameterized` build the usual ones. Propagated points are computed anew in each pass in train mode,
    and gradients reach the backbone through them; in eval mode, and for a fixed backbone, they are cached until the weights
    or the inputs change. A head predicts its own centers exactly, so train on other inputs than
    `inputs`, or by leaving one out (`torchkrr.functional.leave_one_out`).

    Args:
        backbone: gives one vector for each input, `(B, ...)` to `(B, D)`; `Tapped` makes one of any network.
        head: a layer of `torchkrr.nn` on features. Its kernel is not fitted again when the backbone changes.
        inputs: the inputs whose features are the centers of the head, one for each row of its values.
        learn_backbone: `False` fixes the backbone: no gradients, and always in eval mode (no dropout, fixed statistics).
            `True` leaves its parameters as they are, some of which may be fixed.
        batch_size: inputs propagated together in eval mode.

    Shape:
        - x: `(B, ...)`, whatever the backbone takes; output: `(B, C)`

    Example:
        >>> backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Tanh())
        >>> images, labels = torch.randn(50, 1, 8, 8), torch.randint(0, 3, (50,))
        >>> values = torch.nn.functional.one_hot(labels).float()
        >>> readout = KernelReadout.propagated(backbone, images, values, num_neighbors=10).eval()
        >>> bool((readout(images).argmax(1) == labels).all())
        True
    """

    inputs: Tensor | None

    def __init__(
        self,
        backbone: nn.Module,
        head: SupportLayer,
        *,
        inputs: Tensor | None = None,
        learn_backbone: bool = True,
        batch_size: int = 256,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise InputTypeError(f"The backbone must be an nn.Module, got {type(backbone).__name__}.")
        if not isinstance(head, SupportLayer):
            raise InputTypeError(
                f"The head must be a layer of torchkrr.nn, such as LocalKernelRidge, got {type(head).__name__}."
            )
        check_at_least_one("batch_size", batch_size)
        self.backbone = backbone
        self.head = head
        self.learn_backbone = learn_backbone
        self.batch_size = batch_size
        self._fingerprint: Fingerprint | None = None  # of what the centers of the head were propagated from
        if not learn_backbone:
            backbone.requires_grad_(False).eval()
        if inputs is None:
            self.inputs = None
            return
        self._check_inputs(inputs, len(head.values))
        if "centers" in head._parameters:
            raise InputError(
                "With inputs the centers are their features, so the head cannot learn them: build it with "
                "learn_centers=False, or leave the inputs out."
            )
        register(self, "inputs", inputs, learn=False)

    @classmethod
    def propagated(
        cls,
        backbone: nn.Module,
        inputs: Tensor,
        values: Tensor,
        *,
        layer: type[SupportLayer] = LocalKernelRidge,
        learn_values: bool = False,
        learn_backbone: bool = True,
        batch_size: int = 256,
        **choices: Any,
    ) -> KernelReadout:
        r"""No parameters beyond the backbone's, $k(f(\cdot),x_\theta)\,k(x_\theta,x_\theta)^{-1}y$; or learned values.

        Args:
            layer: class of the head; `choices` are its other arguments, such as `num_neighbors` or `kernel`.
            learn_values: make the values at the propagated points Parameters that start at `values`.
        """
        features = _propagate(backbone, inputs, batch_size)
        head = layer(features, values, learn_values=learn_values, **choices)
        return cls(backbone, head, inputs=inputs, learn_backbone=learn_backbone, batch_size=batch_size)

    @classmethod
    def parameterized(
        cls,
        backbone: nn.Module,
        inputs: Tensor,
        values: Tensor,
        *,
        layer: type[SupportLayer] = LocalKernelRidge,
        learn_centers: bool = True,
        learn_values: bool = True,
        learn_backbone: bool = True,
        batch_size: int = 256,
        **choices: Any,
    ) -> KernelReadout:
        """Centers that are free in feature space, and values; both start at the features of `inputs` and at `values`."""
        features = _propagate(backbone, inputs, batch_size)
        head = layer(features, values, learn_centers=learn_centers, learn_values=learn_values, **choices)
        return cls(backbone, head, learn_backbone=learn_backbone, batch_size=batch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """The features of inputs, `(B, D)`."""
        return _vectors(self.backbone(x), len(x))

    def forward_head(self, features: Tensor, centers: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Predictions from features, `(B, D)` to `(B, C)`.

        `centers` and `values`, with their graphs, take the place of the head's for this call: those of a support set drawn
        anew in each step.
        """
        if values is not None and centers is None:
            raise InputError("values were given without their centers. Give both, or centers alone.")
        return self._call(self.head, features, centers, values)  # type: ignore[no-any-return]

    def power_function(self, x: Tensor) -> Tensor:
        """The error indicator of each prediction, `(B,)`."""
        return self._call(self.head.power_function, self.forward_features(x))  # type: ignore[no-any-return]

    def explain(self, x: Tensor) -> Explanation:
        """The centers behind each prediction, as rows of `inputs` or of the head, and their weights."""
        if not hasattr(self.head, "explain"):
            raise InputError(f"{type(self.head).__name__} has no explain. LocalKernelRidge has.")
        return self._call(self.head.explain, self.forward_features(x))  # type: ignore[no-any-return]

    def append(self, inputs: Tensor, values: Tensor) -> None:
        """Learn from more inputs without training: their features become centers of the head.

        Shape:
            - inputs: `(n, ...)`; values: `(n, C)`
        """
        self._check_inputs(inputs, len(values))
        features = _propagate(self.backbone, inputs, self.batch_size).to(self.head.centers.dtype)
        self._refresh()
        self.head.append(features, values)
        if self.inputs is not None:
            with torch.inference_mode(False):
                self.inputs = torch.cat((self.inputs, inputs.detach().to(self.inputs)))
            self._fingerprint = Fingerprint(*self._sources())

    def remove(self, indices: Tensor) -> None:
        """Forget the centers with these row numbers, and their inputs."""
        self._refresh()
        self.head.remove(indices)
        if self.inputs is not None:
            remaining = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
            remaining[indices.to(remaining.device)] = False
            with torch.inference_mode(False):
                self.inputs = self.inputs[remaining]
            self._fingerprint = Fingerprint(*self._sources())

    def train(self, mode: bool = True) -> KernelReadout:
        super().train(mode)
        if not self.learn_backbone:
            self.backbone.eval()
        return self

    def _call(self, function: Any, features: Tensor, centers: Tensor | None = None, values: Tensor | None = None) -> Any:
        """Call a method of the head on current centers, or on the centers and values of this call."""
        if centers is None and self.inputs is not None and self.training and self.learn_backbone:
            self._fingerprint = None
            centers = _vectors(self.backbone(self.inputs), len(self.inputs))
        elif centers is None:
            self._refresh()
        # What autocast computes in half precision meets centers in full.
        dtype = self.head.centers.dtype
        replaced = {} if centers is None else {"centers": centers.to(dtype)}
        with _replaced(self.head, replaced if values is None else {**replaced, "values": values}):
            return function(features.to(dtype))

    def _refresh(self) -> None:
        """Put the features of the inputs into the head, unless it already has them."""
        if self.inputs is None or (self._fingerprint is not None and self._fingerprint.matches(*self._sources())):
            return
        self.head.centers = _propagate(self.backbone, self.inputs, self.batch_size).to(self.head.centers.dtype)
        self._fingerprint = Fingerprint(*self._sources())

    def _sources(self) -> tuple[list[Tensor], nn.Module]:
        """What the features in the head were computed from."""
        assert self.inputs is not None
        return [self.inputs, self.head.centers], self.backbone

    def _check_inputs(self, inputs: Tensor, count: int) -> None:
        check_tensor("inputs", inputs)
        if inputs.ndim == 0 or len(inputs) != count:
            raise ShapeError(
                f"inputs must have one row for each row of the values ({count}), got shape {tuple(inputs.shape)}."
            )
        like = getattr(self, "inputs", None)
        if like is not None and inputs.shape[1:] != like.shape[1:]:
            raise ShapeError(
                f"inputs must be of the shape of those that are there, {tuple(like.shape[1:])} each, "
                f"got {tuple(inputs.shape[1:])}."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        self._fingerprint = None
        resize_buffers(self, ("inputs",), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**without_graph(self), "_fingerprint": None}

    def extra_repr(self) -> str:
        centers = "free" if self.inputs is None else "propagated"
        return f"centers={centers!r}, learn_backbone={self.learn_backbone}"


def _propagate(backbone: nn.Module, inputs: Tensor, batch_size: int) -> Tensor:
    """Features of all inputs, in eval mode, without a graph."""
    check_tensor("inputs", inputs)
    if inputs.ndim == 0 or not len(inputs):
        raise ShapeError(f"inputs must have at least one row, got a tensor of shape {tuple(inputs.shape)}.")
    with in_mode(backbone, training=False), torch.inference_mode(False), torch.no_grad():
        # Inputs made in inference mode would make features that cannot take part in a backward pass.
        return torch.cat([_vectors(backbone(batch), len(batch)) for batch in usable(inputs).split(batch_size)])


@contextlib.contextmanager
def _replaced(layer: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """Replace tensors of a layer by others, with their graphs, inside the block."""
    groups: dict[str, Any] = {name: layer._parameters if name in layer._parameters else layer._buffers for name in tensors}
    own = {name: group[name] for name, group in groups.items()}
    for name, tensor in tensors.items():
        groups[name][name] = tensor
    try:
        yield
    finally:
        for name, tensor in own.items():
            groups[name][name] = tensor


def _vectors(features: Any, count: int) -> Tensor:
    check_tensor("the features of the backbone", features)
    if features.ndim != 2 or len(features) != count:
        raise ShapeError(
            f"The backbone must give one vector for each input, ({count}, D), got shape {tuple(features.shape)}. "
            'torchkrr.models.Tapped(network, layer, pooling="mean") makes vectors of maps and tokens.'
        )
    return features  # type: ignore[no-any-return]


class QNetwork(nn.Module):
    r"""Action values from three layers, $\mathrm{ReLU}(\mathrm{ReLU}(s\theta_1)\theta_2)\theta_3$, with biases.

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
            drawn = farthest_points(points / scales, num_centers) if placing == "farthest" else torch.randperm(len(points))
            chosen = drawn[:num_centers]
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
        """The kernel parts, first and last, without those left out."""
        return [part for part in (self.first_kernel, self.last_kernel) if part is not None]


def typical_scales(points: Tensor) -> Tensor:
    r"""A lengthscale for each feature: its standard deviation times the mean distance of standardized points.

    A feature without variance counts as having a standard deviation of one. The mean distance is that of at most 4096
    points, evenly spaced.

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
