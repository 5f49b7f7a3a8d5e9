"""`head.safetensors`: a classifier on frozen features, with all it needs to classify and to explain. No pickle."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import FileError, InputError
from ..estimators.storage import HEAD, Stored, kernel_from, kernel_plan, read_model, write_model
from ..nn import LocalKernelRidge

KIND = HEAD
EXPECTED = "Expected a head.safetensors written by torchkrr transfer"
KERNEL = "kernel."


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


def write_head(path: str | os.PathLike[str], head: Head) -> None:
    """Write the file; it is there complete or not at all.

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
            "with wrong ones. Add and remove with with_examples and without_examples of torchkrr.experiments.head_examples."
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
    write_model(path, Stored(KIND, {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, plain))


def read_head(path: str | os.PathLike[str]) -> Head:
    """The head that `write_head` wrote; another file, or a damaged one, is an error that says so."""
    kind, tensors, plain = read_model(path, expected=EXPECTED)
    if kind != KIND:
        raise FileError(f"{path} holds a torchkrr model of the kind {kind}, not a head. {EXPECTED}.")
    kernel = kernel_from(
        plain["kernel"], {name[len(KERNEL) :]: tensor for name, tensor in tensors.items() if name.startswith(KERNEL)}
    )
    layer = LocalKernelRidge(
        tensors["centers"],
        tensors["values"],
        plain["num_neighbors"],
        kernel=kernel,
        ridge=plain["ridge"],
        trend=plain["trend"],
        fade=plain["fade"],
    )
    return Head(layer, plain["temperature"], plain["classes"], plain["items"], plain["backbone"], plain["key"])
