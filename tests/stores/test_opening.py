"""Stores named by one line of text, here and at the command line."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.cli.running import FAST, fails, read, works

from torchkrr import kernels, stores
from torchkrr.errors import InputError, StoreError
from torchkrr.stores import open_store, without_password

rng = np.random.default_rng(1)
POINTS = rng.normal(size=(300, 3))
COLOURS = np.where(POINTS[:, 0] > 0, "red", np.where(POINTS[:, 1] > 0, "green", "blue"))


@pytest.fixture(params=["pgvector", "lance"])
def uri(request, tmp_path):
    """A name for an empty store."""
    if request.param == "lance":
        pytest.importorskip("lancedb")
        return f"{tmp_path / 'store'}#heads"
    server, schema = request.getfixturevalue("server"), request.getfixturevalue("schema")
    return f"{server.get_uri()}#{schema}.heads"


@pytest.fixture
def table(tmp_path):
    frame = pd.DataFrame(POINTS, columns=["a", "b", "c"]).assign(
        colour=COLOURS, y=POINTS[:, 0] ** 2, name=[f"n{at}" for at in range(300)]
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_a_store_is_opened_by_its_name(uri):
    with open_store(uri, kernel=kernels.Exponential(1.0)) as store:
        store.add(torch.from_numpy(POINTS), POINTS[:, :1], np.arange(300))
    with open_store(uri, where=("id", "<", 10)) as store:
        assert (store.table, len(store)) == ("heads", 10)


def test_percent_signs_stand_for_other_letters(server, schema):
    with open_store(f"{server.get_uri()}#{schema}.a%23b", kernel=kernels.Exponential(1.0)) as store:
        assert store.table == "a#b"
    with pytest.raises(InputError, match="nothing before the #"):
        open_store("#table")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://me:secret@host:5432/db#t", "postgresql://me@host:5432/db#t"),
        ("postgres://me:se@cret@host/db", "postgres://me@host/db"),
        (
            "postgresql://host/db?user=me&password=secret&sslmode=require#t",
            "postgresql://host/db?user=me&password=***&sslmode=require#t",
        ),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("folder#t", "folder#t"),
    ],
)
def test_passwords_are_not_shown(uri, shown):
    assert without_password(uri) == shown


def test_fit_puts_a_model_into_a_store_and_predict_takes_it_from_there(uri, table, tmp_path, capsys):
    options = ["--target", "colour", "--ignore", "y", "--id", "name", *FAST]
    works("fit", table, *options, "--out", tmp_path / "m.krr")
    works("fit", table, *options, "--store", uri)
    wanted = ["--proba", "--explain", 2, "--quiet"]
    works("predict", table, tmp_path / "m.krr", *wanted, "--out", tmp_path / "file.csv")
    works("predict", table, "--store", uri, *wanted, "--out", tmp_path / "store.csv")
    pd.testing.assert_frame_equal(
        read(tmp_path / "store.csv").drop(columns=["because_1_label", "because_2_label"], errors="ignore"),
        read(tmp_path / "file.csv").drop(columns=["because_1_label", "because_2_label"]),
        atol=1e-4,
        rtol=1e-4,
    )
    capsys.readouterr()
    works("predict", "--store", uri, table, "--json")
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 300


def test_a_regression_in_a_store_has_intervals(uri, table, tmp_path):
    options = ["--target", "y", "--ignore", "colour,name", *FAST]
    works("fit", table, *options, "--out", tmp_path / "m.krr")
    works("fit", table, *options, "--store", uri)
    works("predict", table, "--store", uri, "--interval", 0.8, "--explain", 1, "--out", tmp_path / "store.csv")
    works("predict", table, tmp_path / "m.krr", "--interval", 0.8, "--explain", 1, "--out", tmp_path / "file.csv")
    pd.testing.assert_frame_equal(read(tmp_path / "store.csv"), read(tmp_path / "file.csv"), atol=1e-3, rtol=1e-3)


def test_a_store_that_cannot_be_used_stops_the_fit_before_any_work(table, tmp_path, capsys, uri):
    options = ["--target", "y", "--ignore", "colour,name", *FAST]
    gone = "postgresql://me:sw0rdfish@127.0.0.1:1/db#t"
    message = fails(capsys, "fit", table, *options, "--store", gone)
    assert "could not be reached" in message
    assert "sw0rdfish" not in message
    works("fit", table, *options, "--store", uri)
    assert "embedded by another kernel" in fails(capsys, "fit", table, *options, "--store", uri)
    assert "no table 'nothing'" in fails(capsys, "predict", table, "--store", f"{tmp_path / 'x'}#nothing")


def test_a_table_without_a_head_is_named(uri, table, capsys):
    with open_store(uri, kernel=kernels.Exponential(1.0)) as store:
        store.add(torch.from_numpy(POINTS), POINTS[:, :1])
    assert "holds no head" in fails(capsys, "predict", table, "--store", uri)
    with open_store(uri) as store, pytest.raises(StoreError, match="holds no head"):
        stores.open_head(store)
