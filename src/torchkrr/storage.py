"""One file for a layer or a fitted estimator: tensors and JSON in the safetensors format, with a checksum. No pickle.

The header names the format, its version and the class; the tensor `state` holds the rest as JSON in UTF-8, where its size
is not limited as that of a header is. Version 1 is the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import operator
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from . import kernels, transforms
from ._files import first_bytes, replacing
from .errors import FileError, InputError, InputTypeError
from .kernels import Kernel
from .neighbors import AutoIndex, ExactIndex, FaissIndex, NeighborIndex, StreamedIndex, TreeIndex
from .nn import BlendedKernelRidge, HierarchicalKernelRidge, KernelRidge, LocalKernelRidge
from .transforms import Compose, Linear, StandardMean, Transform

__all__ = ["load", "save"]
Plain = dict[str, Any]
Tensors = dict[str, Tensor]
FORMAT = "torchkrr"
VERSION = 1
STATE = "state"
MOST_HEADER = 100_000_000  # bytes, in the safetensors format
EXPECTED = "Expected a model written by save() of a torchkrr estimator, or by torchkrr.save"
SIGNATURES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a ZIP archive (such as a torch or NumPy file)",
    b"PAR1": "a Parquet table",
    b"%PDF": "a PDF",
    b"\x1f\x8b": "a gzip archive",
    **{bytes((0x80, protocol)): "a pickle" for protocol in (2, 3, 4, 5)},
}
# Classes by their names in files.
KERNELS: dict[str, type[Kernel]] = {
    name: getattr(kernels, name) for name in kernels.__all__ if name not in ("Kernel", "default_kernel")
}
TRANSFORMS: dict[str, type[Transform]] = {
    name: getattr(transforms, name) for name in transforms.__all__ if name != "Transform"
}
LAYERS: dict[str, Any] = {
    kind.__name__: kind for kind in (KernelRidge, LocalKernelRidge, BlendedKernelRidge, HierarchicalKernelRidge)
}
INTERPOLATOR = "RBFInterpolator"
SAVE_THEMSELVES = tuple(f"{__package__}.{name}" for name in ("estimators", "interpolate"))
INDEXES: dict[str, Any] = {kind.__name__: kind for kind in (ExactIndex, StreamedIndex, AutoIndex, FaissIndex, TreeIndex)}
# Attributes of layers beside tensors, ridge, kernel and index; each layer has some of them.
CHOICES = (
    *("num_neighbors", "trend", "fade", "normalize", "on_singular", "backend", "keep_factors"),
    *("num_blended", "num_anchors", "num_coarse", "coarse", "coarse_ridge"),
)


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write a layer or a fitted estimator of torchkrr to one file, whole or not at all; no pickle is involved.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "layer.krr"
        >>> layer = torchkrr.nn.LocalKernelRidge.from_labels(torch.randn(50, 4), torch.arange(50) % 3)
        >>> torchkrr.save(layer, path)
        >>> torch.equal(torchkrr.load(path).centers, layer.centers)
        True
    """
    if type(obj) in LAYERS.values():
        write_model(path, _stored_layer(obj))
    elif any(base.__module__.startswith(SAVE_THEMSELVES) for base in type(obj).__mro__):
        obj.save(path)
    else:
        raise InputTypeError(
            f"Only {', '.join(LAYERS)}, RBFInterpolator and the estimators of torchkrr can be saved, got "
            f"{type(obj).__name__}. For other modules use torch.save(module.state_dict(), path)."
        )


def load(path: str | os.PathLike[str]) -> Any:
    """The layer or estimator in a file: it predicts the same, to the last bit. Nothing in the file is executed."""
    with _opened(path) as file:
        kind = str(_header(path, file.metadata()).get("class"))
    if kind == INTERPOLATOR:
        return getattr(importlib.import_module(".interpolate", __package__), kind).load(path)
    if kind not in LAYERS:
        estimators = importlib.import_module(".estimators", __package__)
        return importlib.import_module(".storage", estimators.__name__).load_estimator(path, estimators.ESTIMATORS)
    stored = read_model(path)
    with whole(path, stored):
        return _layer_from(stored)


@contextlib.contextmanager
def whole(path: str | os.PathLike[str], stored: Stored) -> Iterator[None]:
    """Say which file it is that lacks something."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise FileError(f"{path} does not hold what a {stored.kind} is made of: {error!r}.") from error


def _stored_layer(layer: Any) -> Stored:
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in layer.state_dict().items()}
    if isinstance(layer.ridge, Tensor):
        tensors["ridge"] = layer.ridge.detach().cpu().clone()
    index = getattr(layer, "index", None)
    plain = {
        "choices": {name: getattr(layer, name) for name in CHOICES if hasattr(layer, name)},
        "ridge": None if "ridge" in tensors else float(layer.ridge),
        "learned": [name for name, _ in layer.named_parameters()],
        "kernel": kernel_plan(layer.kernel),
        "index": index_plan(index),
    }
    return Stored(type(layer).__name__, tensors, plain)


def _layer_from(stored: Stored) -> Any:
    tensors, plain, kind = stored.tensors, stored.plain, LAYERS[stored.kind]
    learned, ridge = plain["learned"], plain["ridge"]
    if "ridge" in tensors:
        ridge = torch.nn.Parameter(tensors["ridge"]) if "ridge" in learned else tensors.pop("ridge")
    kernel = _unfilled_kernel(plain["kernel"])
    trend = plain["choices"].get("trend")  # which the kernel may need
    layer = kind(tensors["centers"], tensors["values"], kernel=kernel, ridge=ridge, trend=trend)
    for name, choice in plain["choices"].items():
        setattr(layer, name, choice)
    if plain["index"]:
        layer.index = index_from_plan(plain["index"])
    for name in learned:
        owner, _, leaf = name.rpartition(".")
        part = layer.get_submodule(owner)
        if part._buffers.pop(leaf, None) is not None:
            part.register_parameter(leaf, torch.nn.Parameter(tensors[name]))
    layer.load_state_dict(tensors)
    return layer


def index_plan(index: NeighborIndex | None) -> Plain | None:
    """The class and the settings of an index; its points are those of its layer."""
    return None if index is None else {"class": _file_name("index", index, INDEXES), "settings": index.__getstate__()}


def index_from_plan(plan: Plain | None) -> NeighborIndex | None:
    return None if plan is None else _class("index", plan, INDEXES)(**plan["settings"])


class Stored(NamedTuple):
    kind: str  # class
    tensors: Tensors
    plain: Plain


def write_model(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write the file atomically."""
    content = content_of(stored)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def content_of(stored: Stored) -> bytes:
    """The contents of a file."""
    state = np.frombuffer(json.dumps(stored.plain, default=operator.methodcaller("item")).encode(), dtype=np.uint8).copy()
    tensors = {**stored.tensors, STATE: torch.from_numpy(state)}
    header = {"format": FORMAT, "version": VERSION, "class": stored.kind, "sha256": _checksum(stored.kind, tensors)}
    # Not save_file: where it writes, and what it leaves after an error, is its own affair.
    return bytes(to_bytes(tensors, metadata={FORMAT: json.dumps(header)}))


def read_model(path: str | os.PathLike[str]) -> Stored:
    """Read a file and check that it is whole, of this format, and of a version known here."""
    with _opened(path) as file:
        header = _header(path, file.metadata())
        # Copies: the library maps the file, which may change or go away.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    return _checked(path, header, tensors)


def read_content(content: bytes, name: str) -> Stored:
    """As `read_model`, of contents that are called `name` in errors."""
    try:
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        tensors = from_bytes(content)
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise FileError(f"{name} is damaged, or not of torchkrr ({error}).") from error
    return _checked(name, _header(name, metadata), tensors)


def _checked(path: str | os.PathLike[str], header: Plain, tensors: Tensors) -> Stored:
    if STATE not in tensors or header.get("sha256") != _checksum(str(header.get("class")), tensors):
        raise FileError(f"{path} is damaged: its contents do not match their checksum. {EXPECTED}; copy or write it again.")
    return Stored(str(header["class"]), tensors, json.loads(tensors.pop(STATE).numpy().tobytes()))


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    start = first_bytes(path, 9, kind="model", remedy=f" {EXPECTED}.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} is {_description(pathlib.Path(path), start)} ({error}). {EXPECTED}.") from error


def _header(path: str | os.PathLike[str], metadata: dict[str, str] | None) -> Plain:
    try:
        header: Plain = json.loads((metadata or {})[FORMAT])
        version = header["version"] if header["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError):
        version = None
    if not isinstance(version, int):
        raise FileError(f"{path} is a safetensors file, but not a torchkrr model: its header does not say so. {EXPECTED}.")
    if version > VERSION:
        raise FileError(
            f"{path} is a torchkrr model of version {version}, written by a newer torchkrr; this one reads up to version "
            f"{VERSION}. Upgrade torchkrr: pip install --upgrade torchkrr."
        )
    return header


def _checksum(kind: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(f"{VERSION} {kind}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest.hexdigest()


def _description(path: pathlib.Path, start: bytes) -> str:
    text = start[:8]
    readable = text.isascii() and "".join(text.decode().split()).isprintable()
    # The length of a header may begin with the very bytes that another format begins with.
    length = int.from_bytes(start[:8], "little")
    if not readable and 0 < length <= MOST_HEADER and start[8:] in (b"", b"{"):
        return "cut off, or not a model" if path.stat().st_size < 8 + length else "damaged, or not a model"
    for signature, name in SIGNATURES.items():
        if start.startswith(signature):
            return f"{name}, not a model"
    return f"not a model: it begins with the text {text.decode()!r}" if readable else "damaged, or not a model"


def kernel_plan(kernel: Kernel) -> Plain:
    """The classes a kernel is made of; its numbers are in its `state_dict`."""
    plan: Plain = {"class": _file_name("kernel", kernel, KERNELS), "transform": transform_plan(kernel.input_transform)}
    if isinstance(kernel, kernels.Wendland):
        plan["arguments"] = {"dimension": kernel.dimension, "smoothness": kernel.smoothness}
    return plan


def kernel_from(plan: Plain, tensors: Tensors) -> Kernel:
    kernel = _unfilled_kernel(plan)
    kernel.load_state_dict(tensors)
    return kernel


def _unfilled_kernel(plan: Plain) -> Kernel:
    kind = _class("kernel", plan, KERNELS)
    kernel: Kernel = kind(input_transform=transform_from(plan["transform"]), **plan.get("arguments", {}))
    return kernel


def transform_plan(transform: Transform | None) -> Plain | None:
    if transform is None:
        return None
    plan: Plain = {"class": _file_name("transform", transform, TRANSFORMS)}
    if isinstance(transform, Compose) and not isinstance(transform, StandardMean):  # which knows its parts
        plan["parts"] = [transform_plan(part) for part in transform.transforms]  # type: ignore[arg-type]
    inner = getattr(transform, "kernel", None)
    if isinstance(inner, Kernel):
        plan["kernel"] = kernel_plan(inner)
    return plan


def transform_from(plan: Plain | None) -> Transform | None:
    if plan is None:
        return None
    kind = _class("transform", plan, TRANSFORMS)
    if kind is Linear:
        return Linear(torch.zeros(1, 1))
    if "kernel" in plan:
        return kind(_unfilled_kernel(plan["kernel"]))  # type: ignore[no-any-return]
    transform: Transform = kind(*(transform_from(part) for part in plan.get("parts", [])))
    return transform


def _file_name(what: str, module: Any, classes: dict[str, Any]) -> str:
    name = {kind: name for name, kind in classes.items()}.get(type(module))
    if name is None:
        own = type(module).__name__
        raise InputError(f"A {what} of the class {own} cannot be saved. Use one of {', '.join(classes)}, or pickle.")
    return name


def _class(what: str, plan: Plain, classes: dict[str, Any]) -> Any:
    if plan["class"] not in classes and classes is TRANSFORMS:
        importlib.import_module(".estimators.storage", __package__)  # it adds its own
    if plan["class"] not in classes:
        raise InputError(f"The {what} {plan['class']!r} is not one of {', '.join(classes)}.")
    return classes[plan["class"]]
