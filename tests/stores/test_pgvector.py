"""PostgreSQL with pgvector: its traps, tables that are there already, conditions, and what may not be read or written."""

import datetime
import time

import numpy as np
import pytest
import torch

from torchkrr import kernels, neighbors, nn, stores, transforms
from torchkrr.errors import InputError, StoreError
from torchkrr.stores import Existing, StoredKernelRidge

torch.manual_seed(3)
POINTS, QUERY = torch.randn(1500, 16), torch.randn(6, 16)
VALUES = POINTS[:, :2].sin()


def exact_ids(query, points, count, kernel=None):
    return neighbors.nearest(query, points, count, kernel=kernel).numpy()


def eventually(holds):
    """Whether something comes to hold within seconds."""
    return any(holds() or time.sleep(0.05) for _ in range(100))


def recall(found, expected):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), expected.tolist(), strict=True)])


@pytest.fixture(scope="module")
def indexed(server):
    """A store with an HNSW index, read by several tests."""
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA indexed")
    columns = {"tenant": int, "name": str, "at": datetime.datetime}
    store = stores.PgVectorStore(server.get_uri(), schema="indexed", kernel=kernels.Exponential(2.0), columns=columns)
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    own = {
        "tenant": np.arange(1500) % 100,
        "name": [f"row {at}" for at in range(1500)],
        "at": [day + datetime.timedelta(hours=at) for at in range(1500)],
    }
    store.add(POINTS, VALUES, np.arange(1500), **own)
    store.create_index(m=16, ef_construction=64)
    yield store
    store.close()


def opened(store, server, **options):
    return stores.PgVectorStore(server.get_uri(), store.table, schema=store.schema, **options)


def index_scans(sql, schema="indexed"):
    """How often PostgreSQL has gone through the index, as sessions that ended have told."""
    sql.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname LIKE '%%point%%'"
    return int(sql.execute(query, [schema]).fetchone()[0])


def test_an_hnsw_index_gives_as_many_rows_as_are_asked_for(indexed, server, sql):
    # The default front of 40 rows gives 40, whatever the limit.
    literal = str(QUERY[0].div(2).tolist())
    with sql.transaction():
        sql.execute("SET LOCAL enable_seqscan = off")
        trap = "SELECT id FROM indexed.torchkrr ORDER BY point <-> %s::vector LIMIT 100"
        assert len(sql.execute(trap, [literal]).fetchall()) == 40
    with opened(indexed, server) as store:
        before, found = index_scans(sql), store.search(QUERY, 100)
    assert found.ids.shape == (6, 100)
    assert eventually(lambda: index_scans(sql) == before + 6)
    assert recall(found.ids, exact_ids(QUERY, POINTS, 100)) > 0.95


def test_an_exact_search_never_uses_the_index(indexed, sql, server):
    before = index_scans(sql)
    with opened(indexed, server, exact=True) as store:
        np.testing.assert_array_equal(store.search(QUERY, 100).ids, exact_ids(QUERY, POINTS, 100))
    time.sleep(0.1)
    assert index_scans(sql) == before


def test_more_rows_than_the_largest_front_are_found_too(indexed):
    found = indexed.search(QUERY, 1200)
    assert found.ids.shape == (6, 1200)
    assert all(len(set(row)) == 1200 for row in found.ids.tolist())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("tenant", "=", 7), lambda at: at % 100 == 7),
        (("tenant", "in", [7, 8]), lambda at: np.isin(at % 100, [7, 8])),
        ([("tenant", ">=", 50), ("id", "<", 60)], lambda at: (at % 100 >= 50) & (at < 60)),
        (("at", "<", datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)), lambda at: at < 24),
        (("name", "=", "row 3"), lambda at: at == 3),
    ],
)
def test_a_condition_on_a_graph_still_gives_all_rows_that_fulfil_it(indexed, server, where, expected):
    rows = np.flatnonzero(expected(np.arange(1500)))
    with opened(indexed, server, where=where) as store:
        assert len(store) == len(rows)
        found = store.search(QUERY, 100)
        near = exact_ids(QUERY, POINTS[rows], min(100, len(rows)))
        np.testing.assert_array_equal(found.ids, rows[near])
        layer = StoredKernelRidge(store, 10, ridge=1e-2)
        inside = nn.LocalKernelRidge(POINTS[rows], VALUES[rows], 10, kernel=store.kernel, ridge=1e-2)
        torch.testing.assert_close(layer(QUERY), inside(QUERY), rtol=1e-5, atol=1e-5)


def test_rows_that_the_graph_gives_up_on_are_searched_for_among_all(indexed, server):
    few = "&options=-c%20hnsw.max_scan_tuples%3D1%20-c%20hnsw.scan_mem_multiplier%3D1"
    rows = np.arange(7, 1500, 100)
    with stores.PgVectorStore(server.get_uri() + few, schema="indexed", where=("tenant", "=", 7)) as store:
        fetched = store._fetch(QUERY.numpy() / 2, 10)
        assert min(len(ids) for ids, _, _ in fetched) < 10  # the graph alone, silently
        np.testing.assert_array_equal(store.search(QUERY, 10).ids, rows[exact_ids(QUERY, POINTS[rows], 10)])


def test_no_row_that_fulfils_a_condition_is_an_error(indexed, server):
    with opened(indexed, server, where=("tenant", "=", 1000)) as store, pytest.raises(StoreError, match="No row of"):
        store.search(QUERY, 3)


def test_a_batch_is_one_round_trip_without_prepared_statements_or_settings_left(indexed, server, tmp_path):
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection, open(tmp_path / "trace", "wb") as trace:
        store = stores.PgVectorStore(connection, indexed.table, schema=indexed.schema)
        before = connection.execute("SHOW enable_seqscan").fetchone()
        for _ in range(7):
            store.search(QUERY, 20)
        connection.pgconn.trace(trace.fileno())
        store.search(QUERY, 20)
        connection.pgconn.untrace()
        assert connection.execute("SHOW enable_seqscan").fetchone() == before
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    told = (tmp_path / "trace").read_text()
    assert told.count("ReadyForQuery") == told.count("\tSync") == 1


def test_features_beyond_the_limit_of_an_index_are_indexed_in_half_precision(pgvector):
    points = torch.randn(60, 2001)
    store = pgvector(kernel=kernels.Exponential(30.0))
    store.add(points, points[:, :1], np.arange(60))
    store.create_index()
    np.testing.assert_array_equal(store.search(points[:3] + 0.01, 10).ids, exact_ids(points[:3] + 0.01, points, 10))
    wide = pgvector("wide", kernel=kernels.Exponential(30.0))
    wide.add(torch.randn(3, 4001), torch.randn(3, 1))
    with pytest.raises(StoreError, match="at most 4000 features, got 4001"):
        wide.create_index()


# Tables that are there already


@pytest.fixture
def embeddings(sql, schema):
    """Such as other programs make, with rows that lack something."""
    sql.execute(
        f"""CREATE TABLE {schema}.docs (doc text PRIMARY KEY, emb vector(4), half halfvec(4), label int, good boolean,
            pair vector(2), note text)"""
    )
    points = torch.randn(80, 4)
    for at, row in enumerate(points.tolist()):
        parameters = [f"doc {at}", str(row), str(row), at, at % 2 == 0, str([at, 1])]
        sql.execute(f"INSERT INTO {schema}.docs VALUES (%s, %s, %s, %s, %s, %s)", parameters)
    sql.execute(f"INSERT INTO {schema}.docs (doc, emb) VALUES ('no label', '[0,0,0,0]')")
    sql.execute(f"INSERT INTO {schema}.docs (doc, label) VALUES ('no vector', 3)")
    return points


@pytest.mark.parametrize("value", ["label", "good", "pair"])
@pytest.mark.parametrize(
    "index", ["", "USING hnsw (emb vector_l2_ops)", "USING ivfflat (emb vector_l2_ops) WITH (lists = 8)"]
)
def test_existing_embeddings_are_read_as_they_are(pgvector, sql, schema, embeddings, value, index):
    if index:
        sql.execute(f"CREATE INDEX ON {schema}.docs {index}")
    store = pgvector("docs", kernel=kernels.Exponential(1.5), existing=Existing("doc", "emb", value))
    values = torch.arange(80.0)[:, None]
    values = {"label": values, "good": (values + 1) % 2, "pair": torch.cat((values, torch.ones(80, 1)), 1)}[value]
    inside = nn.LocalKernelRidge(embeddings, values, 20, kernel=kernels.Exponential(1.5), ridge=1e-3)
    layer, query = StoredKernelRidge(store, 20, ridge=1e-3), torch.randn(5, 4)
    assert len(store) == 80
    torch.testing.assert_close(layer(query), inside(query), rtol=1e-5, atol=1e-4)
    assert layer.explain(query).ids[0, 0] == f"doc {int(inside.explain(query).indices[0, 0])}"
    for write in (lambda: store.add(torch.zeros(1, 4), torch.zeros(1, store.layout.outputs), ["x"]), store.create_index):
        with pytest.raises(StoreError, match="only read"):
            write()


@pytest.mark.parametrize(("column", "operators"), [("emb", "vector_cosine_ops"), ("half", "halfvec_cosine_ops")])
def test_cosine_is_the_kernel_on_unit_vectors(pgvector, sql, schema, embeddings, column, operators):
    sql.execute(f"CREATE INDEX ON {schema}.docs USING hnsw ({column} {operators})")
    kernel = kernels.Matern32(0.7, input_transform=transforms.UnitNorm())
    store = pgvector("docs", kernel=kernel, existing=Existing("doc", column, "label", "cosine"))
    inside = nn.LocalKernelRidge(embeddings, torch.arange(80.0)[:, None], 20, kernel=kernel, ridge=1e-2)
    query = torch.randn(5, 4)
    tolerance = 1e-4 if column == "emb" else 0.5
    torch.testing.assert_close(StoredKernelRidge(store, 20, ridge=1e-2)(query), inside(query), rtol=1e-3, atol=tolerance)


@pytest.mark.parametrize(
    ("existing", "kernel", "words"),
    [
        (Existing("doc", "emb", "label", "cosine"), kernels.Exponential(1.0), "on UnitNorm"),
        (Existing("doc", "emb", "label"), kernels.Exponential([1.0, 1.0, 2.0, 1.0]), "single lengthscale"),
        (Existing("doc", "emb", "label"), None, "Give kernel="),
        (Existing("doc", "vec", "label"), kernels.Exponential(1.0), "no column 'vec', but doc, emb"),
        (Existing("doc", "note", "label"), kernels.Exponential(1.0), r"is text; vector\(n\)"),
        (Existing("doc", "emb", "note"), kernels.Exponential(1.0), "is text; a number"),
    ],
)
def test_embeddings_that_a_kernel_cannot_use_are_named(pgvector, embeddings, existing, kernel, words):
    with pytest.raises((StoreError, InputError), match=words):
        pgvector("docs", kernel=kernel, existing=existing)


def test_a_table_that_is_not_there_is_named(pgvector, embeddings):
    with pytest.raises(StoreError, match="no table 'nothing' in the schema"):
        pgvector("nothing", kernel=kernels.Exponential(1.0), existing=Existing())
    with pytest.raises(StoreError, match="no table 'nothing' that a store has made"):
        pgvector("nothing")
    with pytest.raises(StoreError, match="that no store has made"):
        pgvector("docs", kernel=kernels.Exponential(1.0))


# What is not as it was, and what is not allowed


@pytest.fixture
def filled(pgvector):
    store = pgvector(kernel=kernels.Exponential(1.0))
    store.add(POINTS[:50, :4], VALUES[:50], np.arange(50))
    return store


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE {} DROP COLUMN values", "lacks the columns values"),
        ("ALTER TABLE {} ALTER COLUMN point TYPE vector(3) USING '[1,2,3]'", r"have \(3, 2\) numbers, but its metadata"),
        ("DROP TABLE {}", "lacks the columns id, point, values"),
    ],
)
def test_a_table_that_was_changed_is_named_at_opening_and_in_use(filled, pgvector, sql, schema, change, words):
    sql.execute(change.format(f"{schema}.rows"))
    with pytest.raises(StoreError, match=words):
        pgvector()
    with pytest.raises(StoreError):
        filled.search(torch.zeros(1, 4), 3)


def test_a_database_without_the_extension_is_named(server, sql):
    sql.execute("CREATE DATABASE bare")
    try:
        with pytest.raises(StoreError, match="CREATE EXTENSION vector"):
            stores.PgVectorStore(server.get_uri("bare"), kernel=kernels.Exponential(1.0))
    finally:
        sql.execute("DROP DATABASE bare WITH (FORCE)")


def test_a_role_without_rights_is_told_so_and_writes_nothing(filled, server, sql, schema):
    sql.execute(f"CREATE ROLE reader_{schema} LOGIN")
    sql.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader_{schema}")
    try:
        uri = server.get_uri().replace("postgres:@", f"reader_{schema}:@")
        with pytest.raises(StoreError, match="may not do that"):
            stores.PgVectorStore(uri, "rows", schema=schema)
        sql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader_{schema}")
        with stores.PgVectorStore(uri, "rows", schema=schema) as reader:
            assert reader.search(torch.zeros(1, 4), 3).ids.shape == (1, 3)
            for write in (lambda: reader.add(torch.zeros(1, 4), torch.zeros(1, 2), [99]), lambda: reader.remove([1])):
                with pytest.raises(StoreError, match=r"may not do that.*GRANT"):
                    write()
        new = stores.PgVectorStore(uri, "new", schema=schema, kernel=kernels.Exponential(1.0))
        with pytest.raises(StoreError, match="may not do that"):
            new.add(torch.zeros(1, 4), torch.zeros(1, 2))
        new.close()
        assert len(filled) == 50
    finally:
        sql.execute(f"DROP OWNED BY reader_{schema}")
        sql.execute(f"DROP ROLE reader_{schema}")


def test_the_extension_may_be_in_a_schema_of_its_own(server, sql):
    sql.execute("CREATE DATABASE apart")
    try:
        import psycopg

        with psycopg.connect(server.get_uri("apart"), autocommit=True) as connection:
            connection.execute("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions")
        with stores.PgVectorStore(server.get_uri("apart"), kernel=kernels.Exponential(1.0)) as store:
            store.add(POINTS, VALUES, np.arange(1500))
            store.create_index()
            assert store.search(QUERY, 30).ids.shape == (6, 30)
    finally:
        sql.execute("DROP DATABASE apart WITH (FORCE)")


# Names and values that look like SQL

HOSTILE = ['a"b', "a'b", "x; DROP TABLE canary; --", 'x"; DROP TABLE canary; --', "Ünï 表", "select", "%s {table} %(x)s"]


@pytest.fixture
def canary(sql, schema):
    sql.execute(f"CREATE TABLE {schema}.canary AS SELECT 1 AS x")
    sql.execute("DROP TABLE IF EXISTS public.canary")
    sql.execute("CREATE TABLE public.canary AS SELECT 1 AS x")
    yield
    assert sql.execute(f"SELECT x FROM {schema}.canary").fetchone() == (1,)
    assert sql.execute("SELECT x FROM public.canary").fetchone() == (1,)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_names(server, sql, schema, canary, name):
    import psycopg.sql

    place = f"{name}{schema}"
    sql.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(place)))
    try:
        uri = server.get_uri()
        with stores.PgVectorStore(uri, name, schema=place, kernel=kernels.Exponential(1.0), columns={name: str}) as store:
            store.add(POINTS[:20], VALUES[:20], [f"{name} {at}" for at in range(20)], **{name: [name] * 20})
            store.create_index()
        with stores.PgVectorStore(uri, name, schema=place, where=(name, "=", name)) as store:
            assert store.search(QUERY, 5).ids[0, 0].startswith(name)
            store.remove([f"{name} 3"])
            assert len(store) == 19
        existing = Existing("id", "point", "values")
        with stores.PgVectorStore(uri, name, schema=place, kernel=kernels.Exponential(1.0), existing=existing) as store:
            assert len(store) == 19
    finally:
        sql.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(place)))


@pytest.mark.parametrize("value", ["' OR '1'='1", "'; DROP TABLE canary; --", "1) OR (1=1", "\\'; --", "%(count)s"])
def test_values_are_values(pgvector, schema, canary, value):
    store = pgvector(kernel=kernels.Exponential(1.0), columns={"name": str})
    store.add(POINTS[:20], VALUES[:20], [f"{value}{at}" for at in range(20)], name=["ok"] * 19 + [value])
    for where, count in ((("name", "=", value), 1), (("name", "in", [value]), 1), (("id", "=", value), 0)):
        assert len(pgvector(where=where)) == count
    with pytest.raises(InputError, match="1 of 1 ids are not"):
        store.remove([value])
    assert len(store) == 20


@pytest.mark.parametrize("name", ["", "x" * 64, "a\0b"])
def test_names_that_postgresql_would_change_are_refused(server, name):
    with pytest.raises(InputError):
        stores.PgVectorStore(server.get_uri(), name)


def test_conditions_are_columns_operators_and_values(pgvector, filled):
    for where, words in [
        (("id", "LIKE", "x"), "must be one of"),
        (("id", "= 1 OR 1 =", 1), "must be one of"),
        (("nothing", "=", 1), "the table has the columns id"),
        ("id = 1 OR true", "A condition is"),
    ]:
        with pytest.raises(InputError, match=words):
            pgvector(where=where)


def test_two_tables_of_one_schema_do_not_share_metadata(pgvector):
    first, second = pgvector("a", kernel=kernels.Gaussian(1.0)), pgvector("b", kernel=kernels.Exponential(2.0))
    first.add(POINTS[:5], VALUES[:5])
    second.add(POINTS[:5, :3], VALUES[:5, :1])
    assert type(pgvector("a").kernel).__name__ == "Gaussian"
    assert pgvector("b").layout[:2] == (3, 1)
