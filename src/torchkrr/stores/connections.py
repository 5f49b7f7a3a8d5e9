"""Connections to PostgreSQL, and vectors as they go through them.

Each connection serves one thread at a time, and is opened again after it is lost. Passwords stay inside.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import InputError
from .base import Array


class Connections:
    """Connections, one at a time for whoever asks: of a URI, of a pool, or the one that there is."""

    def __init__(self, psycopg: Any, connection: Any) -> None:
        self._idle: list[Any] = []
        self._process, self._lock = os.getpid(), threading.RLock()
        self._connect = opener(psycopg, connection) if isinstance(connection, str) else None
        self._given: Any = None if self._connect else connection
        self.reopens = not isinstance(connection, psycopg.Connection)
        if self.reopens and self._connect is None and not hasattr(connection, "getconn"):
            raise InputError(
                "connection must be a URI, a psycopg.Connection or a psycopg_pool.ConnectionPool, got a "
                f"{type(connection).__name__}."
            )

    def one(self) -> contextlib.AbstractContextManager[Any]:
        """A connection that nobody else uses meanwhile."""
        if self._connect is not None:
            return self._own(self._connect)
        return self._given.connection() if self.reopens else self._only()

    @contextlib.contextmanager
    def _own(self, connect: Callable[[], Any]) -> Iterator[Any]:
        if self._process != os.getpid():  # after a fork the sockets belong to the other process
            self._idle, self._process = [], os.getpid()
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or connect()
        try:
            yield connection
        except Exception:
            self._give_back(connection)
            raise
        except BaseException:  # an interrupt, perhaps in the middle of a statement
            connection.close()
            raise
        self._give_back(connection)

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if connection.closed:  # then so are the others, most likely
                self.close()
            else:
                self._idle.append(connection)

    @contextlib.contextmanager
    def _only(self) -> Iterator[Any]:
        with self._lock:
            yield self._given

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def opener(psycopg: Any, uri: str) -> Callable[[], Any]:
    """A function that connects; what it raises says nothing of the password, nor does any attribute hold it."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(uri)
    except psycopg.Error:
        given = None
    if given is None:  # outside of the handler: the message of the error may quote the password
        raise InputError("The connection string cannot be read. Expected postgresql://USER@HOST:PORT/DATABASE.")
    options = {"connect_timeout": 10, "keepalives_idle": 30, "application_name": "torchkrr", **given}

    def connect() -> Any:
        try:
            return psycopg.connect(**options, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            told, secret = str(error), str(given.get("password") or "")
        raise psycopg.OperationalError(told.replace(secret, "***") if secret else told)

    return connect


class Packed(bytes):
    """A value in the binary format of PostgreSQL."""


def packed(rows: Array) -> list[Packed]:
    """Rows `(n, E)` as vectors: the number of entries, a zero, and the entries, all big-endian."""
    records = np.zeros(len(rows), dtype=[("size", ">u2"), ("unused", ">u2"), ("entries", ">f4", rows.shape[1:])])
    records["size"], records["entries"] = rows.shape[1], rows
    content, width = records.tobytes(), records.dtype.itemsize
    return [Packed(content[at : at + width]) for at in range(0, len(content), width)]


def packed_array(rows: Array, oid: int) -> Packed:
    """The same as one array, whose elements are of the type with this number, and say their length."""
    words = np.zeros(len(rows), dtype=[("length", ">i4"), ("size", ">u2"), ("unused", ">u2"), ("e", ">f4", rows.shape[1:])])
    words["length"], words["size"], words["e"] = 4 + 4 * rows.shape[1], rows.shape[1], rows
    return Packed(np.array([1, 0, oid, len(rows), 1], dtype=">i4").tobytes() + words.tobytes())


def unpacked(content: bytes, size: int) -> Array:
    """Vectors, one after the other, as rows."""
    records = np.frombuffer(content, dtype=[("head", ">u4"), ("entries", ">f4", (size,))])
    return records["entries"].astype(np.float32)


def register_packed(psycopg: Any, cursor: Any) -> None:
    """Let a cursor send what is packed as it is."""

    class Dumper(psycopg.adapt.Dumper):
        format = psycopg.pq.Format.BINARY

        def dump(self, value: Packed) -> bytes:
            return bytes(value)

    cursor.adapters.register_dumper(Packed, Dumper)
