"""A network that ends in a kernel: the paper's two-layer model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_at_least_one, check_tensor
from .._state import register, resize_buffers, usable, without_graph
from ..errors import InputError, InputTypeError, ShapeError
from ..nn.base import Fingerprint, SupportLayer
from ..nn.local import Explanation, LocalKernelRidge
from .features import in_mode


class KernelReadout(nn.Module):
    r"""A backbone $f(\cdot,\theta)$ under a kernel head: $y_k(f(\cdot,\theta),\theta_x,\theta_y)$.

    Each of the three parameter sets is fixed or learned, in every combination:

    - $\theta$: the backbone, by `learn_backbone`;
    - $\theta_x$: the centers are points of the feature space that belong to the head (fixed, or learned by the head's
      `learn_centers`), or, with `inputs`, propagated points $x_\theta=f(x,\theta)$ that follow the backbone;
    - $\theta_y$: the values belong to the head, observed or learned by its `learn_values`.

    `propagated` and `parameterized` build the usual ones. Propagated points are computed anew in each pass in train mode,
    and gradients reach the backbone through them; in eval mode, and for a fixed backbone, they are kept until the weights
    or the inputs are, by content, not what they were. A head predicts its own centers exactly, so train on other inputs than
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
        self._known: Fingerprint | None = None
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
        return self._call(None, features, centers, values)  # type: ignore[no-any-return]

    def power_function(self, x: Tensor) -> Tensor:
        """The error indicator of each prediction, `(B,)`."""
        return self._call("power_function", self.forward_features(x))  # type: ignore[no-any-return]

    def explain(self, x: Tensor) -> Explanation:
        """The centers behind each prediction, as rows of `inputs` or of the head, and their weights."""
        if not hasattr(self.head, "explain"):
            raise InputError(f"{type(self.head).__name__} has no explain. LocalKernelRidge has.")
        return self._call("explain", self.forward_features(x))  # type: ignore[no-any-return]

    def append(self, inputs: Tensor, values: Tensor) -> None:
        """Learn from more inputs without training: their features become centers of the head.

        Shape:
            - inputs: `(n, ...)`; values: `(n, C)`
        """
        self._check_inputs(inputs, len(values), like=self.inputs)
        features = _propagate(self.backbone, inputs, self.batch_size).to(self.head.centers.dtype)
        if self.inputs is None:
            self.head.append(features, values)
            return
        self._refresh()
        self.head.append(features, values)
        with torch.inference_mode(False):
            self.inputs = torch.cat((self.inputs, inputs.detach().to(self.inputs)))
        self._known = Fingerprint(*self._sources())

    def remove(self, indices: Tensor) -> None:
        """Forget the centers with these row numbers, and their inputs."""
        if self.inputs is None:
            self.head.remove(indices)
            return
        self._refresh()
        keep = torch.ones(len(self.inputs), dtype=torch.bool, device=self.inputs.device)
        self.head.remove(indices)
        keep[indices.to(keep.device)] = False
        with torch.inference_mode(False):
            self.inputs = self.inputs[keep]
        self._known = Fingerprint(*self._sources())

    def train(self, mode: bool = True) -> KernelReadout:
        super().train(mode)
        if not self.learn_backbone:
            self.backbone.eval()
        return self

    def _call(
        self, method: str | None, features: Tensor, centers: Tensor | None = None, values: Tensor | None = None
    ) -> Any:
        centers = self._moving_centers() if centers is None else centers
        # What autocast computes in half precision meets centers in full.
        features = features.to(self.head.centers.dtype)
        function = self.head if method is None else getattr(self.head, method)
        if centers is None:
            return function(features)
        replaced = {"centers": centers.to(self.head.centers.dtype)} | ({} if values is None else {"values": values})
        with _replaced(self.head, replaced):
            return function(features)

    def _moving_centers(self) -> Tensor | None:
        """Propagated points with their graph while the backbone is being learned; else `None`: the head has them."""
        if self.inputs is None:
            return None
        if self.training and self.learn_backbone:
            self._known = None
            return _vectors(self.backbone(self.inputs), len(self.inputs))
        self._refresh()
        return None

    def _refresh(self) -> None:
        """Put the features of the inputs into the head, unless those there are still right."""
        assert self.inputs is not None
        if self._known is not None and self._known.matches(*self._sources()):
            return
        features = _propagate(self.backbone, self.inputs, self.batch_size)
        self.head.centers = features.to(self.head.centers.dtype)
        self._known = Fingerprint(*self._sources())

    def _sources(self) -> tuple[list[Tensor], nn.Module]:
        """What the features in the head were computed from."""
        assert self.inputs is not None
        return [self.inputs, self.head.centers], self.backbone

    def _check_inputs(self, inputs: Tensor, count: int, like: Tensor | None = None) -> None:
        check_tensor("inputs", inputs)
        if inputs.ndim == 0 or len(inputs) != count:
            raise ShapeError(
                f"inputs must have one row for each row of the values ({count}), got shape {tuple(inputs.shape)}."
            )
        if like is not None and inputs.shape[1:] != like.shape[1:]:
            raise ShapeError(
                f"inputs must be of the shape of those that are there, {tuple(like.shape[1:])} each, "
                f"got {tuple(inputs.shape[1:])}."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        self._known = None
        resize_buffers(self, ("inputs",), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**without_graph(self), "_known": None}

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
        given = usable(inputs)
        return torch.cat([_vectors(backbone(part), len(part)) for part in given.split(batch_size)])


class _replaced:
    """Inside the block a layer has other tensors under the names of its own; their graphs stay."""

    def __init__(self, layer: nn.Module, tensors: dict[str, Tensor]) -> None:
        self.layer, self.tensors = layer, tensors
        self.before: list[tuple[dict[str, Any], str, Tensor]] = []

    def __enter__(self) -> None:
        for name, tensor in self.tensors.items():
            place: dict[str, Any] = self.layer._parameters if name in self.layer._parameters else self.layer._buffers
            self.before.append((place, name, place[name]))
            place[name] = tensor

    def __exit__(self, *_: object) -> None:
        for place, name, tensor in self.before:
            place[name] = tensor


def _vectors(features: Any, count: int) -> Tensor:
    check_tensor("the features of the backbone", features)
    if features.ndim != 2 or len(features) != count:
        raise ShapeError(
            f"The backbone must give one vector for each input, ({count}, D), got shape {tuple(features.shape)}. "
            'torchkrr.models.Tapped(network, layer, pooling="mean") makes vectors of maps and tokens.'
        )
    return features  # type: ignore[no-any-return]
