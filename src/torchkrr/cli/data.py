"""The rows of a command, wherever they come from: a table, a column of text, pictures, or a features file.

Rows are read in pieces, rows that follow each other. What a piece is, is up to its data: everything else is asked of it.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .._chunking import ranges
from ..errors import InputError
from .options import warn
from .tables import Array, Kind, Part, Table, Task

FEW_ROWS, MOSTLY = 20, 0.9  # from 20 rows on, a column with more than 90 % different texts is taken for names
ALL = 2**62  # rows
COLUMNS_SHOWN = 8


class Columns(NamedTuple):
    """Columns of a table that are no features."""

    targets: Sequence[str] = ()
    id: str | None = None
    groups: str | None = None
    weights: str | None = None
    carried: str | None = None

    @property
    def names(self) -> list[str]:
        return [*self.targets, *(name for name in self[1:] if name is not None)]


class Data(abc.ABC):
    """Labeled rows, or rows to predict."""

    kind: str
    unit = "rows"
    at_once = 10_000  # rows of a piece

    def __init__(self, path: str) -> None:
        self.path = path
        self.missing = 0  # values, in the rows read so far
        self.broken: list[str] = []  # pictures that could not be read
        self.skipped = 0  # of all ranks together

    @abc.abstractmethod
    def num_rows(self) -> int:
        """About how many there are, without reading them."""

    @abc.abstractmethod
    def pieces(self, rows: int) -> Iterator[Any]: ...

    @abc.abstractmethod
    def length(self, piece: Any) -> int: ...

    @abc.abstractmethod
    def cut(self, piece: Any, rows: slice) -> Any:
        """Some rows of a piece."""

    @abc.abstractmethod
    def points(self, piece: Any) -> tuple[Any, Array | None]:
        """What an estimator takes, and which rows could be read; `None` is all."""

    def everything(self, *, progress: bool) -> tuple[Any, Any]:
        """All rows that can be read, as one piece, and their points."""
        (piece,) = self.pieces(ALL)
        return piece, self.points(piece)[0]

    @property
    def columns_used(self) -> list[str]:
        """Those of a table."""
        return []

    @property
    def categorical(self) -> list[str]:
        """Columns of categories."""
        return []

    def missing_in(self, piece: Any) -> int:
        """How many values are missing."""
        return 0

    @abc.abstractmethod
    def task(self, piece: Any) -> Task: ...

    @abc.abstractmethod
    def targets(self, piece: Any) -> Array:
        """`(n, targets)`, numbers."""

    @abc.abstractmethod
    def labels(self, piece: Any, classes: Array | None, *, new: bool = False) -> Array:
        """`(n,)`; of the type of the `classes` of a model, which are all there are unless there may be `new` ones."""

    def names(self, piece: Any) -> list[str] | None:
        """What rows are called, if they have names."""
        return None

    def groups(self, piece: Any) -> Array | None:
        return None

    def weights(self, piece: Any) -> Array | None:
        return None

    def carried(self, piece: Any) -> Mapping[str, Any]:
        """Columns that go into a table of predictions as they are."""
        return {}

    def shown(self, piece: Any, row: int) -> Any:
        """What a reader sees of one row of a piece: text, pixels `(H, W, 3)`, or `None` for its name."""
        return None

    def relabeled(self, piece: Any, labels: Array, keep: Array) -> Mapping[str, Any]:
        """The columns of a table with these labels of the rows to keep: what was read, as far as it is a table."""
        names = self.names(piece)
        first = {"row": np.arange(1, len(labels) + 1)} if names is None else {"id": np.array(names, dtype=object)}
        return {name: column[keep] for name, column in {**first, "label": labels}.items()}

    @abc.abstractmethod
    def target_names(self, count: int, *, classes: bool) -> list[str]: ...

    @abc.abstractmethod
    def notes(self) -> dict[str, Any]:
        """What `notes_["input"]` says."""

    @abc.abstractmethod
    def describe(self) -> str:
        """What a row is made of."""


class TableData(Data):
    """Pieces are parts of a table."""

    kind = "table"

    def __init__(self, table: Table, columns: Columns, features: Mapping[str, Kind]) -> None:
        super().__init__(str(table.path))
        self.table, self.columns, self.features = table, columns, dict(features)
        self.named = True  # columns have the names of those of the fit
        self.given_categories: Collection[str] | None = None  # of a fit: what columns hold is seen when they are read

    def num_rows(self) -> int:
        return self.table.num_rows()

    def pieces(self, rows: int) -> Iterator[Part]:
        wanted = {*self.features, *self.columns.names}
        if rows < ALL:
            return self.table.parts(wanted, rows)
        return iter([self.table.read(wanted)])

    def everything(self, *, progress: bool) -> tuple[Any, Any]:
        piece = next(self.pieces(ALL))
        if self.given_categories is not None:
            self.features = {name: piece.kind(name, categorical=name in self.given_categories) for name in self.features}
            self._warn_of_names(piece)
        return piece, self.points(piece)[0]

    def _warn_of_names(self, piece: Part) -> None:
        """Texts that hardly repeat, such as dates and names, tell rows apart and say nothing of new ones."""
        for name, kind in self.features.items():
            column = piece.data.column(name).drop_null()
            if kind == "text" and len(column) >= FEW_ROWS and len(column.unique()) > MOSTLY * len(column):
                warn(
                    f"Column {name!r} has a different text in almost every row, from which nothing can be learned for "
                    "new ones. Leave it out with --ignore; turn dates into numbers."
                )

    @property
    def columns_used(self) -> list[str]:
        return list(self.features)

    @property
    def categorical(self) -> list[str]:
        return [name for name, kind in self.features.items() if kind != "number"]

    def length(self, piece: Part) -> int:
        return int(piece.data.num_rows)

    def cut(self, piece: Part, rows: slice) -> Part:
        return piece.slice(rows)

    def points(self, piece: Part) -> tuple[Any, None]:
        frame = piece.frame(self.features)
        return (frame if self.named else frame.to_numpy()), None

    def missing_in(self, piece: Part) -> int:
        return sum(piece.missing(name) for name in self.features)

    def task(self, piece: Part) -> Task:
        return piece.task(self.columns.targets[0])

    def targets(self, piece: Part) -> Array:
        return piece.target_numbers(self.columns.targets)

    def labels(self, piece: Part, classes: Array | None, *, new: bool = False) -> Array:
        return piece.target_labels(self.columns.targets[0], classes, new=new)

    def names(self, piece: Part) -> list[str] | None:
        return None if self.columns.id is None else piece.names(self.columns.id)

    def groups(self, piece: Part) -> Array | None:
        return (
            None if self.columns.groups is None else np.array(piece.names(self.columns.groups, repeated=True), dtype=object)
        )

    def weights(self, piece: Part) -> Array | None:
        return None if self.columns.weights is None else piece.weights(self.columns.weights)

    def carried(self, piece: Part) -> Mapping[str, Any]:
        name = self.columns.carried
        return {} if name is None else {name: piece.data.column(name)}

    def shown(self, piece: Part, row: int) -> str:
        values = piece.data.slice(row, 1).select(list(self.features)).to_pylist()[0]
        return ", ".join(f"{name} {value}" for name, value in list(values.items())[:COLUMNS_SHOWN] if value is not None)

    def relabeled(self, piece: Part, labels: Array, keep: Array) -> Mapping[str, Any]:
        whole = self.table.read(self.table.names).data.filter(pa.array(keep))
        (target,) = self.columns.targets
        changed = {target: labels[keep].astype(whole.column(target).type.to_pandas_dtype())}
        return {name: changed.get(name, whole.column(name)) for name in whole.column_names}

    def target_names(self, count: int, *, classes: bool) -> list[str]:
        return list(self.columns.targets)

    def notes(self) -> dict[str, Any]:
        _, *others = self.columns._asdict().items()
        return {"kind": self.kind, **{name: column for name, column in others if column is not None}}

    def describe(self) -> str:
        categories = self.categorical
        described = f"{len(self.features) - len(categories)} columns of numbers"
        return described + (f", {len(categories)} of categories ({', '.join(categories)})" if categories else "")


class TextData(TableData):
    """A column of text, and the sentence encoder that turns it into features."""

    kind = "text"
    at_once = 256

    def __init__(self, table: Table, columns: Columns, column: str, encoder: Any) -> None:
        super().__init__(table, columns, {column: "text"})
        self.column, self.encoder, self.progress = column, encoder, False

    def points(self, piece: Part) -> tuple[Array, None]:
        texts = piece.texts(self.column)
        empty = [row for row, text in enumerate(texts) if text is None]
        if empty:
            raise InputError(
                f"The text {self.column!r} of {self.path} is missing in row {piece.first + empty[0]}. Remove such rows."
            )
        return self.encoder.encode(texts.tolist(), progress=self.progress).numpy(), None

    def everything(self, *, progress: bool) -> tuple[Any, Any]:
        self.progress = progress
        return super().everything(progress=progress)

    @property
    def categorical(self) -> list[str]:
        return []

    def shown(self, piece: Part, row: int) -> str:
        return str(piece.texts(self.column)[row])

    def notes(self) -> dict[str, Any]:
        return {
            **super().notes(),
            "column": self.column,
            "encoder": self.encoder.name,
            "fingerprint": self.encoder.fingerprint,
        }

    def describe(self) -> str:
        return f"the text {self.column!r}, encoded by {self.encoder.name}"


class NumberedData(Data):
    """Pieces are ranges of row numbers."""

    @staticmethod
    def rows_of(piece: range) -> slice:
        return slice(piece.start, piece.stop)

    def pieces(self, rows: int) -> Iterator[range]:
        count = self.num_rows()
        return (range(part.start, part.stop) for part in ranges(count, min(rows, count)))

    def length(self, piece: range) -> int:
        return len(piece)

    def cut(self, piece: range, rows: slice) -> range:
        return piece[rows]
