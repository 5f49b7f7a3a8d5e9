"""What the stores share: rows in, neighbors out, and the kernel that is kept beside the rows.

A store keeps embedded points, so that the Euclidean metric of the database is that of the kernel. The database proposes a
few more candidates than are asked for, in its own arithmetic; distances and order come from the points that it returns.
"""

from __future__ import annotations

import copy
import datetime
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice, check_finite, check_points, check_same_rows, check_searchable
from .._chunking import SEARCH_BYTES, ranges, rows_per_chunk
from .._tensors import working_dtype
from ..errors import InputError, InputTypeError, ShapeError, StoreError
from ..kernels import Kernel
from ..kernels.names import check_kernel
from ..neighbors.base import embed_in_blocks
from ..neighbors.exact import SPARE_CANDIDATES, rank
from ..storage import Stored, content_of, kernel_from, kernel_plan, read_content
from ..tuning.select import scaled

Array = np.ndarray[Any, Any]
T = TypeVar("T")
OWN = ("id", "point", "values")  # columns of every table
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in")
TYPES = {kind.__name__: kind for kind in (int, float, str, bool, datetime.datetime)}  # of the caller's own columns
LARGEST_ID = 1 << 62


class Condition(NamedTuple):
    """Which rows a store sees: those whose `column` compares so to `value`; of `"in"`, a sequence of values."""

    column: str
    operator: str
    value: Any


class Found(NamedTuple):
    """The nearest rows of each query, nearest first."""

    ids: Array  # (Q, M) int64, or objects
    points: Tensor  # (Q, M, E) embedded
    values: Tensor  # (Q, M, C)


class Block(NamedTuple):
    """The same, of one statement: candidates in the order of their ids within each query."""

    ids: Array  # (Q * K,)
    points: Tensor  # (Q * K, E)
    values: Tensor  # (Q * K, C)
    rows: Tensor  # (Q, M) of them, nearest first


class Layout(NamedTuple):
    """What is kept in the metadata, beside the kernel."""

    features: int  # of an embedded point: E
    outputs: int  # C
    text_ids: bool
    columns: Mapping[str, type]  # the caller's own


class Store(ABC):
    """Examples in a database: embedded points with their values, and the kernel that embeds.

    Several threads may use a store at a time. What a statement returns is one state of the rows, never a part of a write.
    """

    _kernel: Kernel | None = None
    _layout: Layout | None = None
    exact = False
    _index = ""  # the kind of index that there is

    def __init__(
        self, table: str, kernel: Kernel | None, columns: Mapping[str, type] | None, where: Sequence[Any], tries: int
    ) -> None:
        if kernel is not None:
            check_kernel(kernel)
            kernel = copy.deepcopy(kernel).requires_grad_(False)
        if not isinstance(table, str) or not table or "\0" in table:
            raise InputError(f"table must be the name of a table, got {table!r}.")
        check_at_least_one("tries", tries)
        self.table, self.where, self._given, self._tries = table, conditions(where), kernel, tries
        self._columns = dict(columns or {})
        for name, kind in self._columns.items():
            if name in OWN or kind not in TYPES.values():
                raise InputError(f"columns must map names other than {OWN} to {', '.join(TYPES)}, got {name!r}: {kind!r}.")

    @property
    def kernel(self) -> Kernel:
        """The kernel whose metric the rows are kept in, fixed."""
        self._look()
        kernel = self._kernel or self._given
        assert kernel is not None
        return kernel

    @cached_property
    def profile(self) -> Kernel:
        """The kernel on points that are embedded already."""
        profile = scaled(self.kernel, -self.kernel.log_lengthscale)
        profile.input_transform = None
        return profile

    @property
    def layout(self) -> Layout:
        """How many features and outputs the rows have; an error as long as there has been none."""
        self._look()
        if self._layout is None:
            raise StoreError(f"The table {self.table!r} has no rows yet. Call add(points, values) first.")
        return self._layout

    def search(self, points: Any, num_neighbors: int) -> Found:
        """The nearest rows of each point, `(Q, D)`; all rows where there are fewer than `num_neighbors`."""
        with torch.no_grad():
            embedded = embed_in_blocks(_rows("points", points), self.kernel.embed)
            check_searchable("points", embedded, among_themselves=False)
            found = [self.find(embedded[part], num_neighbors) for part in self.batches(len(embedded), num_neighbors)]
        parts = [
            (block.ids[block.rows.cpu().numpy()], block.points[block.rows], block.values[block.rows]) for block in found
        ]
        ids, neighbors, values = zip(*parts, strict=True)
        return Found(np.concatenate(ids), torch.cat(neighbors), torch.cat(values))

    def batches(self, count: int, num_neighbors: int) -> list[slice]:
        """Queries whose neighbors fit in memory together; those of one batch are found by one statement."""
        check_at_least_one("num_neighbors", num_neighbors)
        numbers = self.layout.features + self.layout.outputs + 4
        row_bytes = (num_neighbors + SPARE_CANDIDATES) * 4 * numbers
        return ranges(count, rows_per_chunk(row_bytes, SEARCH_BYTES)) or [slice(0, 0)]

    def find(self, embedded: Tensor, num_neighbors: int) -> Block:
        """As `search`, of one batch of embedded points `(Q, E)` without a graph."""
        layout, count = self.layout, num_neighbors + SPARE_CANDIDATES
        if embedded.shape[1] != layout.features:
            raise ShapeError(f"The points of {self.table!r} have {layout.features} features, got {embedded.shape[1]}.")
        query = np.ascontiguousarray(embedded.cpu().float().numpy())
        fetched = self._fetch(query, count) if len(query) else []
        sizes = {len(ids) for ids, _, _ in fetched}
        if fetched and sizes != {count} and self._approximate:  # an index that gives up early, or a table as small as that
            fetched = self._fetch(query, count, exact=True)
            sizes = {len(ids) for ids, _, _ in fetched}
        if sizes == {0}:
            raise StoreError(f"No row of {self.table!r} {'fulfils the condition' if self.where else 'is there'}. Add some.")
        width = min(sizes, default=0)
        # Equal distances are ranked by id, whatever the order in which a database comes across them.
        orders = [np.argsort(ids, kind="stable") for ids, _, _ in fetched]
        columns = zip(*([part[order] for part in one] for one, order in zip(fetched, orders, strict=True)), strict=True)
        ids, points, values = map(np.concatenate, columns) if fetched else self._nothing(layout)
        rows = torch.arange(len(ids), device=embedded.device).view(len(fetched), -1 if fetched else num_neighbors)
        block, targets = (torch.from_numpy(part).to(embedded) for part in (points, values))
        block = self._embedded(block)
        if fetched:
            rows = rank(embedded, lambda some: block.index_select(0, some), rows, min(num_neighbors, width)).indices
        return Block(ids, block, targets, rows)

    def add(self, points: Any, values: Any, ids: Any = None, **columns: Any) -> Array:
        """Add rows, all of them or, after an error, none; whoever predicts sees them from the next statement on.

        Args:
            points: `(n, D)`, as the kernel takes them; they are kept embedded, in float32.
            values: `(n, C)`, or `(n,)` for one output.
            ids: `(n,)` whole numbers or text, all different, and all of one kind in a table; random numbers if left out.
            columns: `(n,)` for each column that the store was made with.

        Returns:
            the ids `(n,)`.
        """
        kernel, points, values = self.kernel, _rows("points", points), torch.as_tensor(values)
        values = (values.unsqueeze(1) if values.ndim == 1 else values).float()
        check_points("values", values, maybe_empty=True)
        check_finite("values", values)
        check_same_rows("points", points, "values", values)
        with torch.no_grad():
            embedded = embed_in_blocks(points, kernel.embed).float()
        check_finite("embedded points", embedded)
        names = self._names(ids, len(points))
        self._writable()
        if not len(names):
            return names
        known = self._layout or Layout(embedded.shape[1], values.shape[1], names.dtype == object, self._columns)
        given = Layout(embedded.shape[1], values.shape[1], names.dtype == object, known.columns)
        if known != given:
            raise ShapeError(
                f"Rows of {self.table!r} have {known.features} features, {known.outputs} values and "
                f"{'text' if known.text_ids else 'numbers'} as ids; got {given.features}, {given.outputs} and "
                f"{'text' if given.text_ids else 'numbers'}."
            )
        own = {name: _listed(column) for name, column in columns.items()}
        if own.keys() != known.columns.keys() or any(len(column) != len(names) for column in own.values()):
            raise InputError(f"Each row of {self.table!r} has the columns {list(known.columns)}, got {list(own)}.")
        self._insert(known, names, embedded.cpu().numpy(), values.detach().cpu().numpy(), own)
        return names

    def load(self, points: Any, values: Any, ids: Any, *, batch_rows: int = 10_000, **columns: Any) -> int:
        """Add many rows, some at a time, without those whose ids are there: the same call goes on after an error.

        Returns:
            how many were added.
        """
        names, added = self._names(ids, len(points)), 0
        listed = {name: _listed(column) for name, column in columns.items()}
        for part in ranges(len(names), batch_rows):
            here = set() if self._look() is None else set(self._present(names[part]))
            new = [at for at in range(part.start, part.stop) if names[at] not in here]
            if new:
                own = {name: [column[at] for at in new] for name, column in listed.items()}
                self.add(points[new], values[new], names[new], **own)
                added += len(new)
        return added

    def remove(self, ids: Any) -> None:
        """Forget the rows with these ids, all of them or, if one is not there, none."""
        self._delete(self._names([ids] if np.ndim(ids) == 0 else ids, None))

    def read_note(self, name: str) -> Stored | None:
        """What `write_note` has kept under this name."""
        content = self._read(name)
        return None if content is None else read_content(content, f"The metadata of {self.table!r}")

    def write_note(self, name: str, note: Stored) -> None:
        """Keep something beside the rows, such as a head."""
        self._write(name, content_of(note))

    def close(self) -> None:  # noqa: B027 - some have nothing
        """Close what the store has opened."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shape = "" if self._layout is None else f", features={self._layout.features}, outputs={self._layout.outputs}"
        return f"{type(self).__name__}({self.table!r}{shape})"

    def __reduce__(self) -> Any:
        # A connection cannot go to another process, and its password must not.
        raise InputTypeError(f"A {type(self).__name__} cannot be copied or pickled. Open it anew where it is used.")

    def _look(self) -> Layout | None:
        """Read the metadata, unless that has been done; `None` as long as there is none."""
        if self._layout is not None:
            return self._layout
        content = self._read("store")
        if content is None:
            if self._given is None:
                raise StoreError(
                    f"There is no table {self.table!r} that a store has made. Give a kernel to make it, existing= to read a "
                    "table of embeddings that is there, or the name of another table."
                )
            return None
        return self._take(content)

    def _take(self, content: bytes) -> Layout:
        """Check the metadata against what was asked for, and keep it."""
        note = read_content(content, f"The metadata of {self.table!r}")
        kernel, plain = kernel_from(note.plain["kernel"], note.tensors), note.plain
        if self._given is not None and not same_kernel(self._given, kernel):
            raise StoreError(
                f"The rows of {self.table!r} are embedded by another kernel, {kernel!r}. Open it without a kernel, or make "
                "a table of another name."
            )
        columns = {name: TYPES[kind] for name, kind in plain["columns"].items()}
        if self._columns and self._columns != columns:
            raise StoreError(f"The columns of {self.table!r} are {plain['columns']}. Open it without columns=.")
        self._check_conditions(columns)
        self._kernel = kernel.requires_grad_(False)
        self._layout = Layout(plain["features"], plain["outputs"], plain["text_ids"], columns)
        return self._layout

    def _note_of(self, layout: Layout) -> bytes:
        assert self._given is not None
        columns = {name: kind.__name__ for name, kind in layout.columns.items()}
        plain = {**layout._asdict(), "columns": columns, "kernel": kernel_plan(self._given)}
        return content_of(Stored("Store", {k: v.clone() for k, v in self._given.state_dict().items()}, plain))

    def _check_conditions(self, columns: Mapping[str, Any]) -> None:
        for condition in self.where:
            if condition.column not in columns and condition.column != "id":
                known = ", ".join(["id", *columns])
                raise InputError(f"The condition names {condition.column!r}, but the table has the columns {known}.")

    def _names(self, ids: Any, count: int | None) -> Array:
        if ids is None:
            return np.array([secrets.randbelow(LARGEST_ID) for _ in range(count or 0)], dtype=np.int64)
        names = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
        if names.shape == (0,):  # numpy has no idea of what
            names = names.astype(np.int64)
        elif names.dtype.kind in "OU" and all(isinstance(name, str) for name in names.ravel().tolist()):
            names = names.astype(object)
        elif names.dtype.kind in "iuO":
            names = names.astype(np.int64)
        if names.ndim != 1 or names.dtype.kind not in "iO" or (count is not None and len(names) != count):
            expected = "different" if count is None else f"{count} different"
            raise InputError(f"ids must be {expected} whole numbers, or texts, got {names.dtype} of shape {names.shape}.")
        if len(set(names.tolist())) < len(names):
            raise InputError("ids must be different, but some are there twice.")
        return names

    @property
    def _approximate(self) -> bool:
        return bool(self._index) and not self.exact

    def _nothing(self, layout: Layout) -> list[Array]:
        empty = np.empty(0, dtype=object if layout.text_ids else np.int64)
        return [empty, *(np.empty((0, width), np.float32) for width in (layout.features, layout.outputs))]

    def _embedded(self, points: Tensor) -> Tensor:
        """Points of the table as the kernel sees them."""
        return points

    def _writable(self) -> None:  # noqa: B027 - most are
        """Raise an error if the rows are only read."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows fulfil the condition."""

    @abstractmethod
    def _fetch(self, query: Array, count: int, exact: bool = False) -> Sequence[Sequence[Array]]:
        """Of each row of `query`, ids, points and values of `count` candidates in any order, from one statement.

        Fewer if there are no more; an index may find fewer still, unless `exact`.
        """

    @abstractmethod
    def _insert(
        self, layout: Layout, ids: Array, points: Array, values: Array, columns: Mapping[str, list[Any]]
    ) -> None: ...

    @abstractmethod
    def _delete(self, ids: Array) -> None: ...

    @abstractmethod
    def _present(self, ids: Array) -> list[Any]:
        """Those of the ids that are there."""

    @abstractmethod
    def _read(self, name: str) -> bytes | None: ...

    @abstractmethod
    def _write(self, name: str, content: bytes) -> None: ...


def conditions(where: Sequence[Any]) -> tuple[Condition, ...]:
    """One condition, or several that are all fulfilled."""
    given = [where] if where and isinstance(where[0], str) else where
    found = []
    for one in given:
        if len(one) != 3 or not isinstance(one[0], str):
            raise InputError(f"A condition is (column, operator, value), such as ('tenant', '=', 7), got {one!r}.")
        check_choice("The operator of a condition", one[1], OPERATORS)
        found.append(Condition(*one))
    return tuple(found)


def same_kernel(one: Kernel, other: Kernel) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    alike = kernel_plan(one) == kernel_plan(other) and mine.keys() == others.keys()
    return alike and all(torch.equal(mine[name].double().cpu(), others[name].double()) for name in mine)


def retried(action: Callable[[int], T], is_passing: Callable[[Exception], bool], tries: int) -> T:
    """What the action returns, which takes the number of the try; an error that may pass is tried again, ever later."""
    for number in range(tries - 1):
        try:
            return action(number)
        except Exception as error:
            if not is_passing(error):
                raise
            time.sleep(0.1 * 3**number * (0.5 + secrets.randbelow(1000) / 1000))
    return action(tries - 1)


def _listed(column: Any) -> list[Any]:
    plain = column.tolist() if hasattr(column, "tolist") else list(column)
    return [value.item() if isinstance(value, np.generic) else value for value in plain]


def _rows(name: str, points: Any) -> Tensor:
    tensor = torch.as_tensor(points)
    tensor = tensor.detach().to(working_dtype(tensor.dtype) if tensor.is_floating_point() else torch.float32)
    check_points(name, tensor, maybe_empty=True)
    check_finite(name, tensor)
    return tensor
