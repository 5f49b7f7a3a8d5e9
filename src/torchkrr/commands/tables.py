"""Tables in CSV and Parquet files, read a part at a time."""

from __future__ import annotations

import csv
import io
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .._checks import nearest_name
from ..errors import FileError, InputError

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")
BLOCK = 1 << 20  # bytes read at a time
DELIMITERS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "-NaN", "NULL", "null", "None"]


class Table(NamedTuple):
    """A file whose columns are known; CSV columns are all text, whatever they hold."""

    path: pathlib.Path
    names: tuple[str, ...]
    delimiter: str | None  # None: Parquet

    @property
    def data(self) -> list[str]:
        """Columns but for the numbering of rows that pandas adds: unnamed in CSV, `__index_level_0__` in Parquet."""
        return [name for name in self.names if name.strip() and not re.fullmatch(r"__index_level_\d+__", name)]

    def require(self, names: Iterable[str], what: str) -> None:
        """That these columns are there; if not, the nearest names that are."""
        for name in names:
            if name not in self.names:
                near = nearest_name(name, self.names)
                hint = f" Did you mean {near!r}?" if near is not None else ""
                raise InputError(f"{self.path} has no column {name!r}, {what}.{hint} Its columns: {listed(self.names)}.")

    def parts(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """The named columns in order, as arrow tables of at most `rows` rows."""
        some = False
        for part in self._by_text(columns, rows) if self.delimiter else self._by_parquet(columns, rows):
            some = some or part.num_rows > 0
            if part.num_rows:
                yield part
        if not some:
            raise FileError(f"{self.path} has a header but no rows.")

    def num_rows(self) -> int:
        """Rows; of a CSV file the lines, which are more where a value has several."""
        if not self.delimiter:
            with pa.parquet.ParquetFile(self.path) as file:
                return int(file.metadata.num_rows)
        with pa.input_stream(str(self.path)) as stream:
            lines = last = 0
            while block := stream.read(BLOCK):
                lines += block.count(b"\n")
                last = block[-1]
        return lines - (last == ord("\n"))

    def _by_parquet(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        with pa.parquet.ParquetFile(self.path) as file:
            try:
                for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns))
            except (pa.ArrowException, OSError) as error:
                raise FileError(f"{self.path} is a damaged Parquet file: {error}.") from error

    def _by_text(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(self.names, pa.string()),
            include_columns=list(columns),
            null_values=MISSING,
            strings_can_be_null=True,
        )
        waiting: list[Any] = []
        count = 0
        try:
            reader = pa.csv.open_csv(
                self.path,
                read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK),
                parse_options=pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=convert,
            )
            for batch in reader:
                waiting.append(batch)
                count += batch.num_rows
                while count >= rows:
                    whole = pa.Table.from_batches(waiting)
                    yield whole[:rows]
                    waiting, count = whole[rows:].to_batches(), count - rows
        except pa.ArrowCancelled:
            raise KeyboardInterrupt from None
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise FileError(self._explained(str(error))) from error
        if count:
            yield pa.Table.from_batches(waiting)

    def _explained(self, text: str) -> str:
        if "utf8" in text.lower() or "utf-8" in text.lower():
            return f"{self.path} is not encoded in UTF-8. Convert it first: iconv -f latin1 -t utf8 {self.path}."
        ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", text)
        if ragged:
            row, expected, got = (int(number) for number in ragged.groups())
            return (
                f"Row {row - 1} of {self.path} has {got} values, but the header has {expected} columns. "
                "Check for a missing quote, or for the delimiter inside a value."
            )
        return f"{self.path} cannot be read as a CSV file: {text}."


def open_table(path: str, delimiter: str | None = None) -> Table:
    """Look at the columns of a file; its ending says which kind it is."""
    where = pathlib.Path(path)
    endings = [ending.lower() for ending in where.suffixes]
    ending = endings[-2] if len(endings) > 1 and endings[-1] == ".gz" else (endings or [""])[-1]
    if where.is_dir():
        raise FileError(f"{path} is a folder. Name a file in it that ends in {', '.join(TEXT + PARQUET)}.")
    if ending not in PARQUET + TEXT:
        raise FileError(f"{path} must end in {', '.join(TEXT + PARQUET)} (or .csv.gz), which says how to read it.")
    try:
        with open(where, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise FileError(f"The table {path} cannot be read: {error.strerror or error}.") from error
    if not start:
        raise FileError(f"{path} is empty.")
    if ending in PARQUET:
        return _open_parquet(where)
    if start == b"PAR1":
        raise FileError(f"{path} is a Parquet file. Rename it to end in .parquet.")
    return _open_text(where, delimiter or ("\t" if ending == ".tsv" else ","))


def listed(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _open_parquet(path: pathlib.Path) -> Table:
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} is not a Parquet file, or is damaged: {error}.") from error
    return Table(path, _different(path, names), None)


def _open_text(path: pathlib.Path, delimiter: str) -> Table:
    try:
        with pa.input_stream(str(path)) as stream:
            start = stream.read(BLOCK)
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    if b"\0" in start:
        raise FileError(f"{path} is not a text file: it holds bytes of zero. Expected a CSV file in UTF-8.")
    lines = csv.reader(io.StringIO(start.decode("utf-8-sig", errors="replace"), newline=""), delimiter=delimiter)
    names = next((line for line in lines if line), [])
    if not any(name.strip() for name in names):
        raise FileError(f"{path} has no header: its first line must name the columns.")
    if any("\ufffd" in name for name in names):
        raise FileError(f"{path} is not encoded in UTF-8. Convert it first: iconv -f latin1 -t utf8 {path}.")
    others = [other for other in DELIMITERS if other != delimiter and other in names[0]]
    if len(names) == 1 and others:
        raise FileError(
            f"{path} has a single column, {names[0]!r}, when separated by {DELIMITERS.get(delimiter, repr(delimiter))}. "
            f"It looks separated by {DELIMITERS[others[0]]}: pass it as --delimiter."
        )
    return Table(path, _different(path, names), delimiter)


def _different(path: pathlib.Path, names: Sequence[str]) -> tuple[str, ...]:
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise FileError(f"{path} has two columns named {twice[0]!r}. Rename one.")
    return tuple(names)
