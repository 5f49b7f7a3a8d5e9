"""Tables of predictions, written part by part in CSV or Parquet; parts are kept meanwhile, so that a stopped run resumes."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from .. import __version__
from .._files import replacing, writable
from ..errors import FileError

DELIMITERS = {".csv": ",", ".tsv": "\t", ".parquet": None}
Columns = Mapping[str, Any]


class Output:
    """A table to write into. The first part decides on the types of the columns."""

    def __init__(self, path: pathlib.Path, delimiter: str | None) -> None:
        self.path, self.delimiter = path, delimiter
        self._schema: Any = None
        self._file: Any = None

    def write(self, columns: Columns) -> None:
        table = pa.table(dict(columns), schema=self._schema)
        if self._file is None:
            self._schema = table.schema
            self._file = pa.parquet.ParquetWriter(self.path, table.schema) if not self.delimiter else self._open_csv()
        if not self.delimiter:
            self._file.write_table(table)
            return
        try:
            self._file.write(self._csv_lines(table, "none"))
        except pa.ArrowInvalid:  # some value needs quotes; arrow then puts them around all text
            self._file.write(self._csv_lines(table, "needed"))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open_csv(self) -> Any:
        header = io.StringIO()
        csv.writer(header, delimiter=self.delimiter or ",", lineterminator="\n").writerow(self._schema.names)
        self.path.write_text(header.getvalue(), encoding="utf-8")
        return open(self.path, "ab")

    def _csv_lines(self, table: Any, quoting: str) -> bytes:
        lines = io.BytesIO()
        options = pa.csv.WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style=quoting)
        pa.csv.write_csv(table, lines, options)
        return lines.getvalue()


def output_delimiter(path: str) -> str | None:
    """The delimiter, or `None` for Parquet; another ending is an error."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in DELIMITERS:
        raise FileError(f"{path} must end in {' or '.join(DELIMITERS)}, which says how to write it.")
    return DELIMITERS[ending]


@contextlib.contextmanager
def open_output(path: str) -> Iterator[Output]:
    """A table to write into; the file is written atomically."""
    delimiter = output_delimiter(path)
    with replacing(path) as temporary, contextlib.closing(Output(temporary, delimiter)) as output:
        yield output


class Parts:
    """Finished parts of one result, numbered from 0, in a folder beside it until all are done.

    Args:
        path: the result, such as `predictions.csv`; the folder is `predictions.csv.parts`.
        source: what the result is computed from; parts of another source are removed.
    """

    def __init__(self, path: str, source: Mapping[str, Any]) -> None:
        target = writable(path)
        self.path, self.folder = path, target.with_name(target.name + ".parts")
        description, text = self.folder / "about.json", json.dumps(source)
        try:
            self.folder.mkdir(exist_ok=True)
            if not description.exists() or description.read_text() != text:
                for old in self.folder.glob("*.arrow"):
                    old.unlink()
                with replacing(description) as temporary:
                    temporary.write_text(text)
        except (OSError, ValueError) as error:
            raise FileError(
                f"The folder {self.folder} cannot be used: {error}. Remove it, or name another --out."
            ) from error

    @property
    def done(self) -> int:
        """The number of finished parts, from the first on."""
        number = 0
        while self._file(number).exists():
            number += 1
        return number

    def write(self, number: int, columns: Columns) -> None:
        table = pa.table(dict(columns))
        with replacing(self._file(number)) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
            writer.write_table(table)

    def join(self) -> None:
        """Write all parts into one file, atomically, and remove them."""
        with open_output(self.path) as output:
            for number in range(self.done):
                with pa.memory_map(str(self._file(number))) as file:
                    table = pa.ipc.open_file(file).read_all()
                    output.write({name: table.column(name) for name in table.column_names})
        shutil.rmtree(self.folder)

    def _file(self, number: int) -> pathlib.Path:
        return self.folder / f"{number:08}.arrow"


def source_of(model: str, data: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """What predictions are computed from: the contents of the model, paths, sizes and times of the data, and options."""
    digest = model  # of a store
    if os.path.isfile(model):
        with open(model, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    files: list[pathlib.Path] = []
    for path in map(pathlib.Path, data):
        files += sorted(path.rglob("*")) if path.is_dir() else [path]
    places = [[os.path.realpath(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return {"torchkrr": __version__, "model": digest, "data": places, "options": dict(options)}
