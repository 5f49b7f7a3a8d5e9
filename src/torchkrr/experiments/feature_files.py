"""Features on the disk: a file of plain numbers that is there only if it is complete, and what is needed to go on."""

from __future__ import annotations

import json
import os
import pathlib
import re
import zlib
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from .._chunking import ranges
from .._files import replacing
from ..errors import FileError

BYTES = 4  # of a number in float32
Line = dict[str, Any]  # of the journal


class Place(NamedTuple):
    """The files of one set of features. `data` is there if and only if it is complete."""

    data: pathlib.Path
    about: pathlib.Path
    partial: pathlib.Path
    journal: pathlib.Path  # a line for each finished batch


def place_for(cache: str | os.PathLike[str], words: tuple[str, ...], fingerprints: tuple[str, ...]) -> Place:
    """Where the features of these fingerprints are, or will be; the words are for people who look into the folder."""
    folder = pathlib.Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"The folder {folder} for features cannot be made: {error.strerror or error}.") from error
    readable = [re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:40] for word in words]
    stem = "-".join([*readable, *(fingerprint[:16] for fingerprint in fingerprints)])
    names = (f"{stem}.f32", f"{stem}.json", f"{stem}.f32.partial", f"{stem}.journal.partial")
    return Place(*(folder / name for name in names))


def begin(place: Place, shape: tuple[int, int], batch_size: int) -> tuple[int, dict[int, Line]]:
    """The batch size and the finished batches of a run that was stopped, or the beginning of one.

    A batch counts if the numbers in the file have the checksum that was noted after they were written.
    """
    count, row = shape[0], shape[1] * BYTES
    lines = _lines(place)
    header = lines[0] if lines else {}
    if header.get("shape") != list(shape) or not place.partial.exists():
        header = {"shape": list(shape), "batch_size": batch_size}
        place.journal.write_text(json.dumps(header) + "\n", encoding="utf-8")
        with open(place.partial, "wb") as data:
            data.truncate(count * row)
        return batch_size, {}
    batches, done = ranges(count, header["batch_size"]), {}
    with open(place.partial, "r+b") as data:
        data.truncate(count * row)
        for line in lines[1:]:
            rows = batches[line["batch"]]
            data.seek(rows.start * row)
            if zlib.crc32(data.read((rows.stop - rows.start) * row)) == line["crc32"]:
                done[line["batch"]] = line
    # Written anew: its last line may have been cut short, and the next must not be joined to it.
    with replacing(place.journal) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in [header, *done.values()]), encoding="utf-8")
    return header["batch_size"], done


def write_batch(data: BinaryIO, features: Tensor, first: int) -> int:
    """Put rows `(B, D)` into their place from row `first` on; returns their checksum."""
    contents = features.numpy().tobytes()
    data.seek(first * features.shape[1] * BYTES)
    data.write(contents)
    data.flush()
    return zlib.crc32(contents)


def finish(place: Place, about: dict[str, Any]) -> None:
    """Give complete features their name."""
    with replacing(place.about) as temporary:
        temporary.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    try:
        os.replace(place.partial, place.data)
    except FileNotFoundError:  # another run of the same has finished first
        if not place.data.exists():
            raise
    place.journal.unlink(missing_ok=True)


def complete(place: Place, shape: tuple[int, int]) -> dict[str, Any] | None:
    """What is written beside complete features; `None` if they are not there, or damaged."""
    try:
        about: dict[str, Any] = json.loads(place.about.read_text(encoding="utf-8"))
        if about["shape"] != list(shape) or place.data.stat().st_size != shape[0] * shape[1] * BYTES:
            return None
        step = about["batch_size"] * shape[1] * BYTES
        with open(place.data, "rb") as data:
            return about if all(zlib.crc32(data.read(step)) == expected for expected in about["crc32"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def mapped(place: Place, shape: tuple[int, int]) -> Tensor:
    """The features without reading them; what is changed in memory does not reach the file."""
    return torch.from_file(str(place.data), shared=False, size=shape[0] * shape[1], dtype=torch.float32).view(shape)


def _lines(place: Place) -> list[Line]:
    if not place.journal.exists():
        return []
    lines = place.journal.read_text(encoding="utf-8", errors="replace").split("\n")
    try:
        return [json.loads(line) for line in lines[:-1]]  # what follows the last end of a line was cut short
    except ValueError:  # damaged: begin again
        return []
