"""Scripts that complete commands and options in a shell, made from the parsers themselves."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

FILES = ("FILE", "DIR", "PATH", "CHECKPOINT")  # in what help calls the value of an option


class Option(NamedTuple):
    flags: tuple[str, ...]
    text: str  # its help
    takes_value: bool
    takes_file: bool
    choices: tuple[str, ...]


class Command(NamedTuple):
    name: str
    text: str
    options: list[Option]
    choices: tuple[str, ...]  # of its first argument; where there are none it is a file


def commands(top: argparse.ArgumentParser) -> list[Command]:
    found = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    texts = {choice.dest: choice.help or "" for choice in found._choices_actions}
    return [_command(name, texts[name], parser) for name, parser in found.choices.items()]


def options(parser: argparse.ArgumentParser) -> list[Option]:
    return [
        Option(tuple(action.option_strings), action.help or "", action.nargs != 0, _is_file(action), _choices(action))
        for action in parser._actions
        if action.option_strings
    ]


def bash(top: argparse.ArgumentParser) -> str:
    """Where no word is offered bash completes files, unless that is switched off."""
    values, words = [], []
    for command in commands(top):
        groups: dict[str, list[str]] = {}
        for option in command.options:
            if option.takes_value:
                action = ":" if option.takes_file else f'_torchkrr_offer "{" ".join(option.choices)}"'
                groups.setdefault(action, []).extend(f"{command.name}:{flag}" for flag in option.flags)
        values += [f"        {'|'.join(patterns)}) {action}; return ;;" for action, patterns in groups.items()]
        words.append(f'        {command.name}) options="{_flags(command.options)}"; words="{" ".join(command.choices)}" ;;')
    return BASH.format(
        top=_flags(options(top)),
        names=" ".join(command.name for command in commands(top)),
        values="\n".join(values),
        words="\n".join(words),
    )


def zsh(top: argparse.ArgumentParser) -> str:
    names = "\n".join(f"        {shlex.quote(f'{_plain(one.name)}:{_plain(one.text)}')}" for one in commands(top))
    cases = []
    for command in commands(top):
        given = [*(part for option in command.options for part in _zsh_option(option)), _zsh_argument(command.choices)]
        lines = " \\\n                ".join(shlex.quote(part) for part in given)
        cases.append(f"        {command.name})\n            _arguments -s \\\n                {lines} ;;")
    flags = " ".join(shlex.quote(part) for option in options(top) for part in _zsh_option(option))
    return ZSH.format(top=flags, names=names, cases="\n".join(cases))


def fish(top: argparse.ArgumentParser) -> str:
    known = commands(top)
    none = f"not __fish_seen_subcommand_from {' '.join(one.name for one in known)}"
    lines = [f"complete -c torchkrr -n {shlex.quote(none)} -f"]
    lines += [_fish(none, option) for option in options(top)]
    for command in known:
        seen = f"__fish_seen_subcommand_from {command.name}"
        lines.append(f"complete -c torchkrr -n {shlex.quote(none)} -a {command.name} -d {_fish_quote(command.text)}")
        lines += [_fish(seen, option) for option in command.options]
        if command.choices:
            words = _fish_quote(" ".join(command.choices))
            lines.append(f"complete -c torchkrr -n {shlex.quote(seen)} -f -a {words}")
    return "\n".join(lines) + "\n"


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}

BASH = """\
# Completes torchkrr in bash. Try it with: source <(torchkrr completion bash)
_torchkrr() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word options="" words=""
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ $word != -* ]]; then command=$word; break; fi
    done
    if [[ -z $command ]]; then _torchkrr_offer "{names} {top}"; return; fi
    case "$command:$previous" in
{values}
    esac
    case "$command" in
{words}
    esac
    if [[ $current == -* ]]; then words=$options; fi
    if [[ -n $words ]]; then _torchkrr_offer "$words"; fi
}}
# Only these words, no files. bash 3 has no compopt.
_torchkrr_offer() {{
    compopt +o default 2> /dev/null
    COMPREPLY=($(compgen -W "$1" -- "$current"))
}}
complete -o default -F _torchkrr torchkrr
"""
ZSH = """\
#compdef torchkrr
# Completes torchkrr in zsh: put it into a folder of $fpath as _torchkrr, before compinit runs.
_torchkrr() {{
    local curcontext="$curcontext" state line
    local -a names
    names=(
{names}
    )
    _arguments -C {top} '1: :->command' '*:: :->rest' && return
    case $state in
    command) _describe -t commands command names ;;
    rest)
        case $line[1] in
{cases}
        esac ;;
    esac
}}
if [[ $funcstack[1] == _torchkrr ]]; then _torchkrr "$@"; else compdef _torchkrr torchkrr; fi
"""


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Command:
    first = next((action for action in parser._actions if not action.option_strings), None)
    return Command(name, text, options(parser), () if first is None else _choices(first))


def _is_file(action: argparse.Action) -> bool:
    return any(word in str(action.metavar) for word in FILES)


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def _flags(given: list[Option]) -> str:
    return " ".join(flag for option in given for flag in option.flags)


def _plain(text: str) -> str:
    """Without what zsh reads as its own."""
    return text.replace(":", " -").replace("[", "(").replace("]", ")").replace("%%", "%")


def _zsh_option(option: Option) -> Iterator[str]:
    values = "_files" if option.takes_file else f"({' '.join(option.choices)})"
    value = f":value:{values}" if option.takes_value else ""
    for flag in option.flags:
        yield f"*{flag}[{_plain(option.text)}]{value}"


def _zsh_argument(choices: tuple[str, ...]) -> str:
    return f"*:argument:({' '.join(choices)})" if choices else "*:argument:_files"


def _fish(condition: str, option: Option) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    words = f" -a {_fish_quote(' '.join(option.choices))}" if option.choices else ""
    values = " -r -F" if option.takes_file else f" -x{words}" if option.takes_value else ""
    return f"complete -c torchkrr -n {shlex.quote(condition)} {flags}{values} -d {_fish_quote(option.text)}"


def _fish_quote(text: str) -> str:
    escaped = text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
