"""Pictures of any size as one batch for a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice
from ..errors import ShapeError

MODES = ("bicubic", "bilinear")


@dataclasses.dataclass(frozen=True)
class Preparation:
    """The middle square of each picture, resized with antialiasing and normalized per channel.

    Called with pictures `(H, W, 3)` in uint8 it gives `(B, 3, size, size)` in float32, in channels-last memory. Resizing
    works on bytes, as Pillow does, many times faster than on floats.

    Example:
        >>> import numpy as np
        >>> prepare = Preparation(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
        >>> prepare([np.zeros((40, 30, 3), dtype=np.uint8)]).shape
        torch.Size([1, 3, 16, 16])
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    mode: str

    def __call__(self, pictures: Sequence[np.ndarray[Any, Any]]) -> Tensor:
        squares = [_middle_square(picture) for picture in pictures]
        if len({square.shape for square in squares}) == 1:
            pixels = self._resized(squares)
        else:
            pixels = torch.cat([self._resized([square]) for square in squares])
        batch = pixels.to(torch.float32)
        slope = torch.tensor([1 / (255 * std) for std in self.std]).view(3, 1, 1)
        shift = torch.tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(3, 1, 1)
        return batch.mul_(slope).sub_(shift)

    def _resized(self, squares: list[np.ndarray[Any, Any]]) -> Tensor:
        # Channels stay last in memory: (B, H, W, 3), seen as (B, 3, H, W).
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        if pixels.shape[-1] == self.size:
            return pixels
        shape = (self.size, self.size)
        return torch.nn.functional.interpolate(pixels, size=shape, mode=self.mode, antialias=True)

    def described(self) -> str:
        return f"{self.size} px {self.mode}"


def preparation(size: int, mean: Sequence[float], std: Sequence[float], mode: str) -> Preparation:
    """With the arguments checked."""
    check_at_least_one("size", size)
    check_choice("interpolation", mode, MODES)
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ShapeError(f"mean and std must have three numbers each, std positive, got {tuple(mean)} and {tuple(std)}.")
    means, stds = ((float(row[0]), float(row[1]), float(row[2])) for row in (mean, std))
    return Preparation(size, means, stds, mode)


def _middle_square(picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or 0 in picture.shape:
        raise ShapeError(f"A picture must be (H, W, 3) in uint8, got shape {picture.shape} in {picture.dtype}.")
    side = min(picture.shape[:2])
    top, left = ((length - side) // 2 for length in picture.shape[:2])
    return picture[top : top + side, left : left + side]
