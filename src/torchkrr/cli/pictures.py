"""Pictures, in folders of classes or not, as rows of features."""

from __future__ import annotations

import argparse
import pathlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._chunking import ranges
from ..errors import InputError
from ..vision.backbones import open_backbone
from ..vision.datasets import fixed_parts, images_by_class, picture_files
from ..vision.features import SETTINGS, about_backbone, features_in_batches, features_of, is_whole, reopen_backbone
from ..vision.images import ImageFiles
from ..vision.sampling import encode_labels
from .data import NumberedData
from .tables import Array, Task, as_classes


class ImageData(NumberedData):
    """Pictures, and the backbone that turns them into features."""

    kind, unit, at_once = "images", "pictures", 256

    def __init__(self, path: str, images: Any, backbone: Any, about: Mapping[str, Any], args: argparse.Namespace) -> None:
        super().__init__(path)
        self.images, self.backbone, self.about, self.args = images, backbone, dict(about), args

    def num_rows(self) -> int:
        return len(self.images)

    def points(self, piece: range) -> tuple[Array, Array]:
        parts = ranges(len(piece), self.args.batch_size)
        batches = [slice(piece.start + part.start, piece.start + part.stop) for part in parts]
        options = {"device": self.args.device, "strict": self.args.strict}
        computed = features_in_batches(self.backbone, self.images, batches, range(len(batches)), **options)
        features = torch.cat([features for _, features in computed])
        whole = is_whole(features).numpy()
        self.broken += [self.images.describe(row) for row, good in zip(piece, whole, strict=True) if not good]
        # A prediction of zeros, which is dropped.
        return features.nan_to_num().numpy(), whole

    def everything(self, *, progress: bool) -> tuple[Any, Any]:
        """With features that are kept meanwhile, so that an interrupted command goes on where it was."""
        count = len(self.images)
        part = features_of(self.images, self.backbone, self.args, progress)
        self.images = part.source
        self.skipped = count - len(self.images)
        return range(len(self.images)), part.features.numpy()

    def task(self, piece: range) -> Task:
        return "classification"

    def targets(self, piece: range) -> Array:
        raise InputError(f"The pictures of {self.path} have classes, the names of their folders, and no numbers to predict.")

    def labels(self, piece: range, classes: Array | None, *, new: bool = False) -> Array:
        own = np.array([self.images.classes[row] for row in self.images.labels[self.rows_of(piece)].tolist()], dtype=object)
        if classes is None:
            return own
        return as_classes(own, own, classes, f"The folder {self.path} holds", piece.start + 1, new=new)

    def names(self, piece: range) -> list[str]:
        return [self.images.describe(row) for row in piece]

    def carried(self, piece: range) -> Mapping[str, Any]:
        return {"image": self.names(piece)}

    def shown(self, piece: range, row: int) -> Array:
        return self.images.read([piece[row]])[0]  # type: ignore[no-any-return]

    def target_names(self, count: int, *, classes: bool) -> list[str]:
        return ["class"]

    def notes(self) -> dict[str, Any]:
        return {"kind": self.kind, "backbone": self.about}

    def describe(self) -> str:
        return self.backbone.text  # type: ignore[no-any-return]


def training_images(args: argparse.Namespace) -> ImageData:
    if args.backbone is None:
        raise InputError(f"{args.data} is a folder of pictures. Name the network that reads them: --backbone resnet18.")
    images = labeled_images(args.data)
    if len(images.classes) < 2:
        raise InputError(f"{args.data} has a single class, {images.classes[0]!r}. Add a folder of pictures of another one.")
    options = {name: getattr(args, name) for name in SETTINGS}
    backbone = open_backbone(args.backbone, weights=args.weights, **options)
    about = about_backbone(types.SimpleNamespace(**vars(args), network=args.backbone), backbone)
    return ImageData(args.data, images, backbone, about, args)


def labeled_images(path: str, *, start: str = "") -> ImageFiles:
    """The pictures of a folder with a folder for each class; `start` begins their names."""
    folder = pathlib.Path(path)
    parts = fixed_parts(folder)
    if parts is not None:
        raise InputError(
            f"{path} has a training and a test part. Give one of them: {folder / parts[0]} or {folder / parts[1]}."
        )
    files, labels = images_by_class(folder)
    root = folder.resolve()
    classes, encoded = encode_labels(labels)
    if start:
        root, files = root.parent, [f"{root.name}/{file}" for file in files]
    return ImageFiles(folder.name, classes, encoded, root, files)


def images_for(args: argparse.Namespace, about: dict[str, Any], paths: list[str], *, labeled: bool) -> ImageData:
    if labeled:
        images = labeled_images(paths[0], start="the name of the folder" if getattr(args, "add", None) else "")
    else:
        files = [str(file) for file in picture_files(paths)]
        images = ImageFiles("pictures", [], torch.zeros(len(files), dtype=torch.int64), pathlib.Path(), files)
    return ImageData(paths[0], images, reopen_backbone(about, args.weights), about, args)
