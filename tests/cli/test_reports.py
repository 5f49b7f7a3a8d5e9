"""What the commands say: the data, the classes, what was tried, and a line to paste."""

import shlex
import types

import pytest
from tests.cli.running import FAST, works

from torchkrr import estimators
from torchkrr.cli import main, reports


def said(capsys):
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line[:1] != " ")


def test_every_verb_says_what_it_found_and_ends_with_a_line_that_works(models, tmp_path, capsys):
    table, model = models / "wine_train.csv", tmp_path / "my model.krr"
    works("fit", table, "--target", "target", "--out", model, *FAST[:-1])
    lines = said(capsys)
    assert lines["data"] == f"table {table}: 118 rows, 13 columns of numbers"
    assert lines["task"].startswith("classification of target: class_0 ")
    assert list(lines)[-1] == "next"
    verbs = []
    while len(verbs) < 4:  # each names the next: fit, predict, a look at the file
        program, *words = shlex.split(lines["next"])
        verbs.append(words[0])
        if program == "python":
            break
        words = [str(tmp_path / "predictions.csv") if word == "predictions.csv" else word for word in words]
        assert main(words) == 0
        lines = said(capsys)
        assert lines["data"].startswith(f"table {table}: 118 rows")
        assert lines["model"] == f"{model}: classification of target, 118 training rows"
    assert verbs == ["predict", "-c"]
    exec(words[1])
    assert "class_0" in capsys.readouterr().out
    works("evaluate", table, model)
    program, *words = shlex.split(said(capsys)["next"])
    assert words[:2] == ["update", str(model)]


def test_without_a_file_predictions_are_printed(models, capsys):
    works("predict", models / "diabetes_test.csv", models / "diabetes.krr", "--explain", 2, "--interval", 0.9)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("row 1: ")
    assert ", upper " in lines[0]
    assert lines[1].startswith("    because of row ")
    assert lines[2].startswith("row 2: ")
    assert lines[-1].startswith("next      torchkrr predict ")


def test_the_best_candidates_are_named_with_their_loss(capsys):
    model = estimators.LocalKernelRidgeRegressor(2, kernel="matern32", metric=None, alpha=0.01, prior=None)
    model.fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    reports.say_chosen(model)
    (name, loss), *_ = model.candidates_
    assert f"tried     {name} {loss:.4g}" in capsys.readouterr().out
    model.candidates_ = [("linear + kernel", 0.21), ("kernel", 0.25), ("coarse + kernel", 0.3), ("linear", 0.4)]
    reports.say_chosen(model)
    expected = "tried     linear + kernel 0.21, kernel 0.25, coarse + kernel 0.3 (left out, best of 4)"
    assert capsys.readouterr().out.splitlines()[1] == expected


@pytest.mark.parametrize(
    ("counts", "text"),
    [({"a": 2, "b": 0}, "a 2, b 0"), ({str(at): 1 for at in range(30)}, " and 10 more")],
)
def test_classes_are_counted_and_many_are_cut(counts, text):
    assert reports.describe_classes(counts).endswith(text)


def test_classes_of_a_model_come_first():
    assert reports.count_classes(["b", "b", "c"], ["b", "a"]) == {"b": 2, "a": 0, "c": 1}


def test_a_model_of_numbers_has_no_classes():
    model = types.SimpleNamespace(notes_={"targets": ["y", "z"]}, n_samples_fit_=3)
    assert reports.describe_model(model) == "regression of y, z, 3 training rows"
