"""Tables of numbers and categories become points."""

import dataclasses
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from torchkrr.errors import InputError, ShapeError
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.estimators.encoding import (
    FEW_LEVELS,
    KNOTS,
    STEPS,
    Concatenate,
    RankTransform,
    SelectColumns,
    Staircase,
    TableEncoder,
    categorical_columns,
    fit_encoder,
)
from torchkrr.transforms import Standardize

COLORS = ["red", "green", "blue"]


def frame(count=150, seed=0):
    rng = np.random.default_rng(seed)
    color = rng.choice(COLORS, size=count)
    size = rng.normal(size=count)
    y = size + np.select([color == "red", color == "green"], [2.0, -1.0]) + 0.05 * rng.normal(size=count)
    return pd.DataFrame({"size": size, "color": color, "noise": rng.normal(size=count)}), y


def encode(table, categorical, values=None, weights=None):
    count = len(table)
    values = np.zeros((count, 1)) if values is None else values
    return fit_encoder(table, values, np.ones(count) if weights is None else weights, categorical)


def test_missing_numbers_become_the_median_and_are_marked():
    encoder, encoded = encode(np.array([[1.0, 1.0], [np.nan, 2.0], [5.0, 4.0], [2.0, 3.0]]), [False, False])
    np.testing.assert_array_equal(encoded, [[1, 0, 1], [2, 1, 2], [5, 0, 4], [2, 0, 3]])
    # Where none was missing in training there is nothing to mark later.
    np.testing.assert_array_equal(encoder.encode(np.array([[np.nan, np.nan]])), [[2, 1, 2.5]])


def test_few_categories_are_one_hot_and_unseen_ones_zero():
    table = pd.DataFrame({"color": ["red", None, "blue", "red"]})
    encoder, encoded = encode(table, [True])
    np.testing.assert_array_equal(encoded, [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(encoder.encode(pd.DataFrame({"color": ["green", "blue"]})), [[0, 0, 0], [1, 0, 0]])


@pytest.mark.parametrize("dtype", [object, "category", "string"])
def test_a_missing_value_is_a_category_of_its_own_in_every_dtype(dtype):
    _, encoded = encode(pd.DataFrame({"color": pd.Series(["red", None, "blue", "red"], dtype=dtype)}), [True])
    np.testing.assert_array_equal(encoded, [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])


def test_many_categories_are_means_that_never_see_the_row_itself():
    # Each row has a category of its own: out of fold nothing is known, so nothing of the targets may leak.
    count = 4 * FEW_LEVELS
    values = np.random.default_rng(0).normal(size=(count, 1))
    _, encoded = encode(pd.DataFrame({"id": [f"row {i}" for i in range(count)]}), [True], values)
    assert abs(np.corrcoef(encoded[:, 0], values[:, 0])[0, 1]) < 0.5
    assert len(np.unique(encoded.round(12))) <= 5


def test_many_categories_are_told_apart_by_their_means():
    rng = np.random.default_rng(0)
    level = rng.integers(0, 40, size=2000)
    effect = rng.normal(size=40)
    encoder, encoded = encode(pd.DataFrame({"id": level.astype(str)}), [True], effect[level][:, None])
    assert np.corrcoef(encoded[:, 0], effect[level])[0, 1] > 0.99
    new = encoder.encode(pd.DataFrame({"id": ["0", "unheard of"]}))
    assert abs(new[0, 0] - effect[0]) < 0.5 * abs(effect[0])
    np.testing.assert_allclose(new[1, 0], effect[level].mean())


def test_constant_and_copied_columns_do_not_count():
    x = np.arange(6.0)
    encoder, encoded = encode(np.stack((x, np.ones(6), x, -x), 1), [False] * 4)
    assert encoder.kept == (0, 3)
    np.testing.assert_array_equal(encoded, np.stack((x, -x), 1))
    assert encode(np.ones((4, 2)), [False, False])[1].shape == (4, 1)


def test_rows_of_weight_zero_are_not_learned_from():
    table = np.array([[1.0], [3.0], [1000.0], [np.nan]])
    encoder, _ = encode(table, [False], weights=np.array([1.0, 1.0, 0.0, 0.0]))
    assert encoder.columns[0].median == 2.0
    assert not encoder.columns[0].indicator


def test_encoders_survive_json():
    table, y = frame()
    encoder, _ = encode(table, [False, True, False], y[:, None])
    again = TableEncoder.from_state(json.loads(json.dumps(dataclasses.asdict(encoder))))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(table), encoder.encode(table))


@pytest.mark.parametrize("kind", ["pandas object", "pandas category", "pandas string", "polars", "polars categorical"])
def test_frames_of_every_kind_predict_alike(kind):
    table, y = frame()
    given = {
        "pandas object": lambda: table.astype({"color": object}),
        "pandas category": lambda: table.astype({"color": "category"}),
        "pandas string": lambda: table.astype({"color": "string"}),
        "polars": lambda: pl.DataFrame({name: table[name].to_list() for name in table}),
        "polars categorical": lambda: pl.DataFrame({name: table[name].to_list() for name in table}).with_columns(
            pl.col("color").cast(pl.Categorical)
        ),
    }[kind]()
    model = LocalKernelRidgeRegressor(20, alpha=1e-2, kernel="matern32", metric=None).fit(given, y)
    codes = table.assign(color=[float(COLORS.index(color)) for color in table["color"]])
    by_mask = LocalKernelRidgeRegressor(20, alpha=1e-2, kernel="matern32", metric=None, categorical_features=["color"]).fit(
        codes, y
    )
    assert model.feature_names_in_.tolist() == ["size", "color", "noise"]
    assert model.score(given, y) > 0.9
    # Levels come in another order, but a metric that treats all alike does not see that.
    np.testing.assert_allclose(model.predict(given), by_mask.predict(codes), atol=1e-8)


def test_columns_are_checked_by_name():
    table, y = frame()
    model = LocalKernelRidgeRegressor(20, alpha=1e-2, kernel="matern32", metric=None).fit(table, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(table[["color", "size", "noise"]])


def test_unseen_and_missing_categories_are_predicted():
    table, y = frame()
    table.loc[:20, "color"] = None
    table.loc[10:30, "size"] = np.nan
    model = LocalKernelRidgeRegressor().fit(table, y)
    strange = pd.DataFrame({"size": [0.0, np.nan, 0.0], "color": ["purple", "red", None], "noise": [np.nan, 0.0, 0.0]})
    assert np.isfinite(model.predict(strange)).all()


def test_nullable_columns_of_pandas_are_numbers():
    table, y = frame()
    table["count"] = pd.array([1, None, 3] * 50, dtype="Int64")
    table["flag"] = table["size"] > 0
    model = LocalKernelRidgeRegressor(10, alpha=0.1, kernel="matern32", metric=None).fit(table, y)
    assert np.isfinite(model.predict(table)).all()


def test_classifier_takes_mixed_tables():
    table, y = frame()
    model = LocalKernelRidgeClassifier().fit(table[:100], (y > 0)[:100])
    assert model.score(table[100:], (y > 0)[100:]) > 0.85


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("color", r"give a list: \['color'\]"),
        ([5], "between 0 and 2"),
        ([True], "one entry for each of the 3"),
        (["weight"], "which X does not have"),
    ],
)
def test_impossible_categorical_features_are_an_error(wanted, message):
    table, _ = frame(5)
    with pytest.raises(InputError, match=message):
        categorical_columns(table, wanted, np.array(table.columns, dtype=object))


@pytest.mark.parametrize("kind", ["array", "list", "text array"])
def test_text_in_an_array_is_named_with_the_remedy(kind):
    X = np.array([[1.0, "north", 0.5, "red"], [2.0, "south", 0.1, "blue"], [3.0, "3.5", 0.2, "red"]], dtype=object)
    given = {"array": X, "list": X.tolist(), "text array": X.astype(str)}[kind]
    message = r"Column 1 of X holds the text 'north'.*pass a DataFrame.*categorical_features=\[1, 3\]"
    for model in (LocalKernelRidgeRegressor(), LocalKernelRidgeClassifier()):
        with pytest.raises(InputError, match=message):
            model.fit(given, [0, 1, 0])
    wanted = LocalKernelRidgeRegressor(2, alpha=0.1, kernel="gaussian", metric=None, categorical_features=[1, 3])
    assert wanted.fit(X, [0.0, 1.0, 0.5]).predict(X).shape == (3,)


def test_text_in_a_frame_without_categories_and_in_a_prediction():
    table, y = frame()
    with pytest.raises(InputError, match=r"Column 'color' of X holds the text.*'from_dtype'.*features=\['color'"):
        LocalKernelRidgeRegressor(categorical_features=None).fit(table, y)
    model = LocalKernelRidgeRegressor(2, alpha=0.1, kernel="gaussian", metric=None).fit(np.eye(4), np.arange(4.0))
    with pytest.raises(InputError, match="Column 2 of X holds the text 'north', but held numbers in the fit"):
        model.predict([[0.0, 1.0, "north", 2.0]])


@pytest.mark.parametrize("kind", ["list", "array", "object", "pandas", "string", "category"])
def test_a_regressor_sends_text_targets_to_the_classifier(kind):
    y = ["cat", "dog", "cat", "cow"]
    given = {
        "list": y,
        "array": np.array(y),
        "object": np.array(y, dtype=object),
        "pandas": pd.Series(y),
        "string": pd.Series(y, dtype="string"),
        "category": pd.Series(y, dtype="category"),
    }[kind]
    with pytest.raises(InputError, match=r"the text 'cat'\. For classes use LocalKernelRidgeClassifier"):
        LocalKernelRidgeRegressor().fit(np.eye(4), given)


def test_names_need_a_frame_and_text_needs_a_category():
    with pytest.raises(InputError, match="but X has none"):
        categorical_columns(np.ones((2, 2)), ["a"], None)
    with pytest.raises(InputError, match=r"Column 1 is taken as numeric but holds '[a-z]+'"):
        LocalKernelRidgeRegressor(categorical_features=["size"]).fit(*frame())
    with pytest.raises(InputError, match="infinity in column 0"):
        LocalKernelRidgeRegressor().fit(*[frame()[0].replace({"size": {frame()[0]["size"][0]: np.inf}}), frame()[1]])


def test_squared_distances_on_a_staircase_are_sums_of_absolute_differences():
    x = torch.rand(STEPS, 3, dtype=torch.float64)
    e = Staircase().fit(x)(x)
    torch.testing.assert_close(torch.cdist(e, e).square(), torch.cdist(x, x, p=1), atol=1e-12, rtol=1e-9)


def test_a_staircase_has_few_steps_and_is_flat_outside():
    x = torch.rand(5000, 2, dtype=torch.float64)
    staircase = Staircase().fit(x)
    assert staircase(x).shape == (5000, 2 * STEPS)
    assert staircase.groups().bincount().tolist() == [STEPS, STEPS]
    outside = staircase(torch.tensor([[2.0, -3.0]], dtype=torch.float64))
    corner = staircase(torch.stack((x[:, 0].max(), x[:, 1].min()))[None])
    torch.testing.assert_close(outside, corner)


def test_constant_features_have_no_steps():
    x = torch.stack((torch.ones(9), torch.arange(9.0)), 1)
    assert Staircase().fit(x)(x).shape == (9, 8)
    assert (Staircase().fit(torch.ones(4, 2))(torch.ones(4, 2)) == 1).all()


def test_ranks_do_not_change_with_a_monotone_map():
    x = torch.rand(KNOTS, 2, dtype=torch.float64)
    ranks = RankTransform().fit(x)(x)
    torch.testing.assert_close(RankTransform().fit(x.exp())(x.exp()), ranks)
    torch.testing.assert_close(ranks.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(ranks.std(0, correction=0), torch.ones(2, dtype=torch.float64))


def test_columns_are_those_that_were_kept():
    columns = SelectColumns.where(torch.tensor([True, False, True]))
    x = torch.rand(2, 5, 3)
    assert torch.equal(columns(x), x[..., [0, 2]])
    again = SelectColumns()
    again.load_state_dict(columns.state_dict())
    assert torch.equal(again(x), x[..., [0, 2]])
    with pytest.raises(ShapeError, match="features"):
        columns(torch.rand(5, 4))


@pytest.mark.parametrize("transform", [Staircase(), Concatenate(Standardize(), RankTransform())])
def test_fitted_state_loads_and_the_number_of_features_is_checked(transform):
    x = torch.rand(50, 3)
    expected = transform.fit(x)(x)
    other = type(transform)() if isinstance(transform, Staircase) else Concatenate(Standardize(), RankTransform())
    other.load_state_dict(transform.state_dict())
    torch.testing.assert_close(other(x), expected)
    assert expected.dtype == torch.float32
    with pytest.raises(ShapeError, match="features"):
        transform(torch.rand(5, 4))
