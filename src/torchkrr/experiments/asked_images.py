"""Images or features that a head is asked to classify."""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._chunking import ranges
from .._progress import Progress
from ..errors import FileError, InputError
from ..vision.backbones import Backbone, open_backbone
from ..vision.datasets import IMAGE_SUFFIXES, images_by_class
from ..vision.images import read_image
from .heads import Head

AT_A_TIME = 64


class Asked(NamedTuple):
    names: list[str]
    features: Tensor  # (Q, D) float32


def read_asked(head: Head, paths: Sequence[str], *, weights: str | None = None, progress: bool = False) -> Asked:
    """The features that the head wants: of image files and folders of them by its backbone, or from .npz files."""
    if head.backbone is None:
        return _given_features(paths, head.layer.centers.shape[1])
    files = _image_files(paths)
    backbone = open_same_backbone(head, weights=weights)
    parts = []
    with torch.inference_mode(), Progress("images", len(files), shown=progress) as bar:
        for chunk in ranges(len(files), AT_A_TIME):
            pictures = [read_image(path) for path in files[chunk]]
            parts.append(backbone.model(backbone.prepare(pictures)).float())
            bar.advance(len(pictures))
    with torch.inference_mode(False):
        return Asked([str(path) for path in files], torch.cat(parts).clone())


def read_labelled(head: Head, path: str, *, weights: str | None = None, progress: bool = False) -> tuple[Asked, list[str]]:
    """Features that the head wants, and the class of each: of a folder with a folder of images for each class, whose own
    name begins those of the examples; or from an .npz file with `features` and `labels`."""
    if head.backbone is None:
        asked = _given_features([path], head.layer.centers.shape[1])
        return asked, _given_labels(path, len(asked.names))
    folder = pathlib.Path(path)
    files, labels = images_by_class(folder)
    asked = read_asked(head, [str(folder / file) for file in files], weights=weights, progress=progress)
    return asked._replace(names=[f"{folder.resolve().name}/{file}" for file in files]), labels


def open_same_backbone(head: Head, *, weights: str | None = None) -> Backbone:
    """The backbone the head was made with, or an error if its weights or settings are others."""
    asked = head.backbone
    if asked is None:
        raise InputError("This head was made from given features, so it has no backbone.")
    if asked["weights"] is not None and weights is None:
        raise InputError(
            f"This head was made with weights from a file, {asked['weights']}. Give that file again, with --weights."
        )
    options = {name: asked[name] for name in ("size", "layer", "pooling", "random_weights")}
    backbone = open_backbone(asked["name"], weights=weights, **options)
    if backbone.fingerprint != asked["fingerprint"]:
        raise InputError(
            f"The weights or the preparation of {asked['name']} are not those that the head was made with, so its features "
            "would mean something else. Give the same file of weights, and install the same version of the model's library."
        )
    return backbone


def _image_files(paths: Sequence[str]) -> list[pathlib.Path]:
    files: list[pathlib.Path] = []
    for name in paths:
        path = pathlib.Path(name)
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise FileError(f"The folder {path} has no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
            files += inside
        elif not path.exists():
            raise FileError(f"There is no image {path}.")
        else:
            files.append(path)
    return files


def _given_features(paths: Sequence[str], width: int) -> Asked:
    names, parts = [], []
    for path in paths:
        if pathlib.Path(path).suffix != ".npz":
            raise FileError(
                f"This head was made from given features, so it classifies features: an .npz file with an array `features`, "
                f"got {path}."
            )
        found = torch.from_numpy(np.ascontiguousarray(_array(path, "features"), dtype=np.float32))
        if found.ndim != 2 or found.shape[1] != width:
            raise FileError(
                f"The features of {path} have shape {tuple(found.shape)}, but the head was made from rows of {width}."
            )
        parts.append(found)
        names += [f"{path} row {row}" for row in range(len(found))]
    return Asked(names, torch.cat(parts))


def _given_labels(path: str, count: int) -> list[str]:
    labels = _array(path, "labels")
    if labels.shape != (count,):
        raise FileError(f"{path} must have one label for each row of its {count} features, got the shape {labels.shape}.")
    return [str(label) for label in labels.tolist()]


def _array(path: str, name: str) -> np.ndarray:
    try:
        # Opened here: of a damaged archive numpy leaves the file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} cannot be read as an .npz file with an array `{name}`: {error}.") from error
