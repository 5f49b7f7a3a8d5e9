"""Two small networks in five stages, and any network by name, cut at a depth and pooled to vectors, ready to be trained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torchkrr.errors import InputError
from torchkrr.models import cut_stages, pool
from torchkrr.vision import Preparation
from torchkrr.vision.backbones import has_channels_last, library_network, prefix_tokens, trial

from .config import NUM_STAGES, Config

VGG_WIDTHS = (32, 64, 128, 128, 128)
VIT_WIDTH, VIT_HEADS, VIT_EXPANSION, VIT_PATCH = 64, 4, 2, 8
SIZE = 32
GRAY, CONTRAST = (0.5,) * 3, (0.25,) * 3  # of colors, near those of photographs


def vgg_small(widths: Sequence[int] = VGG_WIDTHS) -> nn.Sequential:
    """A VGG with batch normalization: each stage a 3 x 3 convolution, and a maximum over 2 x 2 places; maps out.

    Example:
        >>> vgg_small()(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 128, 1, 1])
    """
    channels = (3, *widths)
    return nn.Sequential(*(_convolutions(channels[i], channels[i + 1]) for i in range(len(widths))))


def vit_small(
    width: int = VIT_WIDTH,
    *,
    num_heads: int = VIT_HEADS,
    expansion: int = VIT_EXPANSION,
    patch: int = VIT_PATCH,
    size: int = SIZE,
) -> nn.Sequential:
    """A vision transformer without class token: each stage a block, the first after the patches, a last norm; tokens out.

    Example:
        >>> vit_small()(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 16, 64])
    """
    blocks = [TransformerBlock(width, num_heads, expansion) for _ in range(NUM_STAGES)]
    first, *middle, last = blocks
    stages = [(Patches(width, patch, size), first), *((block,) for block in middle), (last, nn.LayerNorm(width))]
    return nn.Sequential(*(nn.Sequential(*stage) for stage in stages))


class Patches(nn.Module):
    """Squares of pixels as tokens, `(B, 3, H, W)` to `(B, T, D)`, with a learned position each."""

    def __init__(self, width: int, patch: int, size: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.project(x).flatten(2).transpose(1, 2)
        return tokens + self.positions


class TransformerBlock(nn.Module):
    """Attention, then a perceptron, each on normalized tokens and added to them."""

    def __init__(self, width: int, num_heads: int, expansion: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        heads = self.queries_keys_values(self.before_attention(x)).view(count, tokens, 3, self.num_heads, -1)
        attended = scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4))  # (B, heads, T, D / heads)
        x = x + self.mix(attended.transpose(1, 2).reshape(count, tokens, width))
        x = x + self.perceptron(self.before_perceptron(x))
        return x


def _convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


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
    if config.network in SMALL_NETWORKS:
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
        network = SMALL_NETWORKS[config.network]()  # all of it, so that every depth starts from the same weights
    stages = nn.Sequential(*list(network)[: len(network) - config.discard])
    return stages, Preparation(SIZE, GRAY, CONTRAST, "bilinear"), 0, False


SMALL_NETWORKS: dict[str, Callable[[], nn.Sequential]] = {"vgg-small": vgg_small, "vit-small": vit_small}
