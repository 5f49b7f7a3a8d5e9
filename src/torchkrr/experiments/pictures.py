"""Labelled pictures and features, whatever they are stored in."""

from __future__ import annotations

import abc
import functools
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError
from .extras import needed

Array = np.ndarray[Any, Any]
BLOCK = 1 << 20  # bytes of a file read at a time


class Pictures(abc.ABC):
    """A labelled collection of pictures that are read when they are needed.

    Attributes:
        name: of the collection.
        classes: the name of each class.
        labels: `(N,)` int64, rows of `classes`.
    """

    name: str
    classes: list[str]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @abc.abstractmethod
    def read(self, indices: Sequence[int]) -> list[Array]:
        """The pictures with these row numbers, each `(H, W, 3)` uint8."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that is in the collection, in its order: pixels or files, and labels."""

    @abc.abstractmethod
    def describe(self, index: int) -> str:
        """Words that lead to one picture: its file, or its number."""


class ArrayPictures(Pictures):
    """Pictures in an array `(N, H, W)` or `(N, H, W, 3)` of uint8; grey ones get three equal channels."""

    def __init__(self, name: str, classes: list[str], labels: Tensor, pixels: Array, *, part: str) -> None:
        self.name, self.classes, self.labels = name, classes, labels
        self.part = part
        self._pixels = pixels

    def read(self, indices: Sequence[int]) -> list[Array]:
        return [_three_channels(self._pixels[index]) for index in indices]

    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = _labels_digest(self.classes, self.labels)
        digest.update(f"pixels {self._pixels.shape} {self._pixels.dtype}\n".encode())
        for start in range(0, len(self._pixels), 1024):
            digest.update(np.ascontiguousarray(self._pixels[start : start + 1024]))
        return str(digest.hexdigest())

    def describe(self, index: int) -> str:
        return f"image {index} of the {self.part} part"


class FilePictures(Pictures):
    """Pictures in files; `paths` are relative to `root`."""

    def __init__(self, name: str, classes: list[str], labels: Tensor, root: pathlib.Path, paths: list[str]) -> None:
        self.name, self.classes, self.labels = name, classes, labels
        self.root, self.paths = root, paths

    def read(self, indices: Sequence[int]) -> list[Array]:
        return [read_picture(self.root / self.paths[index]) for index in indices]

    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = _labels_digest(self.classes, self.labels)
        for path in self.paths:
            contents, size = _file_hash(self.root / path)
            digest.update(f"{path}\0{size} {contents}\n".encode())
        return str(digest.hexdigest())

    def describe(self, index: int) -> str:
        return self.paths[index]


class SomePictures(Pictures):
    """Some pictures of a collection: those with the row numbers `rows`, in this order."""

    def __init__(self, whole: Pictures, rows: Tensor) -> None:
        self.name, self.classes, self.labels = whole.name, whole.classes, whole.labels[rows]
        self.whole, self.rows = whole, rows.tolist()

    def read(self, indices: Sequence[int]) -> list[Array]:
        return self.whole.read([self.rows[index] for index in indices])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.whole.fingerprint().encode())
        digest.update(np.asarray(self.rows, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def describe(self, index: int) -> str:
        return self.whole.describe(self.rows[index])


class FeatureSet(NamedTuple):
    """Labelled vectors that were computed elsewhere."""

    name: str
    classes: list[str]
    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,) int64
    part: str = "only"

    def fingerprint(self) -> str:
        digest = _labels_digest(self.classes, self.labels)
        digest.update(f"features {tuple(self.features.shape)} {self.features.dtype}\n".encode())
        digest.update(self.features.contiguous().numpy())
        return str(digest.hexdigest())

    def describe(self, index: int) -> str:
        return f"row {index} of the {self.part} part"


class Split(NamedTuple):
    """What to learn from, and what to be judged by."""

    train: Pictures | FeatureSet
    test: Pictures | FeatureSet


def read_picture(path: pathlib.Path) -> Array:
    """A picture file as `(H, W, 3)` uint8: upright, on white where it is transparent, 16-bit grey scaled down."""
    image_module, operations = (needed(name, "Reading pictures", extra="demo") for name in ("PIL.Image", "PIL.ImageOps"))
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
        raise FileError(f"The picture {path} cannot be read: {reason}. Remove it, or put a whole one there.") from error


def _three_channels(pixels: Array) -> Array:
    if pixels.ndim == 2 or pixels.shape[-1] == 1:
        return np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    return pixels[..., :3]


def _labels_digest(classes: list[str], labels: Tensor) -> Any:
    digest = hashlib.sha256("\0".join(classes).encode())
    digest.update(f"\nlabels {len(labels)}\n".encode())
    digest.update(labels.to(torch.int64).contiguous().numpy().data)
    return digest


def _file_hash(path: pathlib.Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise FileError(f"The picture {path} cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest(), size
