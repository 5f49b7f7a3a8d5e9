"""Networks by name, cut at a depth, ending in vectors; all of it ready to be trained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..models.features import pool
from ..models.stages import cut_stages
from ..vision.backbones import has_channels_last, library_network, prefix_tokens, trial
from ..vision.images import Preparation
from .learn_config import Config
from .small_networks import SIZE, vgg_small, vit_small

SMALL: dict[str, Callable[[], nn.Sequential]] = {"vgg-small": vgg_small, "vit-small": vit_small}
MIDDLE, SPREAD = (0.5,) * 3, (0.25,) * 3  # of colors, near those of photographs


class Pool(nn.Module):
    """`torchkrr.models.pool` as a layer."""

    def __init__(self, how: str, *, num_prefix_tokens: int, channels_last: bool) -> None:
        super().__init__()
        self.how, self.num_prefix_tokens, self.channels_last = how, num_prefix_tokens, channels_last

    def forward(self, x: Tensor) -> Tensor:
        return pool(
            x,
            self.how,  # type: ignore[arg-type]
            num_prefix_tokens=self.num_prefix_tokens,
            channels_last=self.channels_last,
        )

    def extra_repr(self) -> str:
        return repr(self.how)


class Cut(NamedTuple):
    """The lower stages of a network."""

    backbone: nn.Module  # (B, 3, size, size) to (B, num_features)
    prepare: Preparation
    num_features: int

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.backbone.parameters())


def cut_network(config: Config) -> Cut:
    """The network of a run without its top stages: fresh, with weights that depend on the seed alone, or as its weights say.

    Example:
        >>> cut_network(Config(discard=3)).num_features
        64
    """
    if config.network in SMALL:
        stages, prepare, tokens, last = _small(config)
    else:
        network, prepare, _ = library_network(
            config.network,
            weights=None if config.weights == "pretrained" else config.weights,
            size=config.size,
            random_weights=config.weights is None,
            seed=config.seed,
        )
        if isinstance(network, nn.Sequential):  # weights of the convolutions of a VGG alone make it these
            network = nn.Sequential(OrderedDict(features=network))
        stages = cut_stages(network).without(config.discard)
        tokens, last = prefix_tokens(network), has_channels_last(network)
    if config.pooling == "class_token" and not tokens:
        raise InputError(f"{config.network} has no class token to pool by. Choose mean, max or flatten.")
    backbone = nn.Sequential(stages, Pool(str(config.pooling), num_prefix_tokens=tokens, channels_last=last))
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Cut(backbone, prepare, int(trial(config.network, prepare, backbone.eval()).shape[1]))


def _small(config: Config) -> tuple[nn.Sequential, Preparation, int, bool]:
    if config.weights is not None:
        raise InputError(f"There are no weights for {config.network}: it is trained from scratch.")
    if config.size not in (None, SIZE):
        raise InputError(f"{config.network} takes pictures of {SIZE} px, got size={config.size}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = SMALL[config.network]()  # all of it, so that every depth starts from the same weights
    stages = nn.Sequential(*list(network)[: len(network) - config.discard])
    return stages, Preparation(SIZE, MIDDLE, SPREAD, "bilinear"), 0, False
