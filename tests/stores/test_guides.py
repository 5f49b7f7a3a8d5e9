"""The code of the guides that need a server, or packages that are not always there, runs."""

import os
import pathlib
import re
import shutil
import sys
import warnings

import pandas as pd
import pytest
from tests.test_documentation import python_blocks

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"


def test_rows_in_a_database(server, sql, capsys):
    sql.execute("CREATE DATABASE guide")
    try:
        import psycopg

        uri, scope = server.get_uri("guide"), {}
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        blocks = [block.replace("postgresql://me@localhost/examples", uri) for block in python_blocks(GUIDES / "stores.md")]
        for block in blocks:
            exec(compile(block, "stores.md", "exec"), scope)
        shown = re.findall(r"^print\(.*\)  # (.+)$", "".join(blocks), flags=re.MULTILINE)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in shown if line not in printed] == []
        for name in ("store", "elsewhere", "exact", "mine", "documents"):
            scope[name].close()
        del scope
    finally:
        sql.execute("DROP DATABASE guide WITH (FORCE)")


@pytest.mark.parametrize("name", ["dask", "spark"])
def test_batch_prediction(name, monkeypatch):
    pytest.importorskip({"dask": "dask.dataframe", "spark": "pyspark"}[name], reason=f"{name} is not installed")
    if name == "spark" and (shutil.which("java") is None or "LONG_EXAMPLES" not in os.environ):
        pytest.skip("Spark needs Java, and half a minute: make examples")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    prepared, spark, dask = python_blocks(GUIDES / "batch-prediction.md")
    scope = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Spark, about pandas
        for block in (prepared, {"dask": dask, "spark": spark}[name]):
            exec(compile(block, "batch-prediction.md", "exec"), scope)
        if name == "spark":
            scope["spark"].stop()
    found = pd.read_parquet(scope["folder"] / name)
    expected = scope["model"].predict(found[scope["columns"]])
    assert len(found) == 1000
    assert (found["prediction"].to_numpy() == expected).all()
