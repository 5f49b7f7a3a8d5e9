"""One JSON line for each result, found again by what it was computed from.

A line is written at once and synced, so an interrupt or a crash costs at most the line being written, which the next reader
drops.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

from .. import __version__
from .._files import replacing
from ..errors import FileError

Record = dict[str, Any]
KEY = "key"
NAMED_VERSIONS = ("torch", "numpy", "scikit-learn", "torchvision", "timm")


def fingerprint(parts: Record) -> str:
    """A short hash of plain values, whatever the order of their names.

    Example:
        >>> fingerprint({"a": 1, "b": [2, None]}) == fingerprint({"b": [2, None], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class Records:
    """The records of a file, by their key, and new ones appended to it.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "records.jsonl"
        >>> Records(path).add({"key": "a", "accuracy": 0.9})
        >>> Records(path).get("a")["accuracy"]
        0.9
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._found = {record[KEY]: record for record in read_records(self.path)}

    def get(self, key: str) -> Record | None:
        return self._found.get(key)

    def add(self, record: Record) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        drop_torn_line(self.path)
        try:
            with open(self.path, "ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"Cannot write to {self.path}: {error.strerror or error}.") from error
        self._found[record[KEY]] = record


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a file, in order, without a last line that is not complete; none if there is no file."""
    path = pathlib.Path(path)
    if not path.exists():
        return []
    whole, _ = _whole_lines(path)
    records = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = json.loads(line)
            if not isinstance(record[KEY], str):
                raise ValueError(KEY)
        except (ValueError, TypeError, KeyError):
            raise FileError(
                f"Line {number} of {path} is not a record. Remove that line, or the file to start anew, and run again."
            ) from None
        records.append(record)
    return records


def drop_torn_line(path: pathlib.Path) -> None:
    """Cut off a last line without its end, left by a process that was killed while it wrote."""
    if path.exists():
        whole, torn = _whole_lines(path)
        if torn:
            with replacing(path) as temporary:
                temporary.write_bytes(whole)


def versions(packages: Sequence[str] = NAMED_VERSIONS) -> dict[str, str]:
    """Versions of what the numbers depend on, where installed."""
    installed = {name: _version(name) for name in packages}
    return {
        "torchkrr": __version__,
        "python": platform.python_version(),
        **{name: version for name, version in installed.items() if version is not None},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _whole_lines(path: pathlib.Path) -> tuple[bytes, bytes]:
    contents = path.read_bytes()
    end = contents.rfind(b"\n") + 1
    return contents[:end], contents[end:]
