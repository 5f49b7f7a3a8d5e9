"""What all commands have in common, whichever there are: the same flags, output for programs, and exit codes."""

import importlib
import json
import math
import os
import re
import sys
import typing

import pytest
from tests.cli.running import FAST, fails

from torchkrr import cli
from torchkrr.cli import COMMANDS, build_parser, main
from torchkrr.errors import InputError


def subparser(name):
    return build_parser()._subparsers._group_actions[0].choices[name]


def least_arguments(name):
    """The command with no more than it needs."""
    given, parser = [name], subparser(name)
    first_of_groups = [group._group_actions[0] for group in parser._mutually_exclusive_groups if group.required]
    for action in parser._actions:
        word = str(next(iter(action.choices))) if action.choices else "x"
        if not action.option_strings:
            given.append(word)
        elif action.required or action in first_of_groups:
            given += [action.option_strings[0], word]
    return given


@pytest.fixture
def stand_in(monkeypatch):
    """Put something else in the place of what a command does."""

    def replace(name, run):
        monkeypatch.setattr(importlib.import_module(f"torchkrr.cli.{name}"), "run", run)
        return least_arguments(name)

    return replace


def talkative(args):
    print("a table")
    return {"quiet": args.quiet, "score": math.inf}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_flags_and_a_result(name):
    flags = {flag for action in subparser(name)._actions for flag in action.option_strings}
    assert {"--quiet", "--json", "--threads", "--debug", "--help"} <= flags
    returned = typing.get_type_hints(importlib.import_module(f"torchkrr.cli.{name}").run)["return"]
    assert typing.get_origin(returned) is dict, f"run of cli/{name}.py must return what --json prints: dict[str, Any]"


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_object_and_quiet_is_silent(name, stand_in, capsys):
    given = stand_in(name, talkative)
    assert main(given) == 0
    assert capsys.readouterr() == ("a table\n", "")
    assert main([*given, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    for flags in (["--json"], ["--json", "--quiet"]):
        assert main([*given, *flags]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"quiet": True, "score": None}
        assert err == ""


@pytest.mark.parametrize("flags", [[], ["--quiet"], ["--json"]])
@pytest.mark.parametrize("name", COMMANDS)
def test_exit_codes(name, flags, stand_in, capsys):
    def fail(args):
        print("half a table")
        raise failure

    given = stand_in(name, fail)
    for error, code, message in (
        (InputError("Not so."), 1, "torchkrr: Not so.\n"),
        (OSError("No disk"), 1, "torchkrr: No disk\n"),
        (KeyboardInterrupt(), 130, "torchkrr: interrupted. Nothing was written.\n"),
    ):
        failure = error
        assert main([*given, *flags]) == code
        out, err = capsys.readouterr()
        assert out == ("" if flags else "half a table\n")
        assert err == message
    with pytest.raises(SystemExit) as stopped:
        main([*given, *flags, "--nothing-of-the-kind"])
    assert stopped.value.code == 2


def test_help_names_every_exit_code():
    listed = re.findall(r"(\d+) [a-z]", cli.EXIT_CODES)
    assert [int(code) for code in listed] == [cli.DONE, cli.FAILED, 2, cli.INTERRUPTED, cli.TERMINATED]


def test_problems_that_were_found_are_said_and_exit_with_one(stand_in, capsys):
    given = stand_in("doctor", lambda args: {"problems": ["The bolt is loose."]})
    assert main([*given, "--quiet"]) == 1
    assert capsys.readouterr() == ("", "torchkrr: The bolt is loose.\n")
    assert main([*given, "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"problems": ["The bolt is loose."]}
    assert err == "torchkrr: The bolt is loose.\n"


def test_tables_for_programs(models, tmp_path, capsys):
    table, model, out = models / "mixed_train.csv", tmp_path / "m.krr", tmp_path / "o.csv"
    fit = ["fit", table, "--target", "price", "--ignore", "key", "--out", model, *FAST]
    found = results(capsys, *fit)
    assert found["model"] == str(model)
    assert found["bytes"] == os.path.getsize(model)
    assert (found["task"], found["rows"]) == ("regression", 160)
    assert found["features"] == ["size", "color", "zone", "code", "balcony"]
    assert found["chosen"] == {"kernel": "Matern32", "alpha": 0.01, "neighbors": 20}
    assert 0 < found["left_out"]["price"]["mae"] < found["left_out"]["price"]["rmse"] < 100
    found = results(capsys, "predict", models / "mixed_test.csv", model, "--out", out)
    assert {key: found[key] for key in ("out", "rows")} == {"out": str(out), "rows": 60}
    assert main(["evaluate", str(models / "mixed_test.csv"), str(model), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def results(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize(("old", "new"), [("lander", "python -m paper.lander"), ("learn", "python -m paper.learning")])
def test_experiments_that_moved_are_wrong_usage_and_name_the_new_command(old, new, capsys):
    for more in ([], ["--help"], ["--out", "folder"]):
        with pytest.raises(SystemExit) as stopped:
            main([old, *more])
        assert stopped.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"torchkrr {old} is now {new!r}. Run it from a clone of the repository." in err


def test_debug_shows_where_an_error_comes_from(tmp_path, capsys):
    assert main(["evaluate", "t.csv", str(tmp_path / "m.krr"), "--debug"]) == 1
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("torchkrr: The model")


def test_a_missing_package_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = fails(capsys, "evaluate", "t.csv", "m.krr")
    assert 'The command line needs pyarrow, which is not installed: pip install "torchkrr[cli]".' in error
