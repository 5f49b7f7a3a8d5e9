"""The page of all commands and their options, from the parsers themselves."""

from __future__ import annotations

import argparse
import html

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from torchkrr.cli import EXIT_CODES, build_parser

PLACE = "api/commands.md"
INTRODUCTION = """# Commands

Every option of `torchkrr`, as `torchkrr COMMAND --help` tells them. Guides: [the command line](../guides/command-line.md),
[a head on a frozen network](../guides/frozen-backbone.md), [probing](../guides/probing.md). The commands of the paper's
experiments are in [a folder of their own](../paper/README.md).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, PLACE, content=commands_page()))
    return files


def commands_page() -> str:
    """Markdown: a section with a table for each command, then what all of them have."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    sections = [INTRODUCTION]
    for name, command in commands.choices.items():
        groups = {group.title: group._group_actions for group in command._action_groups}
        shared = groups.pop("all commands")
        own = [action for actions in groups.values() for action in actions]
        sections.append(f"## torchkrr {name}\n\n{command.description}\n\n{_table(own)}")
    ending = EXIT_CODES[0].upper() + EXIT_CODES[1:]
    sections.append(f"## All commands\n\n{_table(shared)}\n{ending}.\n")
    return "\n".join(sections)


def _table(actions: list[argparse.Action]) -> str:
    shown = [one for one in actions if not isinstance(one, argparse._HelpAction) and one.help != argparse.SUPPRESS]
    rows = [f"| {_name(action)} | {_help(action)} |" for action in shown]
    return "\n".join(["| | |", "|---|---|", *rows, ""]) if rows else "No options of its own.\n"


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"<code>{_escaped(str(value))}</code>"
    takes_value = action.nargs != 0
    names = ", ".join(action.option_strings) + (f" {value}" if takes_value else "")
    return f"<code>{_escaped(names)}</code>"


def _help(action: argparse.Action) -> str:
    return _escaped((action.help or "").replace("%%", "%"))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")  # which would begin another cell
