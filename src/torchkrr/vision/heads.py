"""`head.safetensors`: a classifier on frozen features, with all it needs to classify and to explain. No pickle."""

from __future__ import annotations

import copy
import fnmatch
import os
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .._checks import check_at_least_one, nearest_name
from .._chunking import ranges
from ..errors import FileError, InputError, ShapeError
from ..estimators.state import kernel_from, kernel_plan
from ..estimators.storage import HEAD, Stored, read_model, write_model
from ..nn import LocalKernelRidge
from ..tuning.leave_one_out import leave_one_out_of, sample_rows
from .backbones import Backbone, open_backbone
from .datasets import IMAGE_SUFFIXES, images_by_class
from .images import read_image

EXPECTED = "Expected a head.safetensors written by torchkrr transfer"
KERNEL = "kernel."
BATCH_SIZE = 64


class Head(NamedTuple):
    """A local kernel ridge layer on features, and what its inputs and outputs mean."""

    layer: LocalKernelRidge
    temperature: float
    classes: list[str]
    items: list[str]  # what each center was made from, such as the file of an image
    backbone: dict[str, Any] | None  # name, settings and fingerprint of what makes the features; None: they were given
    key: str = ""  # of what the head was fitted to

    def probabilities(self, features: Tensor) -> Tensor:
        """Of each class, `(Q, D)` to `(Q, C)`."""
        with torch.no_grad():
            return torch.softmax(self.layer(features) / self.temperature, dim=1)


class Contribution(NamedTuple):
    """A training example in a prediction: the score of a class is the sum of the weights of its examples."""

    center: int  # row of the head's centers
    item: str
    label: str
    weight: float


class Classification(NamedTuple):
    label: str
    probability: float
    indicator: float  # local error indicator: 0 at a training example, 1 far from all
    probabilities: Tensor  # (C,)
    because: tuple[Contribution, ...]  # largest weights first


class Features(NamedTuple):
    """Features of images, or given ones, for a head."""

    names: list[str]
    features: Tensor  # (Q, D) float32


def write_head(path: str | os.PathLike[str], head: Head) -> None:
    """Write the file atomically.

    Example:
        >>> import pathlib, tempfile
        >>> layer = torchkrr.nn.LocalKernelRidge(torch.randn(9, 4), torch.eye(3).repeat(3, 1), 5)
        >>> head = Head(layer, 0.1, ["cat", "dog", "owl"], [f"{i}.png" for i in range(9)], None)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "head.safetensors"
        >>> write_head(path, head)
        >>> query = torch.randn(2, 4)
        >>> torch.equal(read_head(path).probabilities(query), head.probabilities(query))
        True
    """
    layer = head.layer
    if len(head.items) != layer.num_centers:
        raise InputError(
            f"The head names {len(head.items)} examples, but its layer has {layer.num_centers} centers, so it would explain "
            "with wrong ones. Add and remove with with_examples and without_examples of torchkrr.vision.heads."
        )
    tensors = {"centers": layer.centers, "values": layer.values}
    tensors |= {KERNEL + name: tensor for name, tensor in layer.kernel.state_dict().items()}
    plain = {
        "kernel": kernel_plan(layer.kernel),
        "num_neighbors": layer.num_neighbors,
        "ridge": float(layer.ridge),
        "trend": layer.trend,
        "fade": layer.fade,
        "temperature": head.temperature,
        "classes": head.classes,
        "items": head.items,
        "backbone": head.backbone,
        "key": head.key,
    }
    write_model(path, Stored(HEAD, {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, plain))


def read_head(path: str | os.PathLike[str]) -> Head:
    """The head that `write_head` wrote; another file, or a damaged one, is an error that says so."""
    kind, tensors, plain = read_model(path, expected=EXPECTED)
    if kind != HEAD:
        raise FileError(f"{path} holds a torchkrr model of the kind {kind}, not a head. {EXPECTED}.")
    state = {name.removeprefix(KERNEL): tensor for name, tensor in tensors.items() if name.startswith(KERNEL)}
    layer = LocalKernelRidge(
        tensors["centers"],
        tensors["values"],
        plain["num_neighbors"],
        kernel=kernel_from(plain["kernel"], state),
        ridge=plain["ridge"],
        trend=plain["trend"],
        fade=plain["fade"],
    )
    return Head(layer, plain["temperature"], plain["classes"], plain["items"], plain["backbone"], plain["key"])


@torch.no_grad()
def classify(head: Head, features: Tensor, *, explained: int = 5) -> list[Classification]:
    """Predictions of `features`, `(Q, D)`, each with the `explained` training examples of largest weight.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> layer = torchkrr.nn.LocalKernelRidge(x, torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), 2)
        >>> head = Head(layer, 0.1, ["low", "high"], ["a.png", "b.png", "c.png", "d.png"], None)
        >>> prediction = classify(head, torch.tensor([[0.2]]), explained=1)[0]
        >>> prediction.label, prediction.because[0].item
        ('low', 'a.png')
    """
    check_at_least_one("explained", explained)
    probabilities = head.probabilities(features)
    indicators = head.layer.power_function(features).tolist()
    indices, weights = head.layer.explain(features)
    order = weights.abs().argsort(dim=1, descending=True, stable=True)[:, :explained]
    labels = head.layer.values.argmax(1)
    predictions = []
    for row, own in enumerate(probabilities):
        best = int(own.argmax())
        because = tuple(
            Contribution(center, head.items[center], head.classes[int(labels[center])], weight)
            for center, weight in zip(indices[row, order[row]].tolist(), weights[row, order[row]].tolist(), strict=True)
        )
        predictions.append(Classification(head.classes[best], float(own[best]), indicators[row], own, because))
    return predictions


@torch.no_grad()
def typicality(head: Head, predictions: Sequence[Classification]) -> list[float]:
    """For each prediction the share of the training examples, predicted from the others, with as large an indicator.

    Of more than 500 training examples a sample is used.
    """
    rows = sample_rows(head.layer.num_centers, 500, 0, head.layer.centers.device)
    powers = leave_one_out_of(head.layer, rows).powers
    return [float((powers >= prediction.indicator).double().mean()) for prediction in predictions]


def with_examples(head: Head, features: Tensor, labels: Sequence[str], items: Sequence[str]) -> Head:
    """A head with more examples; nothing is fitted again. A new class gets a column of its own.

    Args:
        head: it stays as it is.
        features: made by its backbone.
        labels: names of classes, one for each row.
        items: what each row was made from, such as the file of an image; explanations name it.

    Shape:
        - features: `(n, D)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> layer = torchkrr.nn.LocalKernelRidge(x, torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), 2)
        >>> head = Head(layer, 0.1, ["low", "high"], ["a.png", "b.png", "c.png", "d.png"], None)
        >>> more = with_examples(head, torch.tensor([[5.0], [6.0]]), ["middle", "middle"], ["e.png", "f.png"])
        >>> more.classes, more.classes[int(more.probabilities(torch.tensor([[5.5]])).argmax())]
        (['low', 'high', 'middle'], 'middle')
    """
    if not len(features) == len(labels) == len(items):
        raise ShapeError(
            f"features, labels and items must have as many rows, got {len(features)}, {len(labels)} and {len(items)}."
        )
    known = set(head.items)
    for item in items:
        if item in known:
            raise InputError(f"{item} would be in the head twice. Take it out first, or give it another name.")
        known.add(item)
    classes = [*head.classes, *(label for label in dict.fromkeys(labels) if label not in head.classes)]
    layer = copy.deepcopy(head.layer)
    layer.values = torch.nn.functional.pad(layer.values, (0, len(classes) - len(head.classes)))
    numbers = torch.tensor([classes.index(label) for label in labels], device=features.device)
    layer.append(features, torch.nn.functional.one_hot(numbers, len(classes)).to(layer.values))
    return head._replace(layer=layer, classes=classes, items=[*head.items, *items], key="")


def without_examples(head: Head, patterns: Sequence[str]) -> Head:
    """A head without the examples of these names, as if it had never had them; `*` and `?` stand for any letters.

    A class without examples stays, and is never predicted with confidence. Where fewer examples are left than the head has
    neighbors, it uses all of them.

    Example:
        >>> layer = torchkrr.nn.LocalKernelRidge(torch.randn(3, 2), torch.eye(3), 3)
        >>> head = Head(layer, 0.1, ["a", "b", "c"], ["a/1.png", "b/1.png", "b/2.png"], None)
        >>> without_examples(head, ["b/*"]).items
        ['a/1.png']
    """
    removed: set[int] = set()
    for pattern in patterns:
        rows = {row for row, item in enumerate(head.items) if item == pattern or fnmatch.fnmatchcase(item, pattern)}
        if not rows:
            near = nearest_name(pattern, head.items)
            hint = f"Did you mean {near}?" if near is not None else f"Its examples have names such as {head.items[0]}."
            raise InputError(f"The head has no example {pattern}. {hint}")
        removed |= rows
    layer = copy.deepcopy(head.layer)
    layer.remove(torch.tensor(sorted(removed), device=layer.centers.device))
    layer.num_neighbors = min(layer.num_neighbors, layer.num_centers)
    return head._replace(layer=layer, items=[item for row, item in enumerate(head.items) if row not in removed], key="")


def read_images(head: Head, paths: Sequence[str], *, weights: str | None = None, progress: bool = False) -> Features:
    """Features for a head: of image files and folders of them by its backbone, or given in .npz files."""
    if head.backbone is None:
        return _given_features(paths, head.layer.centers.shape[1])
    files: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise FileError(f"There is no image {path}.")
        inside = [file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES]
        if path.is_dir() and not inside:
            raise FileError(f"The folder {path} has no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        files += sorted(inside) if path.is_dir() else [path]
    backbone = _open_backbone(head.backbone, weights)
    parts = []
    with torch.no_grad(), tqdm(total=len(files), desc="images", disable=not progress) as bar:
        for chunk in ranges(len(files), BATCH_SIZE):
            images = [read_image(path) for path in files[chunk]]
            parts.append(backbone.model(backbone.prepare(images)).float())
            bar.update(len(images))
    return Features([str(path) for path in files], torch.cat(parts))


def read_labeled(head: Head, path: str, *, weights: str | None = None, progress: bool = False) -> tuple[Features, list[str]]:
    """Features for a head, and the class of each: of a folder with a folder of images for each class, whose own name begins
    those of the examples; or from an .npz file with `features` and `labels`."""
    if head.backbone is None:
        given = _given_features([path], head.layer.centers.shape[1])
        labels, count = _npz_array(path, "labels"), len(given.names)
        if labels.shape != (count,):
            raise FileError(
                f"{path} must have one label for each row of its {count} features, got the shape {labels.shape}."
            )
        return given, [str(label) for label in labels.tolist()]
    folder = pathlib.Path(path)
    files, classes = images_by_class(folder)
    images = read_images(head, [str(folder / file) for file in files], weights=weights, progress=progress)
    return images._replace(names=[f"{folder.resolve().name}/{file}" for file in files]), classes


def _open_backbone(requested: dict[str, Any], weights: str | None) -> Backbone:
    """The backbone a head was made with, or an error if its weights or settings are others."""
    if requested["weights"] is not None and weights is None:
        raise InputError(
            f"This head was made with weights from a file, {requested['weights']}. Give that file again, with --weights."
        )
    options = {name: requested[name] for name in ("size", "layer", "pooling", "random_weights")}
    backbone = open_backbone(requested["name"], weights=weights, **options)
    if backbone.fingerprint != requested["fingerprint"]:
        raise InputError(
            f"The weights or the preparation of {requested['name']} are not those that the head was made with, so its "
            "features would mean something else. Give the same file of weights, and install the same version of the model's "
            "library."
        )
    return backbone


def _given_features(paths: Sequence[str], width: int) -> Features:
    names, parts = [], []
    for path in paths:
        if pathlib.Path(path).suffix != ".npz":
            raise FileError(
                f"This head was made from given features, so it classifies features: an .npz file with an array `features`, "
                f"got {path}."
            )
        features = torch.from_numpy(np.ascontiguousarray(_npz_array(path, "features"), dtype=np.float32))
        if features.ndim != 2 or features.shape[1] != width:
            raise FileError(
                f"The features of {path} have shape {tuple(features.shape)}, but the head was made from rows of {width}."
            )
        parts.append(features)
        names += [f"{path} row {row}" for row in range(len(features))]
    return Features(names, torch.cat(parts))


def _npz_array(path: str, name: str) -> np.ndarray:
    try:
        # Opened here: of a damaged archive numpy leaves the file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} cannot be read as an .npz file with an array `{name}`: {error}.") from error
