"""Predictions kept part by part while they are made, so that a run that was stopped goes on where it was.

Beside `predictions.csv` there is a folder `predictions.csv.parts` until all is done: a file for every finished part, each
there whole or not at all, and what they are the predictions of.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from .. import __version__
from .._files import replacing, writable
from ..errors import FileError
from .writing import output

ABOUT = "about.json"
BLOCK = 1 << 20


class Parts:
    """Finished parts of one result, numbered from 0."""

    def __init__(self, path: str, about: Mapping[str, Any]) -> None:
        target = writable(path)
        self.path, self.folder = path, target.with_name(target.name + ".parts")
        about = json.loads(json.dumps(about))
        try:
            self.folder.mkdir(exist_ok=True)
            kept = self.folder / ABOUT
            if not kept.exists() or json.loads(kept.read_text()) != about:
                for old in self.folder.glob("*.arrow"):
                    old.unlink()
                with replacing(kept) as temporary:
                    temporary.write_text(json.dumps(about))
        except (OSError, ValueError) as error:
            raise FileError(
                f"The folder {self.folder} cannot be used: {error}. Remove it, or name another --out."
            ) from error

    @property
    def done(self) -> int:
        """Parts that are finished, from the first on."""
        number = 0
        while self._file(number).exists():
            number += 1
        return number

    def write(self, number: int, columns: Mapping[str, Any]) -> None:
        table = pa.table(dict(columns))
        with replacing(self._file(number)) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
            writer.write_table(table)

    def join(self) -> None:
        """All parts into one file, which is there at the end, or not at all; then the parts go."""
        with output(self.path) as out:
            for number in range(self.done):
                with pa.memory_map(str(self._file(number))) as file:
                    table = pa.ipc.open_file(file).read_all()
                    out.write({name: table.column(name) for name in table.column_names})
        shutil.rmtree(self.folder)

    def _file(self, number: int) -> pathlib.Path:
        return self.folder / f"{number:08}.arrow"


def about(model: str, table: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What predictions are made from: the contents of the model, the place, size and age of the table, and options."""
    digest = hashlib.sha256()
    with open(model, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    found = os.stat(table)
    place = [os.path.realpath(table), found.st_size, found.st_mtime_ns]
    return {"torchkrr": __version__, "model": digest.hexdigest(), "table": place, "options": dict(options)}


@contextlib.contextmanager
def resumable(path: str, contents: Mapping[str, Any]) -> Iterator[Parts]:
    """Parts to write; joined at the end, kept after an error."""
    parts = Parts(path, contents)
    yield parts
    parts.join()
