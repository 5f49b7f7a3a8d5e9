"""Frozen networks that turn pictures into vectors."""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .._checks import check_choice
from ..errors import InputError
from ..models.features import POOLINGS, Depths, Pooling, Tapped, features_at
from .catalog import library_network
from .digit_network import SIZE as DIGIT_SIZE
from .digit_network import WEIGHTS as DIGIT_WEIGHTS
from .digit_network import DigitNetwork
from .preparing import Preparation, preparation
from .weight_files import load_weights, weights_hash

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IDENTITY_SIZE = 32
T = TypeVar("T")
VERSION = 1  # of how features are computed; a change makes every cache stale


class Backbone(NamedTuple):
    """A network in eval mode that gives one vector for each picture."""

    name: str
    model: nn.Module  # (B, 3, H, W) to (B, num_features)
    prepare: Callable[[list[np.ndarray[Any, Any]]], Tensor]
    fingerprint: str  # of all that the features depend on
    num_features: int
    text: str  # for a report


def open_backbone(
    name: str,
    *,
    weights: str | None = None,
    size: int | None = None,
    layer: str | None = None,
    pooling: Pooling = "mean",
    random_weights: bool = False,
) -> Backbone:
    """A pretrained network by its name.

    Args:
        name: `"digits"`, a small one for digits that comes with the package; a name of torchvision or timm, with its own
            pretrained weights (`timm/NAME` insists on timm's); `"identity"`, the pixels themselves.
        weights: a local file instead (.safetensors, .pth, .th). It must fit the network, with or without its classifier, or
            one part of it, such as `features` of a VGG, which is then the backbone.
        size: edge of the pictures in pixels; `None` is what the network was trained with (`"identity"`: 32).
        layer: take the output of this layer; `None` is what goes into the classifier.
        pooling: of maps and tokens to vectors, see `torchkrr.models.pool`.
        random_weights: an untrained network, always with the same random weights.

    Example:
        >>> backbone = open_backbone("identity", size=8)
        >>> backbone.num_features, backbone.text
        (192, 'identity: the pixels, 8 px bicubic, 192 features')
    """
    if name == "identity":
        if weights is not None or layer is not None:
            raise InputError("The backbone identity has neither weights nor layers: its features are the pixels.")
        prepare = preparation(size or IDENTITY_SIZE, (0.0,) * 3, (1.0,) * 3, "bicubic")
        return _backbone(name, nn.Flatten(), prepare, "the pixels", None, "flatten", most=3 * prepare.size**2)
    return _backbone(name, *open_network(name, weights=weights, size=size, random_weights=random_weights), layer, pooling)


def wrap_backbone(
    network: nn.Module,
    *,
    name: str,
    size: int,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    interpolation: str = "bicubic",
    layer: str | None = None,
    pooling: Pooling = "mean",
) -> Backbone:
    """A backbone from a network of your own, `(B, 3, size, size)` in; it is put into eval mode.

    Example:
        >>> wrap_backbone(torch.nn.Conv2d(3, 5, 3), name="mine", size=9).num_features
        5
    """
    return _backbone(name, network, preparation(size, mean, std, interpolation), "a network of yours", layer, pooling)


def open_network(
    name: str, *, weights: str | None = None, size: int | None = None, random_weights: bool = False
) -> tuple[nn.Module, Preparation, str]:
    """A pretrained network without its classifier, how it wants its pictures, and words about its origin.

    Args:
        name, weights, size, random_weights: as in `open_backbone`; `"identity"` is none.
    """
    if weights is not None and random_weights:
        raise InputError("Either weights from a file or random ones: give one of the two.")
    if name == "digits":
        network, prepare, source = _digits(weights, size, random_weights)
    else:
        network, prepare, source = library_network(name, weights=weights, size=size, random_weights=random_weights)
    if weights is not None:
        origin = f"{source}, weights {pathlib.Path(weights).name}"
    else:
        origin = f"{source}, random weights" if random_weights else f"{source}, its pretrained weights"
    return network, prepare, origin


def in_use(network: nn.Module) -> nn.Module:
    """A network as features are computed with it: in eval mode, with channels last in memory."""
    used: nn.Module = network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return used


def _digits(weights: str | None, size: int | None, random_weights: bool) -> tuple[nn.Module, Preparation, str]:
    if size not in (None, DIGIT_SIZE):
        raise InputError(f"The backbone digits takes pictures of {DIGIT_SIZE} px, got size={size}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = DigitNetwork()
    if not random_weights:
        network = load_weights(network, DIGIT_WEIGHTS if weights is None else weights)
    return network, preparation(DIGIT_SIZE, (0.0,) * 3, (1.0,) * 3, "bilinear"), "part of torchkrr"


def _backbone(
    name: str, network: nn.Module, prepare: Preparation, origin: str, layer: str | None, pooling: Pooling, **choices: int
) -> Backbone:
    check_choice("pooling", pooling, POOLINGS[:-1])
    layer, network = layer or "", in_use(network)
    raw = trial(name, prepare, lambda blank: features_at(network, layer, blank))
    if raw.ndim == 2 and pooling not in ("mean", "flatten"):
        raise InputError(
            f"{name} gives vectors {'at its end' if not layer else f'at {layer!r}'}, so there is nothing to pool by "
            f"{pooling!r}. Name a layer that gives maps or tokens."
        )
    model = Tapped(
        network,
        layer,
        pooling,
        num_prefix_tokens=prefix_tokens(network) if raw.ndim == 3 else 0,
        channels_last=has_channels_last(network),
        **choices,
    ).eval()
    with torch.inference_mode():
        num_features = model(_blank(prepare)).shape[1]
    what = "" if raw.ndim == 2 and not layer else f", {pooling} of {layer or 'the last maps'} {tuple(raw.shape[1:])}"
    return Backbone(
        name,
        model,
        prepare,
        backbone_fingerprint(model, prepare),
        num_features,
        f"{name}: {origin}, {prepare.described()}{what}, {num_features} features",
    )


def trial(name: str, prepare: Preparation, features: Callable[[Tensor], T]) -> T:
    """What comes of a blank picture; an error that says so where a network cannot take pictures of this size."""
    with torch.inference_mode():
        try:
            return features(_blank(prepare))
        except InputError:
            raise
        # Networks that take one size only say so in their own ways.
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            raise InputError(f"{name} cannot take pictures of {prepare.size} px: {error}. Try another size.") from error


def _blank(prepare: Preparation) -> Tensor:
    return prepare([np.full((prepare.size, prepare.size, 3), 128, dtype=np.uint8)])


def prefix_tokens(network: nn.Module) -> int:
    """Class and register tokens before those of places."""
    return int(getattr(network, "num_prefix_tokens", 1 if hasattr(network, "class_token") else 0))


def has_channels_last(network: nn.Module) -> bool:
    """Whether its maps are `(B, H, W, C)`."""
    return str(getattr(network, "output_fmt", "")).endswith("NHWC") or type(network).__name__ == "SwinTransformer"


def backbone_fingerprint(model: Tapped | Depths, prepare: Preparation) -> str:
    """Of architecture, weights, preprocessing and all choices."""
    architecture = re.sub(r" at 0x[0-9a-f]+", "", str(model))
    where = model.layer if isinstance(model, Tapped) else model.layers
    settings = (where, model.pooling, model.num_prefix_tokens, model.channels_last, model.most)
    parts = [str(VERSION), architecture, weights_hash(model), repr(prepare), repr(settings)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
