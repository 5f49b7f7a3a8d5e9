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


class _Writing:
    """Opens its file with the first part, which says which columns there are."""

    def __init__(self, path: pathlib.Path, delimiter: str | None) -> None:
        self.path, self.delimiter = path, delimiter
        self._writer: Any = None
        self._schema: Any = None
        self._file: Any = None

    def write(self, columns: Mapping[str, Any]) -> None:
        part = pa.table(dict(columns), schema=self._schema)
        if self._writer is None:
            self._schema = part.schema
            self._open()
        self._writer.write_table(part)

    def _open(self) -> None:
        if self.delimiter is None:
            self._writer = pa.parquet.ParquetWriter(self.path, self._schema)
            return
        self._file = open(self.path, "wb")  # noqa: SIM115
        header = io.StringIO()
        csv.writer(header, delimiter=self.delimiter, lineterminator="\n").writerow(self._schema.names)
        self._file.write(header.getvalue().encode())
        options = pa.csv.WriteOptions(include_header=False, delimiter=self.delimiter)
        self._writer = pa.csv.CSVWriter(self._file, self._schema, write_options=options)

    def close(self) -> None:
        for one in (self._writer, self._file):
            if one is not None:
                one.close()


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
        writing = _Writing(temporary, delimiter)
        try:
            yield writing
        finally:
            writing.close()
