"""`torchkrr doctor`: what is installed, what works, and what an extra would add."""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only the options of all commands."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    from ..diagnosis import diagnose

    found: dict[str, Any] = diagnose()
    backend, cache, packages = found["backend"], found["cache"], found["packages"]
    solver = f"compiled ({backend['instruction_set']})" if backend["reason"] is None else f"torch: {backend['reason']}"
    print(f"torchkrr  {found['torchkrr']} in {found['location']}")
    print(f"python    {found['python']} on {found['platform']}")
    print(f"packages  {', '.join(f'{name} {version}' for name, version in packages.items() if version)}")
    print(f"devices   {', '.join(found['devices'])}")
    print(f"solver    {solver}")
    print(f"threads   {backend['threads']} of {backend['cores']} cores")
    print(f"cache     {cache['folder']} ({cache['bytes'] / 1e6:.1f} MB)")
    for name, extra in found["extras"].items():
        missing = f"not there (needs {', '.join(extra['missing'])}); adds {extra['adds']}: {extra['install']}"
        print(f"extra     {name:8} {'complete' if extra['complete'] else missing}")
    if not found["extras"]:
        print("extra     unknown: torchkrr is used without being installed")
    if not found["problems"]:
        print("nothing is broken")
    return found
