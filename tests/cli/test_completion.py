"""Scripts for shells know every command and option, and complete them in those shells that are here."""

import argparse
import shutil
import subprocess
import sys

import pytest
from tests.cli.running import fails
from tests.cli.test_main import subparser

from torchkrr.cli import COMMANDS, main

SHELLS = ("bash", "zsh", "fish")
CASES = {
    "torchkrr ": set(COMMANDS),
    "torchkrr -": {"-h", "--help", "--version"},
    "torchkrr ev": {"evaluate"},
    "torchkrr fit --task ": {"auto", "regression", "classification"},
    "torchkrr fit train.csv --target price --me": {"--metric"},
    "torchkrr predict m.krr --i": {"--interval", "--id"},
    "torchkrr transfer --pooling m": {"mean", "max"},
    "torchkrr completion ": {"bash", "zsh", "fish"},
    "torchkrr fit --out ": {"data.csv"},
    "torchkrr evaluate ": {"data.csv"},
}


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(shell, text, line, folder):
    """What the shell offers for the last word of a line."""
    words = line.split(" ")
    if shell == "bash":
        given = " ".join(f"'{word}'" for word in words)
        end = f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _shtab_torchkrr; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        command = ["bash", "--norc", "-c", f"{text}\n{end}"]
    else:
        (folder / "torchkrr.fish").write_text(text)
        command = ["fish", "--no-config", "-c", f"source {folder / 'torchkrr.fish'}; complete -C '{line}'"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, cwd=folder)
    return {found.split("\t")[0] for found in done.stdout.splitlines() if found}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell, capsys):
    text = script(shell, capsys)
    for name in COMMANDS:
        assert name in text
        for action in subparser(name)._actions:
            hidden = action.help == argparse.SUPPRESS
            for flag in action.option_strings:
                assert hidden or flag.lstrip("-") in text


@pytest.mark.parametrize("line", CASES)
def test_bash_completes(line, capsys, tmp_path):
    (tmp_path / "data.csv").write_text("a,b")
    assert completed("bash", script("bash", capsys), line, tmp_path) == CASES[line]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize("line", ["torchkrr ev", "torchkrr fit --task ", "torchkrr completion "])
def test_fish_completes(line, capsys, tmp_path):
    assert CASES[line] <= completed("fish", script("fish", capsys), line, tmp_path)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_can_read_its_script(capsys, tmp_path):
    (tmp_path / "_torchkrr").write_text(script("zsh", capsys))
    done = subprocess.run(["zsh", "-f", "-n", str(tmp_path / "_torchkrr")], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_shtab_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    error = fails(capsys, "completion", "bash")
    assert 'torchkrr completion needs shtab, which is not installed: pip install "torchkrr[cli]"' in error
