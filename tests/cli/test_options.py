"""Values that an option cannot have are wrong usage."""

import pytest

from torchkrr.cli import main, options
from torchkrr.models.features import POOLINGS


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["fit", "t.csv", "--target", "a"],
        ["fit", "t.csv", "--target", "a,,b", "--out", "m.krr"],
        ["fit", "t.csv", "--target", "a", "--out", "m.krr", "--neighbors", "0"],
        ["fit", "t.csv", "--target", "a", "--out", "m.krr", "--metric", "round"],
        ["predict", "t.csv", "m.krr", "--out", "o.csv", "--interval", "90"],
        ["predict", "t.csv", "m.krr", "--out", "o.csv", "--explain", "-1"],
        ["predict", "t.csv", "m.krr", "--out", "o.csv", "--chunk-rows", "0"],
        ["evaluate", "t.csv", "m.krr", "--delimiter", ";;"],
    ],
)
def test_wrong_usage_exits_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: torchkrr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--alpha", "must be auto or a number that is not negative, got 'abc'"),
        ("--neighbors", "must be auto or a whole number of at least 1, got 'abc'"),
    ],
)
def test_a_value_that_may_be_auto_says_so(option, message, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "t.csv", "--target", "a", "--out", "m.krr", option, "abc"])
    assert f"argument {option}: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "--threads", "99999"),
        ("fit", "t.csv", "--target", "y", "--out", "m", "--alpha", "-1"),
        ("fit", "t.csv", "--target", "y", "--out", "m", "--seed", "-1"),
        ("transfer", "--pooling", "median"),
        ("probe", "--test-share", "2"),
    ],
)
def test_values_that_an_option_cannot_have_are_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    assert f"argument {arguments[-2]}" in capsys.readouterr().err


def test_poolings_are_those_of_the_library():
    assert {*options.POOLINGS, None} == set(POOLINGS)
