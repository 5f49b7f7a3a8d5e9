"""Examples in LanceDB: a folder, on this machine or in object storage, with no server.

Conditions are expressions of LanceDB, made of names and values; no statement is built from text.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from .._checks import check_at_least_one, check_choice
from .._extras import import_extra
from ..errors import InputError, KernelRidgeError, StoreError
from ..kernels import Kernel
from .base import Array, Layout, Store, retried

T = TypeVar("T")
INDEXES = {"ivf": "IvfFlat", "ivf_pq": "IvfPq", "hnsw": "HnswSq"}
NOTES = ".torchkrr"  # what the table of the metadata is called, after the rows
REFINED = 4  # candidates for each neighbor, of an index that keeps approximate points
COMPARED = {"=": "eq", "!=": "ne", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte", "in": "isin"}


class LanceStore(Store):
    """Rows in a table of LanceDB: a folder on this machine, or object storage such as `s3://bucket/folder`.

    Each write is a new version of the table, and each search sees the newest whole one. Writes of several processes are put
    one after the other. A process made by a fork cannot use a store of its parent: start processes by "spawn".

    Args:
        path: the folder; it is made.
        table: its name, of letters, digits, `_`, `-` and `.`; made at the first `add`, if a kernel is given.
        kernel, columns, where, exact: as of `PgVectorStore`.
        nprobes: partitions of an index that are searched.
        storage_options: of object storage, such as keys; they are kept by LanceDB alone.
        tries: how often a write is tried that another one has overtaken.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str = "torchkrr",
        *,
        kernel: Kernel | None = None,
        columns: Mapping[str, type] | None = None,
        where: Sequence[Any] = (),
        exact: bool = False,
        nprobes: int = 32,
        storage_options: Mapping[str, str] | None = None,
        tries: int = 8,
    ) -> None:
        super().__init__(table, kernel, columns, where, tries)
        check_at_least_one("nprobes", nprobes)
        module = functools.partial(import_extra, user="LanceStore", extra="lance")
        self._lance, self._expr, self._arrow = module("lancedb"), module("lancedb.expr"), module("pyarrow")
        self.exact, self.nprobes, self._process = exact, nprobes, os.getpid()
        self._secrets = tuple((storage_options or {}).values())
        self._rows_table: Any = None
        options = dict(storage_options) if storage_options else None
        # Other handles are looked at before each use: by default LanceDB would go on with what it saw first.
        fresh = timedelta(0)
        self._base = self._run(
            lambda: self._lance.connect(os.fspath(path), storage_options=options, read_consistency_interval=fresh)
        )
        if self._look() is not None:
            found = self._run(self._shape)
            if found != (self._layout.features, self._layout.outputs):  # type: ignore[union-attr]
                raise StoreError(f"The table {table!r} is not as its metadata says: {found}. Load it anew, by another name.")

    def create_index(self, kind: str = "ivf", *, num_partitions: int | None = None) -> None:
        """Build an index: `"ivf"` on the points, `"ivf_pq"` on compressed ones, or `"hnsw"`; best after the rows are there.

        Rows that are added later are searched one by one, until it is built again.
        """
        check_choice("kind", kind, tuple(INDEXES))
        make = getattr(import_extra("lancedb.index", "LanceStore", extra="lance"), INDEXES[kind])
        config = make(distance_type="l2", num_partitions=num_partitions)
        self._run(lambda: self._table().create_index("point", config=config, replace=True))
        self._index = INDEXES[kind]

    def optimize(self) -> None:
        """Merge the small files that many writes leave behind, and index the rows that came after the index."""
        self._run(lambda: self._table().optimize())

    def __len__(self) -> int:
        if self._look() is None:
            return 0
        condition = self._condition()
        return int(self._run(lambda: self._table().count_rows(None if condition is None else condition.to_sql())))

    def _fetch(self, query: Array, count: int, exact: bool = False) -> list[list[Array]]:
        def search() -> Any:
            asked = self._table().search(query, vector_column_name="point").distance_type("l2").limit(count)
            if exact or not self._approximate:
                asked = asked.bypass_vector_index()
            else:
                asked = asked.nprobes(self.nprobes)
                if not self._index.endswith("Flat"):  # it knows approximate points
                    asked = asked.ef(REFINED * count).refine_factor(REFINED)
            condition = self._condition()
            asked = asked if condition is None else asked.where(condition, prefilter=True)
            return asked.select(["id", "point", "values", "_distance"]).to_arrow()

        found = self._run(search).combine_chunks()
        of_query = found["query_index"].to_numpy() if len(query) > 1 else np.zeros(len(found), dtype=np.int64)
        order = np.argsort(of_query, kind="stable")
        columns = [found["id"].to_numpy(), _matrix(found["point"]), _matrix(found["values"])]
        ends = np.bincount(of_query, minlength=len(query)).cumsum()[:-1]
        parts = [np.split(column[order], ends) for column in columns]
        return [list(one) for one in zip(*parts, strict=True)]

    def _insert(self, layout: Layout, ids: Array, points: Array, values: Array, columns: Mapping[str, list[Any]]) -> None:
        schema = self._schema(layout)
        arrays = [self._arrow.array(ids), _vectors(self._arrow, points), _vectors(self._arrow, values)]
        arrays += [self._arrow.array(column, schema.field(name).type) for name, column in columns.items()]
        rows = self._arrow.table(arrays, schema=schema)
        if self._layout is None:
            self._create(layout)
        if self._present(ids):
            raise StoreError(f"Some ids are in {self.table!r} already. Nothing is added; remove them first, or call load.")
        merge = self._table().merge_insert("id").when_not_matched_insert_all()
        added = self._run(lambda: merge.execute(rows)).num_inserted_rows
        if added < len(ids):
            raise StoreError(f"Another process has just added {len(ids) - added} of these ids to {self.table!r}.")

    def _create(self, layout: Layout) -> None:
        """Metadata first: a table of rows without it would be nobody's."""

        def create() -> None:
            name, kinds = self.table + NOTES, self._arrow.schema([("part", "string"), ("content", "binary")])
            self._base.create_table(name, schema=kinds, exist_ok=True)
            if self._noted("store") is None:
                row = self._arrow.table([["store"], [self._note_of(layout)]], schema=kinds)
                self._base.open_table(name).merge_insert("part").when_not_matched_insert_all().execute(row)

        self._run(create)
        content = self._run(lambda: self._noted("store"))
        assert content is not None
        if self._take(content) != layout:
            raise StoreError(f"Another process has just made the table {self.table!r}, with other rows. Add them again.")
        self._run(lambda: self._base.create_table(self.table, schema=self._schema(layout), exist_ok=True))

    def _delete(self, ids: Array) -> None:
        self._look()
        condition, mine = self._condition(), self._expr.col("id").isin(ids.tolist())
        condition = mine if condition is None else mine & condition
        missing = len(ids) - self._run(lambda: self._table().count_rows(condition.to_sql()))
        if missing:
            raise InputError(
                f"{missing} of {len(ids)} ids are not in {self.table!r}, or not among the rows of the condition. Nothing is "
                "removed."
            )
        self._run(lambda: self._table().delete(condition))

    def _present(self, ids: Array) -> list[Any]:
        condition = self._expr.col("id").isin(ids.tolist())
        found = self._run(lambda: self._table().search().where(condition).select(["id"]).to_arrow())
        return found["id"].to_pylist()  # type: ignore[no-any-return]

    def _read(self, name: str) -> bytes | None:
        # Metadata without a table of rows: another process is just making that.
        return self._run(lambda: None if self._opened(self.table) is None else self._noted(name))

    def _noted(self, name: str) -> bytes | None:
        table = self._opened(self.table + NOTES)
        if table is None:
            return None
        found = table.search().where(self._expr.col("part") == self._expr.lit(name)).limit(1).to_arrow()
        return found["content"][0].as_py() if len(found) else None

    def _opened(self, name: str) -> Any:
        try:
            return self._base.open_table(name)
        except ValueError as error:
            if "not found" in str(error):
                return None
            raise

    def _write(self, name: str, content: bytes) -> None:
        self.layout  # noqa: B018 - an error if there is none
        table = self._run(lambda: self._base.open_table(self.table + NOTES))
        row = self._arrow.table({"part": [name], "content": [content]})
        merge = table.merge_insert("part").when_matched_update_all().when_not_matched_insert_all()
        self._run(lambda: merge.execute(row))

    def _schema(self, layout: Layout) -> Any:
        pa = self._arrow
        kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
        kinds["datetime"] = pa.timestamp("us", tz="UTC")
        sizes = {"point": layout.features, "values": layout.outputs}
        fields = [("id", pa.string() if layout.text_ids else pa.int64())]
        fields += [(name, pa.list_(pa.field("item", pa.float32()), size)) for name, size in sizes.items()]
        return pa.schema(fields + [(name, kinds[kind.__name__]) for name, kind in layout.columns.items()])

    def _shape(self) -> tuple[int, int]:
        schema = self._table().schema
        try:
            return schema.field("point").type.list_size, schema.field("values").type.list_size
        except (KeyError, AttributeError) as error:
            raise StoreError(f"The table {self.table!r} lacks its columns ({error}). Load it anew.") from error

    def _condition(self) -> Any:
        parts = [
            getattr(self._expr.col(one.column), COMPARED[one.operator])(
                list(one.value) if one.operator == "in" else self._expr.lit(one.value)
            )
            for one in self.where
        ]
        return functools.reduce(lambda one, other: one & other, parts) if parts else None

    def _table(self) -> Any:
        if self._process != os.getpid():
            raise StoreError("This store was opened before a fork. Open it in the new process, or start that by 'spawn'.")
        if self._rows_table is None:
            self._rows_table = self._base.open_table(self.table)
            self._index = "".join(index.index_type for index in self._rows_table.list_indices())
        return self._rows_table

    def _run(self, action: Callable[[], T]) -> T:
        """The result of an action; tried again where the write of another process came first."""
        try:
            return retried(lambda _: action(), lambda error: "onflict" in str(error), self._tries)
        except KernelRidgeError:
            raise
        except (ValueError, OSError, RuntimeError) as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
        for secret in self._secrets:
            told = told.replace(secret, "***") if secret else told
        self._rows_table = None  # the next call opens it anew
        raise StoreError(f"LanceDB refuses, for the table {self.table!r}: {told}")


def _vectors(arrow: Any, rows: Array) -> Any:
    flat = arrow.array(np.ascontiguousarray(rows, dtype=np.float32).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _matrix(column: Any) -> Array:
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    size = column.type.list_size
    return column.flatten().to_numpy(zero_copy_only=False).reshape(-1, size)  # type: ignore[no-any-return]
