"""The commands of the guide are ones that the command line understands."""

import pathlib
import re
import shlex

from torchkrr.cli import build_parser

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "guides" / "command-line.md").read_text()


def test_commands_of_the_guide_can_be_parsed():
    commands = re.findall(r"^\$ torchkrr (.*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        build_parser().parse_args(shlex.split(command))


def test_options_of_the_guide_exist():
    known = set(re.findall(r"--[a-z-]+", " ".join(one.format_help() for one in subparsers())))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE))
    assert named - {"--nproc-per-node"} <= known  # that one is torchrun's
    assert {"--interval", "--explain", "--chunk-rows"} <= named


def subparsers():
    return build_parser()._subparsers._group_actions[0].choices.values()
