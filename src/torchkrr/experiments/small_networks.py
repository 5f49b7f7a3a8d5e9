"""Two networks in five stages that two cores can train from scratch on pictures of 32 x 32 pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NUM_STAGES = 5
VGG_WIDTHS = (32, 64, 128, 128, 128)
VIT_WIDTH, VIT_HEADS, VIT_EXPANSION, VIT_PATCH = 64, 4, 2, 8
SIZE = 32


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
        found: Tensor = x + self.perceptron(self.before_perceptron(x))
        return found


def _convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
