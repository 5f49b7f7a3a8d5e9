"""One file for a fitted estimator: tensors and JSON in the safetensors format, with a checksum. No pickle.

The header names the format, its version and the class; the tensor `state` holds the rest as JSON in UTF-8, where its size
is not limited as that of a header is. Version 1 is the first.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from .._files import replacing
from ..errors import FileError, MissingExtraError
from .state import Plain, Tensors

FORMAT = "torchkrr"
VERSION = 1
STATE = "state"
HEAD = "transfer head"  # the class of files that torchkrr transfer writes
EXPECTED = "Expected a model written by save() of a torchkrr estimator"
SIGNATURES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a ZIP archive (such as a torch or NumPy file)",
    b"PAR1": "a Parquet table",
    b"%PDF": "a PDF",
    b"\x1f\x8b": "a gzip archive",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}


class Stored(NamedTuple):
    kind: str  # class
    tensors: Tensors
    plain: Plain


def write_model(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write the file; it is there complete or not at all."""
    library = _safetensors("torch")
    state = np.frombuffer(json.dumps(stored.plain).encode(), dtype=np.uint8).copy()
    tensors = {**stored.tensors, STATE: torch.from_numpy(state)}
    header = {"format": FORMAT, "version": VERSION, "class": stored.kind, "sha256": _checksum(stored.kind, tensors)}
    # Not save_file: where it writes, and what it leaves after an error, is its own affair.
    contents = library.save(tensors, metadata={FORMAT: json.dumps(header)})
    with replacing(path) as temporary:
        temporary.write_bytes(contents)


def read_model(path: str | os.PathLike[str], *, expected: str = EXPECTED) -> Stored:
    """Read a file and check that it is whole, of this format, and of a version known here; `expected` ends its errors."""
    library = _safetensors()
    try:
        with open(path, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise FileError(f"The model {path} cannot be read: {error.strerror or error}. {expected}.") from error
    if not start:
        raise FileError(f"{path} is empty. {expected}.")
    try:
        with library.safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata(), expected)
            # Copies: the library maps the file, which may change or go away.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except library.SafetensorError as error:
        raise FileError(f"{path} is {_what_it_is(pathlib.Path(path), start)} ({error}). {expected}.") from error
    if STATE not in tensors or header.get("sha256") != _checksum(str(header.get("class")), tensors):
        raise FileError(f"{path} is damaged: its contents do not match their checksum. {expected}; copy or write it again.")
    return Stored(str(header["class"]), tensors, json.loads(tensors.pop(STATE).numpy().tobytes()))


def refuse_head(path: str | os.PathLike[str], stored: Stored) -> None:
    """Where an estimator for tables is needed."""
    if stored.kind == HEAD:
        raise FileError(
            f"{path} is a head for images, written by torchkrr transfer, not a model of a table. "
            f"Classify images with it: torchkrr classify {path} IMAGES."
        )


def _header(path: str | os.PathLike[str], metadata: dict[str, str] | None, expected: str) -> dict[str, Any]:
    try:
        header = json.loads((metadata or {})[FORMAT])
        version = header["version"] if header["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError):
        version = None
    if not isinstance(version, int):
        raise FileError(f"{path} is a safetensors file, but not a torchkrr model: its header does not say so. {expected}.")
    if version > VERSION:
        raise FileError(
            f"{path} is a torchkrr model of version {version}, written by a newer torchkrr; this one reads up to version "
            f"{VERSION}. Upgrade torchkrr: pip install --upgrade torchkrr."
        )
    return header  # type: ignore[no-any-return]


def _checksum(kind: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(f"{VERSION} {kind}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _what_it_is(path: pathlib.Path, start: bytes) -> str:
    for signature, name in SIGNATURES.items():
        if start.startswith(signature):
            return f"{name}, not a model"
    if start.isascii() and "".join(start.decode().split()).isprintable():
        return f"not a model: it begins with the text {start.decode()!r}"
    length = int.from_bytes(start, "little")
    if len(start) == 8 and path.stat().st_size < 8 + length < 8 + 100_000_000:
        return "cut off, or not a model"
    return "damaged, or not a model"


def _safetensors(part: str | None = None) -> ModuleType:
    try:
        return importlib.import_module("safetensors" if part is None else f"safetensors.{part}")
    except ImportError:
        raise MissingExtraError(
            'Saving and loading models needs safetensors, which is not installed: pip install "torchkrr[storage]".'
        ) from None
