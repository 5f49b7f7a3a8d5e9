"""What both stores promise: rows in and out, whole or not at all, and a kernel that stays with them."""

import datetime
import pickle
import threading

import numpy as np
import pytest
import torch

from torchkrr import kernels, nn, stores, transforms
from torchkrr.errors import InputError, InputTypeError, MissingExtraError, ShapeError, StoreError
from torchkrr.stores import StoredKernelRidge
from torchkrr.stores.base import retried

torch.manual_seed(2)
POINTS, VALUES, QUERY = torch.randn(90, 4), torch.randn(90, 2), torch.randn(3, 4)


def test_another_store_reads_the_kernel_and_predicts_the_same(open_store):
    kernel = kernels.Matern52([0.5, 1.0, 2.0, 3.0], input_transform=transforms.StandardMean().fit(POINTS))
    store = open_store(kernel=kernel)
    store.add(POINTS, VALUES, np.arange(90))
    other = open_store()
    assert repr(other) == f"{type(store).__name__}('rows', features=4, outputs=2)"
    torch.testing.assert_close(other.kernel.embed(POINTS), kernel.embed(POINTS), rtol=0, atol=0)
    layers = [StoredKernelRidge(one, 10, ridge=1e-3) for one in (store, other, open_store(kernel=kernel))]
    expected = nn.LocalKernelRidge(POINTS, VALUES, 10, kernel=kernel, ridge=1e-3)(QUERY)
    for layer in layers:
        torch.testing.assert_close(layer(QUERY), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        kernels.Gaussian(1.0),
        kernels.Exponential(1.1),
        kernels.Exponential(1.0, input_transform=transforms.UnitNorm()),
    ],
)
def test_another_kernel_is_an_error(open_store, other):
    open_store(kernel=kernels.Exponential(1.0)).add(POINTS, VALUES)
    with pytest.raises(StoreError, match="embedded by another kernel"):
        open_store(kernel=other)


def test_rows_that_are_added_and_removed_count_from_the_next_call_on(open_store):
    kernel = kernels.Exponential(1.0)
    store = open_store(kernel=kernel)
    layer = StoredKernelRidge(store, 10, ridge=1e-3)
    assert len(store) == 0
    with pytest.raises(StoreError, match="has no rows yet"):
        layer(QUERY)
    for at in range(0, 90, 30):
        store.add(POINTS[at : at + 30].numpy(), VALUES[at : at + 30], range(at, at + 30))
    store.remove(5)
    store.remove([0, 89])
    keep = torch.tensor([at for at in range(90) if at not in (0, 5, 89)])
    inside = nn.LocalKernelRidge(POINTS[keep], VALUES[keep], 10, kernel=kernel, ridge=1e-3)
    torch.testing.assert_close(layer(QUERY), inside(QUERY), rtol=1e-5, atol=1e-5)
    assert len(store) == 87
    store.remove(keep)
    with pytest.raises(StoreError, match="No row of 'rows' is there"):
        layer(QUERY)


def test_ids_are_numbers_or_texts_of_the_caller_or_random(open_store):
    numbers, texts, own = (open_store(name, kernel=kernels.Exponential(1.0)) for name in ("n", "t", "r"))
    assert numbers.add(POINTS[:2], VALUES[:2], [-3, 2**62]).tolist() == [-3, 2**62]
    assert texts.add(POINTS[:2], VALUES[:2], ["a", "ü'"]).tolist() == ["a", "ü'"]
    given = own.add(POINTS, VALUES)
    assert len(set(given.tolist())) == 90
    assert set(own.search(QUERY, 90).ids[0].tolist()) == set(given.tolist())
    with pytest.raises(ShapeError, match="numbers as ids; got 4, 2 and text"):
        numbers.add(POINTS[:1], VALUES[:1], ["a"])


@pytest.mark.parametrize(
    ("points", "values", "ids", "words"),
    [
        (POINTS[:2], VALUES[:2], [7, 1], "are in"),
        (POINTS[:2], VALUES[:2], [1, 1], "some are there twice"),
        (POINTS[:2], VALUES[:2], [1], "2 different whole numbers"),
        (POINTS[:2], VALUES[:2], [1.5, 2.5], "whole numbers, or texts"),
        (POINTS[:2, :3], VALUES[:2], [1, 2], "have 4 features"),
        (POINTS[:2], VALUES[:2, :1], [1, 2], "2 values"),
        (POINTS[:2], VALUES[:3], [1, 2], "points has 2 rows but values has 3"),
        (POINTS[:2] / 0, VALUES[:2], [1, 2], "points must be finite"),
        (POINTS[:2], VALUES[:2] / 0, [1, 2], "values must be finite"),
        (POINTS[:2] * 3e38, VALUES[:2], [1, 2], "must be finite"),
    ],
)
def test_rows_that_do_not_fit_leave_nothing_behind(open_store, points, values, ids, words):
    store = open_store(kernel=kernels.Exponential(1.0))
    store.add(POINTS[5:6], VALUES[5:6], [7])
    with pytest.raises((StoreError, InputError), match=words):
        store.add(points, values, ids)
    assert len(store) == 1
    assert store.search(QUERY, 3).ids.tolist() == [[7]] * 3


def test_no_rows_are_added_as_easily_as_some(open_store):
    store = open_store(kernel=kernels.Exponential(1.0))
    assert len(store.add(POINTS[:0], VALUES[:0])) == len(store) == 0
    store.add(POINTS, VALUES, range(90))
    assert store.load(POINTS[:0], VALUES[:0], []) == 0
    assert len(store.add(POINTS[:0], VALUES[:0], [])) == 0


def test_removing_an_unknown_id_removes_nothing(open_store):
    store = open_store(kernel=kernels.Exponential(1.0))
    store.add(POINTS, VALUES, range(90))
    with pytest.raises(InputError, match="1 of 3 ids are not in 'rows'"):
        store.remove([1, 2, 100])
    assert len(store) == 90


def test_loading_goes_on_where_it_was(open_store):
    store = open_store(kernel=kernels.Exponential(1.0), columns={"tenant": int})
    store.add(POINTS[20:30], VALUES[20:30], range(20, 30), tenant=[1] * 10)
    assert store.load(POINTS, VALUES, range(90), batch_rows=25, tenant=np.arange(90)) == 80
    assert store.load(POINTS, VALUES, range(90), batch_rows=25, tenant=np.arange(90)) == 0
    assert sorted(store.search(QUERY[:1], 90).ids[0].tolist()) == list(range(90))


def test_conditions_on_columns_of_every_kind(open_store):
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    kinds = {"n": int, "x": float, "name": str, "good": bool, "at": datetime.datetime}
    store = open_store(kernel=kernels.Exponential(1.0), columns=kinds)
    rows = range(90)
    own = {
        "n": np.arange(90),
        "x": [at / 2 for at in rows],
        "name": [f"it's {at}" for at in rows],
        "good": [at % 2 == 0 for at in rows],
        "at": [day + datetime.timedelta(days=at) for at in rows],
    }
    store.add(POINTS, VALUES, rows, **own)
    for where, expected in [
        (("n", "!=", 3), 89),
        (("x", "<=", 1.0), 3),
        (("name", "=", "it's 3"), 1),
        (("name", "in", ["it's 3", "it's 4", "' OR ''='"]), 2),
        (("good", "=", True), 45),
        (("at", ">", day + datetime.timedelta(days=79)), 10),
        ([("n", ">=", 10), ("n", "<", 20), ("good", "=", False)], 5),
    ]:
        some = open_store(where=where)
        assert len(some) == some.search(QUERY, 100).ids.shape[1] == expected, where
    mine = open_store(where=("n", "<", 10))
    with pytest.raises(InputError, match="not among the rows of the condition"):
        mine.remove([50])
    with pytest.raises(InputError, match="the table has the columns id, n, x"):
        open_store(where=("nothing", "=", 1))
    with pytest.raises(InputError, match="Each row of 'rows' has the columns"):
        store.add(POINTS[:1], VALUES[:1], [100], n=[1])


def test_arguments_that_make_no_sense_are_named(open_store):
    for options, words in [
        ({"table": ""}, "must be the name of a table"),
        ({"columns": {"id": int}}, "columns must map names"),
        ({"columns": {"x": dict}}, "columns must map names"),
        ({"where": ("x", "~", 1)}, "must be one of"),
        ({"where": "x = 1"}, "A condition is"),
        ({"kernel": "gaussian"}, "kernel must be a kernel"),
        ({"tries": 0}, "tries must be at least 1"),
    ]:
        with pytest.raises(InputError, match=words):
            open_store(**options)


def test_a_store_is_not_pickled(open_store):
    with pytest.raises(InputTypeError, match="cannot be copied or pickled"):
        pickle.dumps(open_store(kernel=kernels.Exponential(1.0)))


def test_two_that_make_the_same_table_at_once_lose_no_rows(open_store):
    writers, errors = [open_store(kernel=kernels.Exponential(1.0)) for _ in range(3)], []
    ready = threading.Barrier(3)

    def write(number):
        try:
            ready.wait()
            for at in range(number * 30, number * 30 + 30, 10):
                writers[number].add(POINTS[at : at + 10], VALUES[at : at + 10], range(at, at + 10))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    found = open_store().search(QUERY[:1], 90)
    assert sorted(found.ids[0].tolist()) == list(range(90))
    np.testing.assert_array_equal(found.values[0], VALUES[found.ids[0]])


def test_a_passing_error_is_tried_again_and_no_more_often_than_that():
    numbers = []

    def fail(number):
        numbers.append(number)
        raise StoreError("busy")

    with pytest.raises(StoreError):
        retried(fail, lambda error: True, 3)
    assert numbers == [0, 1, 2]
    with pytest.raises(StoreError):
        retried(fail, lambda error: False, 3)
    assert numbers == [0, 1, 2, 0]


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "lancedb", None)
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"torchkrr\[lance\]"):
        stores.LanceStore(tmp_path)
    with pytest.raises(MissingExtraError, match=r"torchkrr\[pgvector\]"):
        stores.PgVectorStore("postgresql://localhost")
