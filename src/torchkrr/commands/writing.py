"""Tables of results, written a part at a time, in CSV or Parquet."""

from __future__ import annotations

import contextlib
import csv
import io
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .._files import replacing
from ..errors import FileError

ENDINGS = {".csv": ",", ".tsv": "\t", ".parquet": None}


class Output(Protocol):
    def write(self, columns: Mapping[str, Any]) -> None: ...


class _Text:
    def __init__(self, path: pathlib.Path, delimiter: str) -> None:
        self.delimiter = delimiter
        self._file = open(path, "wb")  # noqa: SIM115
        self._schema: Any = None

    def write(self, columns: Mapping[str, Any]) -> None:
        part = pa.table(dict(columns), schema=self._schema)
        if self._schema is None:
            self._schema = part.schema
            header = io.StringIO()
            csv.writer(header, delimiter=self.delimiter, lineterminator="\n").writerow(part.schema.names)
            self._file.write(header.getvalue().encode())
        try:
            self._file.write(self._lines(part, "none"))
        except pa.ArrowInvalid:  # some value needs quotes; arrow then puts them around all text
            self._file.write(self._lines(part, "needed"))

    def _lines(self, part: Any, quoting: str) -> bytes:
        lines = io.BytesIO()
        options = pa.csv.WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style=quoting)
        pa.csv.write_csv(part, lines, options)
        return lines.getvalue()

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._writer: Any = None

    def write(self, columns: Mapping[str, Any]) -> None:
        part = pa.table(dict(columns), schema=None if self._writer is None else self._writer.schema)
        if self._writer is None:
            self._writer = pa.parquet.ParquetWriter(self.path, part.schema)
        self._writer.write_table(part)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def output_kind(path: str) -> str | None:
    """The delimiter, or `None` for Parquet; another ending is an error."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise FileError(f"{path} must end in {' or '.join(ENDINGS)}, which says how to write it.")
    return ENDINGS[ending]


@contextlib.contextmanager
def output(path: str) -> Iterator[Output]:
    """A table to write into; the file is there at the end, or not at all."""
    delimiter = output_kind(path)
    with replacing(path) as temporary:
        writing = _Parquet(temporary) if delimiter is None else _Text(temporary, delimiter)
        try:
            yield writing
        finally:
            writing.close()
