"""Examples in PostgreSQL with the extension pgvector, through psycopg 3.

Every name in a statement is quoted by psycopg, and every value is a parameter. What belongs to the extension is named with
its schema, so that nothing depends on the search path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from .._checks import check_at_least_one
from .._extras import import_extra
from ..errors import InputError, KernelRidgeError, StoreError
from ..kernels import Kernel
from ..transforms import UnitNorm
from .base import Array, Layout, Store, retried
from .connections import Connections, packed, packed_array, register_packed, unpacked

T = TypeVar("T")
METADATA = "torchkrr_stores"  # a table in each schema, with a row for each store
LEAST = (0, 8)  # iterative scans
LONGEST_NAME = 63  # bytes; PostgreSQL would cut longer ones
MOST_INDEXED = {"vector": 2000, "halfvec": 4000}  # dimensions
MOST_FRONT = 1000  # the largest hnsw.ef_search
NO_PARAMETERS = {"": None}  # with none at all, psycopg would leave a doubled percent sign as it is
SQL_TYPES = {"int": "bigint", "float": "double precision", "str": "text", "bool": "boolean", "datetime": "timestamptz"}
LOST = ("08", "57P01", "57P02", "57P03", "40001", "40P01")  # connections, shutdowns, conflicts of transactions
INDEXES = """
    SELECT m.amname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_am m ON m.oid = c.relam JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = %s AND t.relname = %s AND m.amname IN ('hnsw', 'ivfflat') ORDER BY 1"""
COLUMNS = """
    SELECT a.attname, t.typname, a.atttypmod FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
EXTENSION = """
    SELECT n.nspname, e.extversion, t.oid FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_catalog.pg_type t ON t.typnamespace = n.oid AND t.typname = 'vector' WHERE e.extname = 'vector'"""


class Existing(NamedTuple):
    """Which columns of a table of embeddings that is there already are what; rows without a vector or value are not seen."""

    id: str = "id"
    vector: str = "embedding"  # vector or halfvec, as they are: the kernel has a single lengthscale
    value: str = "value"  # a number, an array of numbers, or vector
    metric: str = "euclidean"  # or "cosine", of a kernel on `transforms.UnitNorm`


class PgVectorStore(Store):
    """Rows in a table of PostgreSQL with the extension pgvector, 0.8 or later (`CREATE EXTENSION vector`).

    Without an index every search looks at all rows. `create_index` makes it approximate, and fast; rows that the index does
    not find are searched for again among all.

    Args:
        connection: a URI or connection string, of which each thread opens a connection of its own, and again after it is
            lost; a pool of psycopg_pool; or one connection of psycopg, which threads take in turn.
        table: its name; made at the first `add`, if a kernel is given.
        schema: where it is; it has to be there.
        kernel: embeds the rows of a new table. Without one, that of the table is read.
        columns: further columns of a new table, such as `{"tenant": int}`, for conditions: `int`, `float`, `str`, `bool` or
            `datetime.datetime`. Give those that are filtered by an index of their own.
        where: see only the rows that fulfil a condition, such as `("tenant", "=", 7)`, or each of several.
        existing: read a table of embeddings that another program writes, and never write to it.
        exact: look at all rows, even with an index.
        ef_search: size of the search front of an HNSW index; never less than the rows that are asked for.
        probes: lists of an IVFFlat index that are searched.
        tries: how often a statement is tried while the server cannot be reached, at intervals that grow from 0.1 s.
    """

    def __init__(
        self,
        connection: Any,
        table: str = "torchkrr",
        *,
        schema: str = "public",
        kernel: Kernel | None = None,
        columns: Mapping[str, type] | None = None,
        where: Sequence[Any] = (),
        existing: Existing | None = None,
        exact: bool = False,
        ef_search: int = 200,
        probes: int = 32,
        tries: int = 4,
    ) -> None:
        super().__init__(table, kernel, columns, where, tries)
        self._psycopg = import_extra("psycopg", "PgVectorStore", extra="pgvector")
        self._sql = import_extra("psycopg.sql", "PgVectorStore", extra="pgvector")
        for name in (table, schema, *self._columns, *(existing or ())):
            if not name or "\0" in name or len(name.encode()) > LONGEST_NAME:
                raise InputError(f"A name in PostgreSQL has 1 to {LONGEST_NAME} bytes, none of them zero, got {name!r}.")
        check_at_least_one("ef_search", ef_search)
        check_at_least_one("probes", probes)
        self.schema, self.existing, self.exact, self.ef_search, self.probes = schema, existing, exact, ef_search, probes
        self._connections = Connections(self._psycopg, connection)
        self._extension, self._oid, self._index = "", 0, ""  # schema of the extension, its type; access method of the index
        self._casts: dict[str, str] = {}  # what turns a column of an existing table into vectors
        self._open()

    def create_index(self, m: int = 16, ef_construction: int = 64, *, memory: str = "1GB") -> None:
        """Build an HNSW index; best after the rows are there. `memory` is what PostgreSQL may use for it.

        Beyond 2000 features it is built on half precision, which serves 4000; distances are computed from what is kept.
        """
        kind, sql = self._indexed(self.layout.features), self._sql

        def build(connection: Any) -> None:
            connection.execute("SELECT set_config('maintenance_work_mem', %s, true)", [memory])
            text = "CREATE INDEX ON {table} USING hnsw (({column}) {operators}) WITH (m = {m}, ef_construction = {front})"
            operators = self._name_of(self._extension, f"{kind}_l2_ops")
            sizes = {"m": sql.Literal(m), "front": sql.Literal(ef_construction)}
            self._execute(connection, text, column=self._column(kind), operators=operators, **sizes)
            self._execute(connection, "ANALYZE {table}")

        self._writable()
        self._run(build)
        self._index = "hnsw"

    def close(self) -> None:
        self._connections.close()

    def __len__(self) -> int:
        if self.existing is None and self._look() is None:
            return 0
        text, parameters = "SELECT count(*) FROM {table} WHERE {where}", self._parameters()
        return int(self._run(lambda connection: self._execute(connection, text, parameters).fetchone()[0]))

    def _open(self) -> None:
        def catalog(connection: Any) -> tuple[Any, Any, Any]:
            place = (self.schema, self.table)
            extension, columns, index = (
                connection.execute(text, parameters, prepare=False).fetchall()
                for text, parameters in ((EXTENSION, None), (COLUMNS, place), (INDEXES, place))
            )
            return extension, columns, index

        extension, columns, index = self._run(catalog)
        if not extension:
            raise StoreError("The database has no extension vector. Its owner runs: CREATE EXTENSION vector.")
        self._extension, version, self._oid = extension[0]
        if tuple(int(part) for part in version.split(".")[:2]) < LEAST:
            raise StoreError(f"The extension vector is {version}; 0.8 or later is needed: ALTER EXTENSION vector UPDATE.")
        types = {name: (kind, modifier) for name, kind, modifier in columns}
        self._index = index[0][0] if index else ""
        if self.existing is not None:
            self._open_existing(types)
            return
        if self._look() is None:
            if types:
                raise StoreError(
                    f"There is a table {self.table!r} that no store has made. Read it with existing=, or name another."
                )
            return
        assert self._layout is not None
        needed = {"id", "point", "values", *self._layout.columns}
        if not needed <= types.keys():
            missing = sorted(needed - types.keys())
            raise StoreError(
                f"The table {self.table!r} lacks the columns {', '.join(missing)}. It was changed; load it anew."
            )
        sizes = types["point"][1], types["values"][1]
        if sizes != (self._layout.features, self._layout.outputs):
            raise StoreError(
                f"The points and values of {self.table!r} have {sizes} numbers, but its metadata says "
                f"{(self._layout.features, self._layout.outputs)}. Load it anew under another name."
            )

    def _open_existing(self, types: Mapping[str, tuple[str, int]]) -> None:
        existing, kernel = self.existing, self._given
        assert existing is not None
        if kernel is None:
            raise InputError("A table of embeddings has no kernel of its own. Give kernel=.")
        transform, cosine = kernel.input_transform, existing.metric == "cosine"
        suits = isinstance(transform, UnitNorm) if cosine else transform is None
        if existing.metric not in ("euclidean", "cosine") or not suits or kernel.log_lengthscale.numel() > 1:
            raise InputError(
                "The order of existing embeddings is that of a kernel with a single lengthscale, without a transform for "
                f"the metric 'euclidean', on UnitNorm() for 'cosine'; got {kernel!r} for {existing.metric!r}."
            )
        if not types:
            raise StoreError(f"There is no table {self.table!r} in the schema {self.schema!r} that this role can see.")
        for name in existing[:3]:
            if name not in types:
                raise StoreError(f"The table {self.table!r} has no column {name!r}, but {', '.join(types)}.")
        (kind, size), (value, outputs) = types[existing.vector], types[existing.value]
        if kind not in MOST_INDEXED or size < 1:
            raise StoreError(f"The column {existing.vector!r} is {kind}; vector(n) or halfvec(n) is needed.")
        number = value in ("int2", "int4", "int8", "float4", "float8", "numeric", "bool")
        if not number and (value != "vector" or outputs < 1):
            raise StoreError(f"The column {existing.value!r} is {value}; a number or vector(n) is needed.")
        if kind == "halfvec":
            self._casts["point"] = "{column}::{vector}"
        if number:
            self._casts["values"] = f"ARRAY[{{column}}{'::int' * (value == 'bool')}::real]::{{vector}}"
        self._check_conditions(types)
        text = types[existing.id][0] not in ("int2", "int4", "int8")
        self._layout = Layout(size, 1 if number else outputs, text, dict.fromkeys(types, object))

    def _fetch(self, query: Array, count: int, exact: bool = False) -> list[list[Array]]:
        exact = exact or not self._approximate
        front = min(MOST_FRONT, max(self.ef_search, count))
        settings = {"jit": "off", "enable_indexscan": "off" if exact else "on", "enable_seqscan": "on" if exact else "off"}
        if not exact:
            settings |= {
                "hnsw": {"hnsw.ef_search": str(front), "hnsw.iterative_scan": "strict_order"},
                "ivfflat": {"ivfflat.probes": str(self.probes), "ivfflat.iterative_scan": "relaxed_order"},
            }[self._index]
        if self.existing is not None:
            kind = "halfvec" if "point" in self._casts else "vector"
        else:
            kind = "vector" if exact else self._indexed(query.shape[1])
        text = """
            SELECT g.ids, g.points, g.values FROM unnest(%(query)s::{vector}[]) WITH ORDINALITY AS q(point, place)
            CROSS JOIN LATERAL (
                SELECT array_agg(r.id) AS ids, string_agg({send}(r.point), ''::bytea) AS points,
                    string_agg({send}(r.values), ''::bytea) AS values
                FROM (SELECT {id} AS id, {point} AS point, {values} AS values FROM {table} WHERE {where}
                    ORDER BY {searched} OPERATOR({extension}.{distance}) q.point::{kind} LIMIT %(count)s) AS r
            ) AS g ORDER BY q.place"""
        cosine = self.existing is not None and self.existing.metric == "cosine"
        parts = {
            "searched": self._column(kind),
            "kind": self._type(kind),
            "distance": self._sql.SQL("<=>" if cosine else "<->"),
        }
        if self.existing is not None:  # its points are in their own units
            query = query * np.float32(self.kernel.lengthscale.item())
        parameters = self._parameters(query=packed_array(query, self._oid), count=count)

        def search(connection: Any) -> list[Any]:
            # One way to the server and back. What a pipeline of an autocommitting connection sends is one transaction.
            with connection.pipeline(), contextlib.nullcontext() if connection.autocommit else connection.transaction():
                calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
                pairs = [word for pair in settings.items() for word in pair]
                connection.execute(f"SELECT {calls}", pairs, prepare=False)
                cursor = self._execute(connection, text, parameters, **parts)
            return cursor.fetchall()  # type: ignore[no-any-return]

        found = self._run(search, whole=False)
        layout = self.layout
        kind_of_id = object if layout.text_ids else np.int64
        nothing = self._nothing(layout)
        return [
            [_ids(ids, kind_of_id), unpacked(points, layout.features), unpacked(values, layout.outputs)] if ids else nothing
            for ids, points, values in found
        ]

    def _insert(self, layout: Layout, ids: Array, points: Array, values: Array, columns: Mapping[str, list[Any]]) -> None:
        wide = self._psycopg.types.numeric.Int8  # psycopg would send small numbers as such, which COPY does not take
        names, *own = [[wide(v) if type(v) is int else v for v in column] for column in (ids.tolist(), *columns.values())]
        rows = list(zip(names, packed(points), packed(values), *own, strict=True))
        into = self._sql.SQL(", ").join(map(self._name_of, ("id", "point", "values", *columns)))
        written = [False]

        def insert(connection: Any, number: int) -> None:
            # If the connection was lost while it was told to commit, nobody else knows these ids.
            if number and written[0] and self._present_in(connection, ids[:1]):
                return
            if self._layout is None:
                self._create(connection, layout)
            copy = self._compose("COPY {table} ({names}) FROM STDIN (FORMAT BINARY)", names=into)
            with connection.cursor() as cursor, cursor.copy(copy, NO_PARAMETERS) as rows_in:
                for row in rows:
                    rows_in.write_row(row)
            written[0] = True

        self._run(insert, numbered=True)
        self._look()

    def _create(self, connection: Any, layout: Layout) -> None:
        """Table and metadata, unless another process has just made them."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('torchkrr'))")
        self._execute(
            connection,
            "CREATE TABLE IF NOT EXISTS {metadata} (name text, part text, content bytea NOT NULL, PRIMARY KEY (name, part))",
        )
        content = self._read_in(connection, "store")
        if content is not None:
            if self._take(content) != layout:
                raise StoreError(f"Another process has just made the table {self.table!r}, with other rows. Add them again.")
            return
        types = [
            self._sql.SQL("{} {}").format(self._name_of(name), self._sql.SQL(SQL_TYPES[kind.__name__]))
            for name, kind in layout.columns.items()
        ]
        text = "CREATE TABLE {table} (id {kind} PRIMARY KEY, point {vector}({features}) NOT NULL, "
        text += "values {vector}({outputs}) NOT NULL{columns})"
        parts = {
            "kind": self._sql.SQL("text" if layout.text_ids else "bigint"),
            "features": self._sql.Literal(layout.features),
            "outputs": self._sql.Literal(layout.outputs),
            "columns": self._sql.SQL("").join(self._sql.SQL(", {}").format(one) for one in types),
        }
        self._execute(connection, text, **parts)
        row = {"table": self.table, "content": self._note_of(layout)}
        self._execute(connection, "INSERT INTO {metadata} VALUES (%(table)s, 'store', %(content)s)", row)

    def _delete(self, ids: Array) -> None:
        self._writable()
        self._look()
        text = "DELETE FROM {table} WHERE {id} = ANY(%(ids)s) AND {where}"

        done = [False]

        def delete(connection: Any, number: int) -> None:
            if number and done[0] and not self._present_in(connection, ids):
                return
            cursor = self._execute(connection, text, self._parameters(ids=ids.tolist()))
            if cursor.rowcount != len(ids):
                raise InputError(
                    f"{len(ids) - cursor.rowcount} of {len(ids)} ids are not in {self.table!r}, or not among the rows of "
                    "the condition. Nothing is removed."
                )
            done[0] = True

        self._run(delete, numbered=True)

    def _present(self, ids: Array) -> list[Any]:
        return self._run(lambda connection: self._present_in(connection, ids))

    def _present_in(self, connection: Any, ids: Array) -> list[Any]:
        if not connection.execute(COLUMNS, (self.schema, self.table), prepare=False).fetchone():
            return []
        rows = self._execute(connection, "SELECT {id} FROM {table} WHERE {id} = ANY(%(ids)s)", {"ids": ids.tolist()})
        return [row[0] for row in rows]

    def _read(self, name: str) -> bytes | None:
        return self._run(lambda connection: self._read_in(connection, name))

    def _read_in(self, connection: Any, name: str) -> bytes | None:
        if not connection.execute(COLUMNS, (self.schema, METADATA), prepare=False).fetchone():
            return None
        text = "SELECT content FROM {metadata} WHERE name = %(table)s AND part = %(part)s"
        row = self._execute(connection, text, {"table": self.table, "part": name}).fetchone()
        return None if row is None else bytes(row[0])

    def _write(self, name: str, content: bytes) -> None:
        self._writable()
        text = "INSERT INTO {metadata} VALUES (%(table)s, %(part)s, %(content)s) "
        text += "ON CONFLICT (name, part) DO UPDATE SET content = excluded.content"
        parameters = {"table": self.table, "part": name, "content": content}
        self._run(lambda connection: self._execute(connection, text, parameters))

    def _writable(self) -> None:
        if self.existing is not None:
            raise StoreError(f"The table {self.table!r} belongs to another program, and is only read. Write to it there.")

    def _embedded(self, points: Tensor) -> Tensor:
        return points if self.existing is None else self.kernel.embed(points)

    def _indexed(self, size: int) -> str:
        for kind, most in MOST_INDEXED.items():
            if size <= most:
                return kind
        raise StoreError(f"An index takes at most 4000 features, got {size}. Search exactly, or reduce them first.")

    # Statements

    def _name_of(self, *names: str) -> Any:
        """A quoted name; a percent sign in it is no placeholder."""
        return self._sql.SQL(self._sql.Identifier(*names).as_string(None).replace("%", "%%"))

    def _type(self, kind: str) -> Any:
        return self._name_of(self._extension, kind)

    def _column(self, kind: str) -> Any:
        """What is searched: as in the index, or it would not serve."""
        column = self._name_of("point" if self.existing is None else self.existing.vector)
        if kind == "vector" or self.existing is not None:
            return column
        return self._sql.SQL("{}::{}({})").format(column, self._type(kind), self._sql.Literal(self.layout.features))

    def _compose(self, text: str, **parts: Any) -> Any:
        sql, own = self._sql, self.existing or Existing("id", "point", "values")
        where = [
            sql.SQL("{} = ANY({})" if one.operator == "in" else "{} {} {}").format(
                self._name_of(one.column),
                *([] if one.operator == "in" else [sql.SQL(one.operator)]),
                sql.Placeholder(f"where{at}"),
            )
            for at, one in enumerate(self.where)
        ]
        columns = {"point": own.vector, "values": own.value}
        if self.existing is not None:
            where += [sql.SQL("{} IS NOT NULL").format(self._name_of(name)) for name in columns.values()]
        expressions = {
            name: sql.SQL(self._casts.get(name, "{column}")).format(
                column=self._name_of(column), vector=self._type("vector")
            )
            for name, column in columns.items()
        }
        return sql.SQL(text).format(
            **{
                "table": self._name_of(self.schema, self.table),
                "metadata": self._name_of(self.schema, METADATA),
                "extension": self._name_of(self._extension),
                "vector": self._type("vector"),
                "send": self._type("vector_send"),
                "id": self._name_of(own.id),
                "where": sql.SQL(" AND ").join(where) if where else sql.SQL("true"),
                **expressions,
                **parts,
            }
        )

    def _parameters(self, **others: Any) -> dict[str, Any]:
        given = {f"where{at}": one.value for at, one in enumerate(self.where)}
        return {**{name: list(v) if isinstance(v, (tuple, set)) else v for name, v in given.items()}, **others}

    def _execute(self, connection: Any, text: str, parameters: Mapping[str, Any] | None = None, **parts: Any) -> Any:
        cursor = connection.cursor(binary=True)
        register_packed(self._psycopg, cursor)
        # Poolers in transaction mode know nothing of prepared statements.
        return cursor.execute(self._compose(text, **parts), parameters or NO_PARAMETERS, prepare=False)

    def _run(self, action: Callable[..., T], *, numbered: bool = False, whole: bool = True) -> T:
        """The result of an action on a connection, as a transaction; tried again while the server cannot be reached."""

        def attempt(number: int) -> T:
            with self._connections.one() as connection, connection.transaction() if whole else contextlib.nullcontext():
                return action(connection, number) if numbered else action(connection)

        try:
            return retried(attempt, self._is_passing, self._tries)
        except KernelRidgeError:
            raise
        except self._psycopg.Error as error:
            raise self._explained(error) from error

    def _is_passing(self, error: Exception) -> bool:
        lost = self._psycopg.OperationalError, self._psycopg.InterfaceError
        state = getattr(error, "sqlstate", None)
        return isinstance(error, lost) and self._connections.reopens and (state is None or state.startswith(LOST))

    def _explained(self, error: Exception) -> StoreError:
        kinds, told = self._psycopg.errors, str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"the table {self.table!r} of the schema {self.schema!r}"
        if isinstance(error, kinds.InsufficientPrivilege):
            return StoreError(f"The role of this connection may not do that with {where} ({told}). Its owner can GRANT it.")
        if isinstance(error, (kinds.UndefinedTable, kinds.UndefinedColumn, kinds.InvalidSchemaName)):
            return StoreError(f"PostgreSQL does not find {where} as it was ({told}). Open the store anew.")
        if isinstance(error, kinds.UniqueViolation):
            return StoreError(f"Some ids are in {where} already. Nothing is added; remove them first, or call load.")
        if self._is_passing(error):
            return StoreError(f"PostgreSQL could not be reached in {self._tries} tries ({told}). Nothing was half written.")
        return StoreError(f"PostgreSQL refuses, for {where}: {told}")


def _ids(ids: list[Any], kind: Any) -> Array:
    found = np.empty(len(ids), dtype=kind)
    found[:] = ids
    return found
