"""Connections: shared, lost and found again; a server that dies; and passwords that nobody sees."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import traceback

import numpy as np
import pytest
import torch
from tests.stores.conftest import start
from tests.stores.load import run_load

from torchkrr import kernels, stores
from torchkrr.errors import InputError, StoreError
from torchkrr.stores import StoredKernelRidge

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
torch.manual_seed(4)
POINTS = torch.randn(4000, 32)
VALUES = POINTS[:, :1].sin()


@pytest.fixture(scope="module")
def mortal():
    """A server of its own, with rows, that may be killed."""
    folder = tempfile.mkdtemp(prefix="pg")
    running = start(folder)
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    with stores.PgVectorStore(running.get_uri(), "rows", kernel=kernels.Exponential(3.0)) as store:
        store.add(POINTS, VALUES, np.arange(len(POINTS)))
    yield running
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def kill(server):
    """All at once, as when the power fails; it has the write-ahead log to recover from."""
    os.kill(server.get_pid(), signal.SIGQUIT)


def revive(server):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            server.ensure_postgres_running()
            psycopg.connect(server.get_uri()).close()
            return
        time.sleep(0.1)
    raise AssertionError("the server does not come back")


def in_background(action):
    """A thread, and the list that its result or its error goes to."""
    found = []

    def run():
        try:
            found.append(action())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@contextlib.contextmanager
def killed_while_predicting(mortal, query, tries):
    """A layer, what it predicts of the first five, and the thread in which it predicted when its server was killed."""
    with stores.PgVectorStore(mortal.get_uri(), "rows", tries=tries) as store:
        layer = StoredKernelRidge(store, 20, ridge=1e-3)
        expected = layer(query[:5])
        thread, found = in_background(lambda: layer(query))
        time.sleep(0.2)
        assert thread.is_alive()
        kill(mortal)
        yield layer, expected, thread, found


def test_a_server_that_dies_during_a_prediction_is_named_and_the_next_call_works(mortal):
    query = torch.randn(1500, 32)
    with killed_while_predicting(mortal, query, tries=1) as (layer, expected, thread, found):
        thread.join()
        assert isinstance(found[0], StoreError)
        assert "could not be reached in 1 tries" in str(found[0])
        with pytest.raises(StoreError, match="could not be reached"):
            layer(query[:5])
        revive(mortal)
        torch.testing.assert_close(layer(query[:5]), expected, rtol=0, atol=0)


def test_a_prediction_goes_on_when_the_server_is_back_in_time(mortal):
    query = torch.randn(600, 32)
    with killed_while_predicting(mortal, query, tries=6) as (_, expected, thread, found):
        revive(mortal)
        thread.join()
        assert found[0].shape == (600, 1)
        torch.testing.assert_close(found[0][:5], expected, rtol=0, atol=0)


def test_a_server_that_dies_during_a_load_keeps_whole_batches_and_the_load_goes_on(mortal):
    with stores.PgVectorStore(mortal.get_uri(), "loaded", kernel=kernels.Exponential(3.0), tries=1) as store:
        thread, found = in_background(lambda: store.load(POINTS, VALUES, np.arange(4000), batch_rows=40))
        while thread.is_alive() and (store._layout is None or len(store) < 400):
            time.sleep(0.01)
        kill(mortal)
        thread.join()
        assert isinstance(found[0], StoreError)
        revive(mortal)
        there = len(store)
        assert 400 <= there < 4000
        assert there % 40 == 0
        assert store.load(POINTS, VALUES, np.arange(4000), batch_rows=1000) == 4000 - there
        check_rows(store)


def check_rows(store):
    """Each row is there once, as it was given."""
    assert len(store) == 4000
    found = store.search(POINTS[:50], 1)
    np.testing.assert_array_equal(found.ids[:, 0], np.arange(50))
    torch.testing.assert_close(found.values[:, 0], VALUES[:50], rtol=0, atol=0)
    assert len(np.unique(store.search(POINTS[:1], 4000).ids)) == 4000


def test_connections_that_are_cut_again_and_again_lose_no_row_and_double_none(mortal):
    with stores.PgVectorStore(mortal.get_uri(), "cut", kernel=kernels.Exponential(3.0), tries=8) as store:
        thread, found = in_background(lambda: store.load(POINTS, VALUES, np.arange(4000), batch_rows=100))
        cut = 0
        with psycopg.connect(mortal.get_uri(), autocommit=True) as connection:
            while thread.is_alive():
                cut += connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'torchkrr'"
                ).fetchone()[0]
                time.sleep(0.02)
        assert found == [4000]
        assert cut >= 5
        check_rows(store)


class Wire:
    """A TCP port before the server, that loses the answer to the COMMIT of the next write, and the connection with it."""

    def __init__(self, server):
        host = psycopg.conninfo.conninfo_to_dict(server.get_uri())["host"]
        self.target, self.lost = f"{host}/.s.PGSQL.5432", 0
        self.armed = self.copying = self.cutting = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"postgresql://postgres@127.0.0.1:{self.listener.getsockname()[1]}/postgres?sslmode=disable"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, inside = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                inside.connect(self.target)
                for pair in ((client, inside, True), (inside, client, False)):
                    threading.Thread(target=self.forward, args=pair, daemon=True).start()

    def forward(self, source, target, asks):
        with contextlib.suppress(OSError), source:
            while data := source.recv(1 << 16):
                self.copying = self.copying or (asks and self.armed and (b"COPY" in data or b"DELETE" in data))
                if asks and self.copying and b"COMMIT" in data:
                    self.armed, self.copying, self.cutting = False, False, True
                elif not asks and self.cutting and b"COMMIT" in data:
                    self.cutting, self.lost = False, self.lost + 1
                    break
                target.sendall(data)
            for end in (target, source):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("table", ["made by the lost transaction", "there"])
def test_rows_whose_commit_was_not_confirmed_are_not_written_twice(mortal, table):
    """The server has committed, the client does not know: it looks, instead of failing on its own ids."""
    wire = Wire(mortal)
    with stores.PgVectorStore(wire.uri, table, kernel=kernels.Exponential(3.0)) as store:
        if table == "there":
            store.add(POINTS[:10], VALUES[:10], np.arange(10))
        wire.armed = True
        store.add(POINTS[10:20], VALUES[10:20], np.arange(10, 20))
        assert wire.lost == 1
        wire.armed = True
        store.remove([11, 12])
        store.add(POINTS[11:13], VALUES[11:13], [11, 12])
        assert wire.lost == 2
        assert len(store) == (20 if table == "there" else 10)
    wire.listener.close()


def test_rows_that_vanish_between_search_and_fetch_cannot_since_they_are_one_statement(pgvector, server, schema):
    """Another connection removes the nearest rows while predictions are made: each is that of a whole state."""
    store = pgvector(kernel=kernels.Exponential(3.0))
    store.add(POINTS, VALUES, np.arange(4000))
    other, done = pgvector(), threading.Event()

    def flicker():
        while not done.is_set():
            other.remove(np.arange(100))
            other.add(POINTS[:100], VALUES[:100], np.arange(100))

    thread, found = in_background(flicker)
    try:
        for _ in range(30):
            rows = store.search(POINTS[:4], 50)
            # All of the first hundred are there, or none of them.
            assert len({bool(row[0] == at) for at, row in enumerate(rows.ids)}) == 1
            np.testing.assert_array_equal(rows.values, VALUES[rows.ids])
    finally:
        done.set()
        thread.join()
    assert found == [None]


def test_ten_seconds_of_load(pgvector):
    """As `python -m tests.stores.load`, which takes two minutes."""
    found = run_load(pgvector, seconds=6, threads=4, rows=1000)
    assert found["errors"] == []
    assert found["predictions"] > 50
    assert found["writes"] > 10


def test_ten_seconds_of_load_on_lance(lance):
    found = run_load(lance, seconds=4, threads=4, rows=1000)
    assert found["errors"] == []
    assert found["predictions"] > 20
    assert found["writes"] > 3


@pytest.mark.parametrize("kind", ["pool", "connection", "transaction"])
def test_a_pool_or_a_connection_of_the_caller_serves_threads(server, schema, kind):
    pool = pytest.importorskip("psycopg_pool")
    with contextlib.ExitStack() as stack:
        if kind == "pool":
            given = stack.enter_context(pool.ConnectionPool(server.get_uri(), min_size=1, max_size=2))
        else:
            given = stack.enter_context(psycopg.connect(server.get_uri(), autocommit=kind == "connection"))
        store = stores.PgVectorStore(given, schema=schema, kernel=kernels.Exponential(3.0))
        store.add(POINTS[:200], VALUES[:200], np.arange(200))
        expected = store.search(POINTS[:3], 9).ids
        running = [in_background(lambda: store.search(POINTS[:3], 9).ids) for _ in range(5)]
        for thread, found in running:
            thread.join()
            np.testing.assert_array_equal(found[0], expected)
        if kind == "transaction":
            assert given.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with stores.PgVectorStore(server.get_uri(), schema=schema) as other:
            assert len(other) == 200


def test_a_connection_of_the_caller_that_is_closed_is_named(server, schema):
    connection = psycopg.connect(server.get_uri(), autocommit=True)
    store = stores.PgVectorStore(connection, schema=schema, kernel=kernels.Exponential(3.0))
    store.add(POINTS[:5], VALUES[:5])
    connection.close()
    with pytest.raises(StoreError, match="the connection is closed"):
        store.search(POINTS[:1], 3)


def test_what_is_no_connection_is_named():
    with pytest.raises(InputError, match="must be a URI, a psycopg"):
        stores.PgVectorStore(3)


SECRET = "sw0rdf!sh"


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://user:{SECRET}@localhost:notaport/db",
        f"postgresql://user:{SECRET}@127.0.0.1:1/db?connect_timeout=1",
        f"host=127.0.0.1 port=1 password={SECRET} connect_timeout=1",
        f"host=127.0.0.1 password={SECRET} nonsense={SECRET}",
        f"postgresql://user:{SECRET}@[::1/db",
        f"{SECRET}",
    ],
)
def test_passwords_are_in_no_message_log_or_attribute(uri, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises((StoreError, InputError)) as caught:
        stores.PgVectorStore(uri, tries=2)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in caplog.text


def test_passwords_are_in_no_description_or_file(server, schema, tmp_path):
    uri = server.get_uri().replace("postgres:@", f"postgres:{SECRET}@")
    with stores.PgVectorStore(uri, schema=schema, kernel=kernels.Exponential(3.0)) as store:
        store.add(POINTS[:50], VALUES[:50])
        layer = StoredKernelRidge(store)
        torch.save(layer.state_dict(), tmp_path / "state")
        with pytest.raises(InputError, match="cannot be copied or pickled"):
            torch.save(layer, tmp_path / "layer")
        told = [repr(store), repr(layer), str(vars(store)), str(vars(layer)), str(store.read_note("store"))]
        assert not any(SECRET in text for text in told)
        assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.iterdir())
