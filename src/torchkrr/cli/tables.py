"""Tables in CSV and Parquet files, read part by part, and their columns as numbers, text or labels.

A value that cannot be used is an error that names its file, column and row; the row after the header is row 1.
"""

from __future__ import annotations

import collections
import csv
import io
import math
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from .._checks import nearest_name
from .._files import first_bytes
from ..errors import FileError, InputError

Array = np.ndarray[Any, Any]
# A label is a category written as a number: 3, 3.0 and "3" are the same.
Kind = Literal["number", "text", "label"]
Task = Literal["regression", "classification"]
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")
BLOCK = 1 << 20  # bytes read at a time
NAMES_SHOWN = 20
DELIMITERS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "-NaN", "NULL", "null", "None"]
TRUTH = {"true": 1.0, "false": 0.0}
CORRECT = "Correct the value, or leave it empty if it is missing."


class Table(NamedTuple):
    """A file whose column names are known."""

    path: pathlib.Path
    names: tuple[str, ...]
    delimiter: str | None  # None: Parquet, which says which columns are numbers; CSV does not

    @property
    def data(self) -> list[str]:
        """Columns but for the row numbers that pandas adds: unnamed in CSV, `__index_level_0__` in Parquet."""
        return [name for name in self.names if name.strip() and not re.fullmatch(r"__index_level_\d+__", name)]

    def require(self, names: Iterable[str], what: str) -> None:
        """Check that these columns exist; the error suggests the nearest name."""
        for name in names:
            if name not in self.names:
                near = nearest_name(name, self.names)
                hint = f" Did you mean {near!r}?" if near is not None else ""
                more = f" and {len(self.names) - NAMES_SHOWN} more" if len(self.names) > NAMES_SHOWN else ""
                raise InputError(
                    f"{self.path} has no column {name!r}, {what}.{hint} "
                    f"Its columns: {', '.join(self.names[:NAMES_SHOWN])}{more}."
                )

    def parts(self, columns: Collection[str], rows: int) -> Iterator[Part]:
        """The given columns, in the order of the file, `rows` rows at a time."""
        names = [name for name in self.names if name in columns]
        first = 1
        for data in self._csv_parts(names, rows) if self.delimiter else self._parquet_parts(names, rows):
            if data.num_rows:
                yield Part(self, data, first)
                first += data.num_rows
        if first == 1:
            raise FileError(f"{self.path} has a header but no rows.")

    def read(self, columns: Collection[str]) -> Part:
        return Part(self, pa.concat_tables([part.data for part in self.parts(columns, 100_000)]))

    def num_rows(self) -> int:
        """The number of rows; of a CSV file the number of lines, which is larger where a value has several lines."""
        if not self.delimiter:
            with pa.parquet.ParquetFile(self.path) as file:
                return int(file.metadata.num_rows)
        with pa.input_stream(str(self.path)) as stream:
            lines, last = 0, b""
            while block := stream.read(BLOCK):
                lines, last = lines + block.count(b"\n"), block[-1:]
        return lines - (last == b"\n")

    def _parquet_parts(self, names: list[str], rows: int) -> Iterator[Any]:
        with pa.parquet.ParquetFile(self.path) as file:
            try:
                for batch in file.iter_batches(batch_size=rows, columns=names):
                    yield pa.Table.from_batches([batch]).select(names)
            except (pa.ArrowException, OSError) as error:
                raise FileError(f"{self.path} is a damaged Parquet file: {error}.") from error

    def _csv_parts(self, names: list[str], rows: int) -> Iterator[Any]:
        """All columns are read as text, so that a value is what is written, and one that is no number can be named."""
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(self.names, pa.string()),
            include_columns=names,
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
            raise FileError(_csv_error(self.path, str(error))) from error
        if count:
            yield pa.Table.from_batches(waiting)


class Part(NamedTuple):
    """Rows of a table that follow each other."""

    table: Table
    data: Any  # an arrow table
    first: int = 1  # number of the first row

    def slice(self, rows: slice) -> Part:
        return Part(self.table, self.data[rows], self.first + rows.start)

    def numbers(self, name: str, *, remedy: str = CORRECT) -> Array:
        """A column as float64, NaN where a value is missing."""
        values, words = self._parse(name)
        if words:
            at, text = words[0]
            raise InputError(
                f"Column {name!r} of {self.table.path} must hold numbers, but row {self.first + at} holds {text!r}. {remedy}"
            )
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise InputError(
                f"Column {name!r} of {self.table.path} holds an infinite value in row {self.first + infinite[0]}. "
                "Leave it empty if it is missing."
            )
        return values

    def texts(self, name: str) -> Array:
        """A column as strings, `None` where a value is missing."""
        column = self._column(name)
        found = np.empty(len(column), dtype=object)
        if pa.types.is_boolean(column.type):  # True and False, as in Python and in CSV files of pandas
            found[:] = [None if value is None else str(value) for value in column.to_pylist()]
        else:
            found[:] = (column if _is_text(column) else pa.compute.cast(column, pa.string())).to_pylist()
        return found

    def labels(self, name: str) -> Array:
        """A column as floats where a value is a number, strings elsewhere, `None` where it is missing."""
        values, words = self._parse(name)
        found = np.empty(len(values), dtype=object)
        found[:] = [None if math.isnan(value) else value for value in values.tolist()]
        for at, text in words:
            found[at] = text
        return found

    def kind(self, name: str, *, categorical: bool) -> Kind:
        """What a column of training data holds.

        Text that is numbers throughout is numbers. If at least half of it is, the rest is taken for mistakes, an error.
        """
        column = self._column(name)
        if _is_text(column) and not self.table.delimiter:
            return "text"
        values, words = self._parse(name)
        if categorical:
            # Codes begin with zeros: 02134 is not 2134.
            code = _is_text(column) and pa.compute.any(pa.compute.match_substring_regex(column, r"^\s*[-+]?0[0-9]")).as_py()
            return "text" if words or code else "label"
        if words and np.isfinite(values).sum() >= len(words):
            at, text = words[0]
            raise InputError(
                f"Column {name!r} of {self.table.path} holds numbers, but row {self.first + at} holds {text!r}. "
                "Correct the value, leave it empty if it is missing, or name the column in --categorical."
            )
        return "text" if words else "number"

    def frame(self, kinds: Mapping[str, Kind]) -> pd.DataFrame:
        """The features that an estimator takes."""
        read = {"number": self.numbers, "text": self.texts, "label": self.labels}
        return pd.DataFrame({name: read[kind](name) for name, kind in kinds.items()})

    def task(self, target: str) -> Task:
        """Text, true and false, and just two whole numbers are classes; other numbers are not."""
        values, words = self._parse(target)
        if words and np.isfinite(values).sum() < len(words):
            return "classification"
        different = np.unique(values[np.isfinite(values)])
        two = not words and len(different) == 2 and bool((different == np.round(different)).all())
        return "classification" if two else "regression"

    def target_numbers(self, names: Sequence[str]) -> Array:
        """`(rows, targets)`."""
        remedy = "Correct the value, or remove the row."
        remedy += " A target of classes is fitted alone." if len(names) > 1 else ""
        columns = [self.numbers(name, remedy=remedy) for name in names]
        for name, column in zip(names, columns, strict=True):
            self._require_targets(name, np.isnan(column))
        return np.stack(columns, axis=1)

    def target_labels(self, name: str, classes: Array | None = None, *, new: bool = False) -> Array:
        """Whole numbers, or text for anything else; for a fitted model see `as_classes`."""
        text = self.texts(name)
        self._require_targets(name, np.array([label is None for label in text]))
        if classes is None:
            values, words = self._parse(name)
            truth = any(label.strip().lower() in TRUTH for label in set(text))
            return text if words or truth or (values != np.round(values)).any() else values.astype(np.int64)
        given = self.numbers(name) if classes.dtype.kind in "iufb" else text
        return as_classes(given, text, classes, f"Target {name!r} of {self.table.path} holds", self.first, new=new)

    def names(self, name: str, *, repeated: bool = False) -> list[str]:
        """A column that names the rows, or groups of them, where names may be `repeated`."""
        texts: list[str] = self.texts(name).tolist()
        for at, text in enumerate(texts):
            if text is None:
                raise InputError(f"The name of row {self.first + at} of {self.table.path} is missing in column {name!r}.")
        (twice, count), *_ = collections.Counter(texts).most_common(1)
        if not repeated and count > 1:
            raise InputError(f"Column {name!r} of {self.table.path} names two rows {twice!r}. Names must be different.")
        return texts

    def weights(self, name: str) -> Array:
        weights = self.numbers(name)
        bad = (~(weights >= 0)).nonzero()[0]
        if len(bad):
            raise InputError(f"Weight {name!r} of {self.table.path} is missing or negative in row {self.first + bad[0]}.")
        return weights

    def missing(self, name: str) -> int:
        """How many values of a column are missing."""
        return int(pa.compute.sum(pa.compute.is_null(self.data.column(name), nan_is_null=True)).as_py() or 0)

    def _column(self, name: str) -> Any:
        column = self.data.column(name)
        return pa.compute.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column

    def _parse(self, name: str) -> tuple[Array, list[tuple[int, str]]]:
        """The numbers of a column, NaN where there is none, and the places and values of text that is not a number."""
        column = self._column(name)
        kind = column.type
        if _is_text(column):
            try:
                column = pa.compute.cast(pa.compute.utf8_trim_whitespace(column), pa.float64())
            except pa.ArrowInvalid:
                return _parse_words(column.to_pylist())
        elif pa.types.is_boolean(kind):
            column = pa.compute.cast(column, pa.uint8())
        elif (
            not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)) and kind != pa.null()
        ):
            raise InputError(
                f"Column {name!r} of {self.table.path} has the type {kind}. "
                "Turn it into numbers or text first, or leave it out."
            )
        return np.array(pa.compute.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64), []

    def _require_targets(self, name: str, missing: Array) -> None:
        if missing.any():
            raise InputError(
                f"Target {name!r} of {self.table.path} is missing in row {self.first + int(missing.argmax())}. "
                "Remove the rows without a target first."
            )


def open_table(path: str, delimiter: str | None = None) -> Table:
    """Read the column names of a file; its ending says which kind it is."""
    file = pathlib.Path(path)
    endings = [ending.lower() for ending in file.suffixes]
    ending = endings[-2] if len(endings) > 1 and endings[-1] == ".gz" else (endings or [""])[-1]
    if ending not in PARQUET + TEXT:
        raise FileError(f"{path} must end in {', '.join(TEXT + PARQUET)} (or .csv.gz), which says how to read it.")
    start = first_bytes(path, 4, kind="table")
    if ending in PARQUET:
        names, delimiter = _parquet_header(file), None
    elif start == b"PAR1":
        raise FileError(f"{path} is a Parquet file. Rename it to end in .parquet.")
    else:
        delimiter = delimiter or ("\t" if ending == ".tsv" else ",")
        names = _csv_header(file, delimiter)
    repeated = [name for at, name in enumerate(names) if name in names[:at]]
    if repeated:
        raise FileError(f"{path} has two columns named {repeated[0]!r}. Rename one.")
    return Table(file, tuple(names), delimiter)


def as_classes(given: Array, texts: Array, classes: Array, where: str, first: int, *, new: bool) -> Array:
    """Labels in the type of the `classes` of a fitted model, which are all there are unless there may be `new` ones.

    Args:
        given, texts: the labels, and the same as text.
        where: begins the error, up to its verb.
        first: number of the first row.
    """
    numeric = classes.dtype.kind in "iufb"
    values = given if numeric else texts
    whole = values.dtype.kind in "iub" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))
    if new and (whole or not numeric):
        return values.astype(np.int64 if numeric else object)
    # Compared before the cast, which cuts 1.7 down to the class 1, and "catfish" to "cat".
    unknown = np.flatnonzero(~np.isin(values, classes))
    if len(unknown):
        raise InputError(
            f"{where} the class {str(texts[unknown[0]])!r} in row {first + unknown[0]}, which the model does not know. "
            f"Its classes: {', '.join(map(str, classes.tolist()))}."
        )
    return values.astype(classes.dtype)


def model_features(model: Any, table: Table, *, other: Collection[str] = ()) -> dict[str, Kind]:
    """The columns that a fitted model needs, and what they hold; without names of its own, all but the `other` ones."""
    kinds = [_encoded_kind(column) for column in model.encoder_.columns]
    own_names = getattr(model, "feature_names_in_", None)
    if own_names is not None:
        names = [str(name) for name in own_names]
        table.require(names, "which the model was fitted with")
    else:
        names = [name for name in table.data if name not in other]
    if len(names) != len(kinds):
        raise InputError(
            f"The model was fitted without column names, on {len(kinds)} columns; {table.path} has {len(names)} besides "
            f"{', '.join(other) or 'none'}. Keep those columns alone, in the order of the fit."
        )
    return dict(zip(names, kinds, strict=True))


def _encoded_kind(column: Any) -> Kind:
    """Levels that are all written as Python writes floats were numbers when the estimator was fitted."""
    if column.kind == "number":
        return "number"
    return "label" if all(level is None or _is_float(level) for level in column.levels) else "text"


def _is_float(level: str) -> bool:
    try:
        return repr(float(level)) == level
    except ValueError:
        return False


def _parse_words(texts: list[str | None]) -> tuple[Array, list[tuple[int, str]]]:
    values, words = np.full(len(texts), math.nan), []
    for at, text in enumerate(texts):
        word = "" if text is None else text.strip().lower()
        if not word:
            continue
        try:
            values[at] = TRUTH[word] if word in TRUTH else float(word.replace("_", "?"))
        except ValueError:
            words.append((at, str(text)))
    return values, words


def _is_text(column: Any) -> bool:
    kind = column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _parquet_header(path: pathlib.Path) -> list[str]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path} is not a Parquet file, or is damaged: {error}.") from error


def _csv_header(path: pathlib.Path, delimiter: str) -> list[str]:
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
        raise FileError(_csv_error(path, "utf8"))
    others = [other for other in DELIMITERS if other != delimiter and other in names[0]]
    if len(names) == 1 and others:
        raise FileError(
            f"{path} has a single column, {names[0]!r}, when separated by {DELIMITERS.get(delimiter, repr(delimiter))}. "
            f"It looks separated by {DELIMITERS[others[0]]}: pass it as --delimiter."
        )
    return names


def _csv_error(path: pathlib.Path, text: str) -> str:
    """What an error of arrow means."""
    if "utf8" in text.lower() or "utf-8" in text.lower():
        return f"{path} is not encoded in UTF-8. Convert it first: iconv -f latin1 -t utf8 {path}."
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", text)
    if ragged is None:
        return f"{path} cannot be read as a CSV file: {text}."
    row, expected, got = (int(number) for number in ragged.groups())
    return (
        f"Row {row - 1} of {path} has {got} values, but the header has {expected} columns. "
        "Check for a missing quote, or for the delimiter inside a value."
    )
