"""`python -m tools.wheels`: every environment; `--only core,cli` some; `--record FILE` keeps what was found."""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from torchkrr._files import replacing

from . import smoke
from .building import ROOT, Built, build_all, check_files, files_of
from .environments import Cost, Environment, check
from .metadata import check_metadata

ENVIRONMENTS = ("core", *smoke.EXTRAS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), default=ENVIRONMENTS, metavar="A,B")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="a JSON file for times and versions")
    args = parser.parse_args()
    unknown = set(args.only) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"there are the environments {', '.join(ENVIRONMENTS)}, not {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        found = check_all(pathlib.Path(folder), args.only)
    if args.record is not None:
        with replacing(args.record) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n")


def check_all(folder: pathlib.Path, names: Sequence[str]) -> dict[str, Any]:
    with Cost() as cost:
        built = build_all(folder / "built")
        check_files(built)
        check_metadata(built.wheel)
        check_metadata(built.plain)
    sizes = {path.name: path.stat().st_size for path in (built.sdist, built.wheel)}
    said = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
    print(f"built and compared in {cost}: {said}; {len(files_of(built.wheel))} files", flush=True)
    environments: dict[str, Any] = {}
    for name in names:
        environments |= check_environment(name, built, folder / name)
        shutil.rmtree(folder / name)
    some = "" if tuple(names) == ENVIRONMENTS else f" --only {','.join(names)}"
    return {
        "command": f"python -m tools.wheels{some}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "sizes": sizes,
        "building, seconds": cost.record(),
        "environments": environments,
    }


def check_environment(name: str, built: Built, place: pathlib.Path) -> dict[str, Any]:
    """One environment; the core alone also without the compiled solver, and with the oldest numpy."""
    environment, extra = Environment(place), None if name == "core" else name
    version = built.wheel.name.split("-")[1]

    def tried(title: str, install: Callable[[], None], *, compiled: bool) -> dict[str, Any]:
        with Cost() as installing:
            install()
        with Cost() as checking:
            found = check(environment, version, extra=extra, compiled=compiled)
        extras = ", ".join(found["complete"]) or "none"
        print(f"{title}: installed in {installing}, checked in {checking}; extras: {extras}", flush=True)
        return {title: {"installing, seconds": installing.record(), "checking, seconds": checking.record(), **found}}

    found = tried(name, functools.partial(environment.install, built.wheel, extra), compiled=True)
    if name == "core":
        plain = functools.partial(environment.install, built.plain, replace=True)
        oldest = oldest_numpy()
        found |= tried("core, without a compiler", plain, compiled=False)
        found |= tried(f"core, {oldest}", functools.partial(environment.install_exactly, oldest), compiled=False)
    return found


def oldest_numpy() -> str:
    """The lowest version that the project claims; the oldest torch and Python are those of every environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (numpy,) = (text for text in project["dependencies"] if re.match("numpy", text))
    return str(numpy).replace(">=", "==")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"tools.wheels: {error}")
