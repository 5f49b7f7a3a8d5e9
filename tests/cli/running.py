"""The installed command, and the same in this process, which is faster."""

import json
import pathlib
import subprocess
import sys

import pandas as pd

from torchkrr.cli import main

COMMAND = pathlib.Path(sys.executable).with_name("torchkrr")
GOOD = "a,b,y\n" + "".join(f"{i},{i % 7},{2 * i}\n" for i in range(30))
# A fit that takes no time.
FAST = ("--neighbors", "20", "--kernel", "matern32", "--metric", "none", "--alpha", "0.01", "--quiet")


def installed(*arguments, **options):
    """Run the installed command."""
    given = [str(COMMAND), *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, timeout=200, check=False, **options)


def fails(capsys, *arguments) -> str:
    """The message of a user's error: one paragraph on standard error, and exit code 1."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torchkrr: ")
    assert err.count("\n") == 1
    return err


def works(*arguments) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def with_row(row, text):
    """The good table with another line in the place of a row."""
    lines = GOOD.splitlines()
    lines[row] = text
    return "\n".join(lines) + "\n"


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def evaluated(capsys, *arguments):
    capsys.readouterr()
    works("evaluate", *arguments, "--json")
    return json.loads(capsys.readouterr().out)
