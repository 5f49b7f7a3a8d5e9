"""Features from several depths of a network in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_choice
from ..errors import InputError, InputTypeError
from .pooling import MOST_FEATURES, POOLINGS, Pooling, pool
from .taps import check_called_once, check_reached, first_tensor, named_layer, run_until


class Depths(nn.Module):
    """A network that ends at the last of several layers and gives a vector of each, side by side.

    The layers after the last one are not computed. Unlike stages (`cut_stages`), layers may lie anywhere, also inside a
    block with a skip connection; where they end stages, the vectors are the pooled outputs of the stages.

    Args:
        network: any `nn.Module`.
        layers: names as in `tap`, in the order they are called, each of them once in a pass.
        pooling, num_prefix_tokens, channels_last, most: see `pool`.

    Shape:
        - input: whatever the network takes; output: `(B, sum of the sizes of the vectors)`

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 5, 3))
        >>> depths = Depths(network, ["0", "2"])
        >>> x = torch.randn(2, 3, 9, 9)
        >>> depths(x).shape, [vector.shape[1] for vector in depths.vectors(x)]
        (torch.Size([2, 13]), [8, 5])
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Sequence[str],
        pooling: Pooling = "mean",
        *,
        num_prefix_tokens: int = 0,
        channels_last: bool = False,
        most: int = MOST_FEATURES,
    ) -> None:
        super().__init__()
        if isinstance(layers, str) or not all(isinstance(name, str) for name in layers):
            raise InputTypeError(f"layers must be a sequence of names of layers, got {layers!r}.")
        if not layers or len(set(layers)) < len(layers):
            raise InputError(f"layers must be at least one name, and all different, got {list(layers)}.")
        check_choice("pooling", pooling, POOLINGS[:-1])
        for name in layers:
            named_layer(network, name)
        self.network = network
        self.layers = tuple(layers)
        self.pooling: Pooling = pooling
        self.num_prefix_tokens = num_prefix_tokens
        self.channels_last = channels_last
        self.most = most

    def forward(self, x: Any) -> Tensor:
        return torch.cat(self.vectors(x), dim=1)

    def vectors(self, x: Any) -> list[Tensor]:
        """One tensor `(B, D)` for each layer."""
        return list(self._passed(x, self._pooled).values())

    def vectors_and_shapes(self, x: Any) -> tuple[list[Tensor], list[tuple[int, ...]]]:
        """Both, from one pass."""
        found = self._passed(x, lambda output: (self._pooled(output), tuple(output.shape[1:]))).values()
        return [vectors for vectors, _ in found], [shape for _, shape in found]

    def shapes(self, x: Any) -> list[tuple[int, ...]]:
        """The shape of each layer's output for one input, before pooling."""
        return list(self._passed(x, lambda output: tuple(output.shape[1:])).values())

    def _passed(self, x: Any, taken: Any) -> dict[str, Any]:
        """What is taken of the output of each layer, before later layers can overwrite it."""
        found: dict[str, Any] = {}
        last = self.layers[-1]

        def keep(name: str, output: Any) -> bool:
            check_called_once(name, found)
            found[name] = taken(first_tensor(name, output))
            return name == last

        run_until(self.network, x, self.layers, keep)
        if last in found and tuple(found) != self.layers:
            called = [*found, *(None for _ in self.layers)]
            first = next(name for name, call in zip(self.layers, called, strict=False) if name != call)
            raise InputError(
                f"The layer {first!r} is not called where it was named, before {last!r}: the order of calls was "
                f"{', '.join(found)}. Name layers in the order they are called."
            )
        check_reached(self.layers, found)
        return found

    def _pooled(self, output: Tensor) -> Tensor:
        vectors = pool(
            output,
            self.pooling,
            num_prefix_tokens=self.num_prefix_tokens,
            channels_last=self.channels_last,
            most=self.most,
        )
        return vectors.clone() if vectors.data_ptr() == output.data_ptr() else vectors

    def extra_repr(self) -> str:
        return f"layers={self.layers}, pooling={self.pooling!r}"
