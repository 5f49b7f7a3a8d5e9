"""A frozen network that is read at several depths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import nn

from ..errors import InputError
from ..models.features import Depths, Pooling
from ..models.stages import known_layers
from ..vision.backbones import (
    DIGIT_LAYERS,
    Backbone,
    DigitNetwork,
    backbone_fingerprint,
    has_channels_last,
    in_eval_mode,
    open_network,
    prefix_tokens,
    trial,
)
from ..vision.images import Preparation


class Depth(NamedTuple):
    """What is left of a network when its top stages are discarded."""

    discarded: int
    layer: str  # the last that is left
    shape: tuple[int, ...]  # of its output for one picture, before pooling
    columns: tuple[int, int]  # of the features of all depths: first, and behind the last

    @property
    def num_features(self) -> int:
        return self.columns[1] - self.columns[0]


class ProbedNetwork(NamedTuple):
    """A backbone whose features are those of all depths side by side."""

    backbone: Backbone
    depths: tuple[Depth, ...]  # the least discarded first


def open_depths(
    name: str,
    *,
    weights: str | None = None,
    size: int | None = None,
    layers: Sequence[str] | None = None,
    pooling: Pooling = "mean",
    random_weights: bool = False,
) -> ProbedNetwork:
    """A pretrained network by its name, read at the end of each of its stages; its head is not computed.

    Args:
        name, weights, size, pooling, random_weights: see `open_backbone`.
        layers: the last layer of each stage; `None` is five stages of a known network.

    Example:
        >>> [(depth.discarded, depth.layer, depth.num_features) for depth in open_depths("digits").depths]
        [(0, 'top', 128), (1, 'top.0', 64), (2, 'middle', 48), (3, 'middle.0', 48), (4, 'stem', 32)]
    """
    if name == "identity":
        raise InputError("The backbone identity has no layers to probe. Name a network.")
    network, prepare, origin = open_network(name, weights=weights, size=size, random_weights=random_weights)
    return read_at_depths(name, network, prepare, origin, layers=layers, pooling=pooling)


def read_at_depths(
    name: str,
    network: nn.Module,
    prepare: Preparation,
    origin: str,
    *,
    layers: Sequence[str] | None = None,
    pooling: Pooling = "mean",
) -> ProbedNetwork:
    """A network of any origin, read at the end of each of its stages."""
    model = depths_of(in_eval_mode(network), layers, pooling)
    vectors, shapes = trial(name, prepare, lambda blank: (model.vectors(blank), model.shapes(blank)))
    depths = as_depths(model.layers, [vector.shape[1] for vector in vectors], shapes)
    num_features = sum(depth.num_features for depth in depths)
    places = "; ".join(f"{depth.layer} {depth.shape}" for depth in reversed(depths))
    text = f"{name}: {origin}, {prepare.describe()}, {pooling} of {places}; {num_features} features"
    return ProbedNetwork(Backbone(name, model, prepare, backbone_fingerprint(model, prepare), num_features, text), depths)


def depths_of(network: nn.Module, layers: Sequence[str] | None, pooling: Pooling) -> Depths:
    """The network read at these layers, or where one that is known here is cut."""
    names = layers if layers is not None else _known(network)
    return Depths(
        network,
        names,
        pooling,
        num_prefix_tokens=prefix_tokens(network),
        channels_last=has_channels_last(network),
    )


def as_depths(layers: Sequence[str], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> tuple[Depth, ...]:
    """From the first layer to the last; the result begins with the last, with nothing discarded."""
    ends = list(accumulate(sizes))
    found = [
        Depth(len(layers) - 1 - place, layer, shape, (end - size, end))
        for place, (layer, size, shape, end) in enumerate(zip(layers, sizes, shapes, ends, strict=True))
    ]
    return tuple(reversed(found))


def _known(network: nn.Module) -> Sequence[str]:
    names: Any = DIGIT_LAYERS if isinstance(network, DigitNetwork) else known_layers(network)
    if names is None:
        raise InputError(
            f"Where the stages of {type(network).__name__} end is not known here. Name the last layer of each: "
            "layers=[...], --layers A,B,C (names as in model.named_modules())."
        )
    return list(names)
