"""Maps and tokens to vectors, so that a kernel can measure distances between them."""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice, check_floating, check_integer, check_tensor
from ..errors import InputError, ShapeError

Pooling = Literal["mean", "max", "class_token", "flatten"] | None
POOLINGS = ("mean", "max", "class_token", "flatten", None)
MOST_FEATURES = 4096
COPIES = 4  # entries of each column of the random projection


def pool(
    features: Tensor,
    how: Pooling = "mean",
    *,
    num_prefix_tokens: int = 0,
    channels_last: bool = False,
    most: int = MOST_FEATURES,
    seed: int = 0,
) -> Tensor:
    r"""Vectors from what a layer of a network gives: maps `(B, C, H, W)`, tokens `(B, T, C)`, or vectors already.

    Args:
        features: output of a layer for B inputs.
        how: `"mean"` or `"max"` over places or tokens; `"class_token"`, the first token; `"flatten"`, every number, and
            beyond `most` of them a random projection to `most`, which keeps distances to about `1 / sqrt(most)`; `None`
            leaves the features as they are. Vectors `(B, D)` stay as they are, whichever is asked for, but for a projection.
        num_prefix_tokens: so many tokens at the beginning (class and register tokens) are left out of mean and max.
        channels_last: maps are `(B, H, W, C)`, as those of Swin transformers.
        most: features that `"flatten"` gives at the most.
        seed: of the random projection. The same seed and size give the same projection, on every machine.

    Shape:
        - features: `(B, C, H, W)`, `(B, T, C)` or `(B, D)`; output: `(B, D)`

    Equivalent to

        result = features.mean(dim=(2, 3))  # "mean" of maps

    Example:
        >>> pool(torch.randn(2, 64, 7, 7)).shape, pool(torch.randn(2, 197, 768), "class_token").shape
        (torch.Size([2, 64]), torch.Size([2, 768]))
        >>> pool(torch.randn(2, 64, 56, 56), "flatten").shape
        torch.Size([2, 4096])
    """
    check_tensor("features", features)
    check_floating("features", features)
    check_choice("how", how, POOLINGS)
    check_at_least_one("most", most)
    check_integer("num_prefix_tokens", num_prefix_tokens)
    if how is None:
        return features
    if features.ndim not in (2, 3, 4):
        raise ShapeError(
            "Pooling takes maps (B, C, H, W), tokens (B, T, C) or vectors (B, D), "
            f"got a tensor of shape {tuple(features.shape)}. Tap another layer, or pass pooling=None and reduce it yourself."
        )
    if how == "flatten":
        return _projected(features.flatten(1), most, seed)
    if features.ndim == 2:
        return features
    if how == "class_token":
        if features.ndim != 3:
            raise ShapeError(
                f"A class token is the first of tokens (B, T, C), but this layer gives maps {tuple(features.shape)}. "
                'Use pooling="mean" or "max".'
            )
        return features[:, 0]
    if features.ndim == 3:
        if not 0 <= num_prefix_tokens < features.shape[1]:
            raise InputError(
                f"num_prefix_tokens must lie between 0 and {features.shape[1] - 1}, there are {features.shape[1]} tokens, "
                f"got {num_prefix_tokens}."
            )
        places = features[:, num_prefix_tokens:]
        return places.mean(1) if how == "mean" else places.amax(1)
    over = (1, 2) if channels_last else (2, 3)
    return features.mean(over) if how == "mean" else features.amax(over)


def _projected(vectors: Tensor, most: int, seed: int) -> Tensor:
    """A sparse Johnson-Lindenstrauss map: each feature goes, with random signs, to a few random places.

    Its memory is linear in the number of features; a dense one for early maps would fill gigabytes.
    """
    size = vectors.shape[1]
    if size <= most:
        return vectors
    places, signs = _projection(size, most, seed)
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    result = wide.new_zeros(len(vectors), most)
    for place, sign in zip(places, signs, strict=True):
        result = result.index_add(1, place.to(wide.device), wide * sign.to(wide))
    return (result / math.sqrt(COPIES)).to(vectors.dtype)


@functools.lru_cache(maxsize=8)
def _projection(size: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):
        places = torch.randint(most, (COPIES, size), generator=generator)
        signs = torch.randint(2, (COPIES, size), generator=generator, dtype=torch.int8) * 2 - 1
    return places, signs
