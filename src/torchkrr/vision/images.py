"""Labeled images and features, whatever they are stored in, and batches of images for a network."""

from __future__ import annotations

import abc
import functools
import hashlib
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice
from .._extras import import_extra
from ..errors import FileError, ShapeError

Array = np.ndarray[Any, Any]
INTERPOLATIONS = ("bicubic", "bilinear")


class Images(abc.ABC):
    """A labeled collection of images, read when they are needed.

    Attributes:
        name: of the collection.
        classes: the name of each class.
        labels: `(N,)` int64, rows of `classes`.
    """

    def __init__(self, name: str, classes: list[str], labels: Tensor) -> None:
        self.name, self.classes, self.labels = name, classes, labels

    def __len__(self) -> int:
        return len(self.labels)

    @abc.abstractmethod
    def read(self, indices: Sequence[int]) -> list[Array]:
        """The images with these row numbers, each `(H, W, 3)` uint8."""

    @abc.abstractmethod
    def describe(self, index: int) -> str:
        """Where one image comes from: its file, or its number."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all content in order: pixels or files, labels, and names of the classes."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        digest.update(f"\nlabels {len(self)}\n".encode())
        digest.update(self.labels.to(torch.int64).contiguous().numpy().data)
        self._hash_images(digest)
        return digest.hexdigest()

    @abc.abstractmethod
    def _hash_images(self, digest: Any) -> None: ...


class ImageArray(Images):
    """Images in an array `(N, H, W)` or `(N, H, W, 3)` of uint8; gray ones get three equal channels.

    Example:
        >>> images = ImageArray("noise", ["a", "b"], torch.tensor([0, 1]), np.zeros((2, 8, 8), dtype=np.uint8), part="test")
        >>> len(images), images.read([1])[0].shape, images.describe(1)
        (2, (8, 8, 3), 'image 1 of the test part')
    """

    def __init__(self, name: str, classes: list[str], labels: Tensor, pixels: Array, *, part: str) -> None:
        super().__init__(name, classes, labels)
        self.pixels, self.part = pixels, part

    def read(self, indices: Sequence[int]) -> list[Array]:
        return [_three_channels(self.pixels[index]) for index in indices]

    def describe(self, index: int) -> str:
        return f"image {index} of the {self.part} part"

    def _hash_images(self, digest: Any) -> None:
        digest.update(f"pixels {self.pixels.shape} {self.pixels.dtype}\n".encode())
        for start in range(0, len(self.pixels), 1024):
            digest.update(np.ascontiguousarray(self.pixels[start : start + 1024]))


class ImageFiles(Images):
    """Images in files; `paths` are relative to `root`."""

    def __init__(self, name: str, classes: list[str], labels: Tensor, root: pathlib.Path, paths: list[str]) -> None:
        super().__init__(name, classes, labels)
        self.root, self.paths = root, paths

    def read(self, indices: Sequence[int]) -> list[Array]:
        return [read_image(self.root / self.paths[index]) for index in indices]

    def describe(self, index: int) -> str:
        return self.paths[index]

    def _hash_images(self, digest: Any) -> None:
        for path in self.paths:
            try:
                with open(self.root / path, "rb") as file:
                    content, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
            except OSError as error:
                raise FileError(f"The image {self.root / path} cannot be read: {error.strerror or error}.") from error
            digest.update(f"{path}\0{size} {content}\n".encode())


class ImageSubset(Images):
    """The images of a collection with the row numbers `rows`, in this order."""

    def __init__(self, images: Images, rows: Tensor) -> None:
        super().__init__(images.name, images.classes, images.labels[rows])
        self.images, self.rows = images, rows.tolist()

    def read(self, indices: Sequence[int]) -> list[Array]:
        return self.images.read([self.rows[index] for index in indices])

    def describe(self, index: int) -> str:
        return self.images.describe(self.rows[index])

    def _hash_images(self, digest: Any) -> None:
        digest.update(self.images.fingerprint.encode())
        digest.update(np.asarray(self.rows, dtype=np.int64).tobytes())


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Labeled vectors that were computed elsewhere.

    Shape:
        - features: `(N, D)` float32; labels: `(N,)` int64
    """

    name: str
    classes: list[str]
    features: Tensor
    labels: Tensor
    part: str = "only"

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self, index: int) -> str:
        return f"row {index} of the {self.part} part"


@dataclass(frozen=True)
class Preparation:
    """Crop the middle square of each image, resize it with antialiasing, and normalize each channel.

    Called with images `(H, W, 3)` in uint8 it gives `(B, 3, size, size)` in float32, in channels-last memory. Resizing
    works on bytes, as Pillow does, many times faster than on floats.

    Args:
        size: edge of the square in pixels.
        mean, std: of the channels, for pixels between 0 and 1.
        mode: `"bicubic"` or `"bilinear"`.

    Example:
        >>> prepare = Preparation(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
        >>> prepare([np.zeros((40, 30, 3), dtype=np.uint8)]).shape
        torch.Size([1, 3, 16, 16])
    """

    size: int
    mean: Sequence[float]
    std: Sequence[float]
    mode: str

    def __post_init__(self) -> None:
        check_at_least_one("size", self.size)
        check_choice("interpolation", self.mode, INTERPOLATIONS)
        mean, std = tuple(self.mean), tuple(self.std)
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ShapeError(f"mean and std must have three numbers each, std positive, got {mean} and {std}.")
        object.__setattr__(self, "mean", tuple(float(number) for number in mean))
        object.__setattr__(self, "std", tuple(float(number) for number in std))

    def __call__(self, images: Sequence[Array]) -> Tensor:
        squares = [_middle_square(image) for image in images]
        if len({square.shape for square in squares}) == 1:
            pixels = self._resize(squares)
        else:
            pixels = torch.cat([self._resize([square]) for square in squares])
        slope = torch.tensor([1 / (255 * std) for std in self.std]).view(3, 1, 1)
        shift = torch.tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(3, 1, 1)
        return pixels.to(torch.float32).mul_(slope).sub_(shift)

    def _resize(self, squares: list[Array]) -> Tensor:
        # Channels stay last in memory: (B, H, W, 3), seen as (B, 3, H, W).
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        if pixels.shape[-1] == self.size:
            return pixels
        shape = (self.size, self.size)
        return torch.nn.functional.interpolate(pixels, size=shape, mode=self.mode, antialias=True)

    def describe(self) -> str:
        return f"{self.size} px {self.mode}"


def read_image(path: pathlib.Path) -> Array:
    """An image file as `(H, W, 3)` uint8: upright, on white where it is transparent, 16-bit gray scaled down."""
    image_module, operations = (import_extra(name, "Reading images", extra="demo") for name in ("PIL.Image", "PIL.ImageOps"))
    try:
        with image_module.open(path) as file:
            image = operations.exif_transpose(file)
            if image.mode.startswith("I;16"):
                return _three_channels((np.asarray(image) >> 8).astype(np.uint8))
            if "A" in image.getbands() or "transparency" in image.info:
                image = image.convert("RGBA")
                image = image_module.alpha_composite(image_module.new("RGBA", image.size, "white"), image)
            return np.asarray(image.convert("RGB"))
    # Decoders of damaged files raise whatever they stumble over.
    except (OSError, ValueError, SyntaxError, TypeError, IndexError, KeyError, EOFError) as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
        raise FileError(f"The image {path} cannot be read: {reason}. Remove or replace it.") from error


def _three_channels(pixels: Array) -> Array:
    if pixels.ndim == 2 or pixels.shape[-1] == 1:
        return np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    return pixels[..., :3]


def _middle_square(image: Array) -> Array:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ShapeError(f"An image must be (H, W, 3) in uint8, got shape {image.shape} in {image.dtype}.")
    side = min(image.shape[:2])
    top, left = ((length - side) // 2 for length in image.shape[:2])
    return image[top : top + side, left : left + side]
