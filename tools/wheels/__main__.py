"""`python -m tools.wheels`: every environment; `--only core,cli` some; `--record FILE` keeps what was found."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import time
import tomllib
from typing import Any

from torchkrr._files import replacing

from . import smoke
from .building import ROOT, build_all, check_files, files_of
from .environments import Environment, check
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


def check_all(folder: pathlib.Path, names: tuple[str, ...] | list[str]) -> dict[str, Any]:
    start = time.monotonic()
    built = build_all(folder / "built")
    check_files(built)
    check_metadata(built.wheel)
    check_metadata(built.plain)
    seconds = round(time.monotonic() - start, 1)
    sizes = {path.name: path.stat().st_size for path in (built.sdist, built.wheel)}
    said = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
    print(f"built and compared in {seconds} s: {said}; {len(files_of(built.wheel))} files", flush=True)
    version = _version(built.wheel)
    environments: dict[str, Any] = {}
    for name in names:
        place = folder / name
        environment = Environment(place)
        extra = None if name == "core" else name
        installing = environment.install(built.wheel, extra)
        environments[name] = _told(name, installing, check(environment, version, extra=extra, compiled=True))
        if name == "core":
            installing = environment.install(built.plain, replace=True)
            done = check(environment, version, extra=None, compiled=False)
            environments["core, without a compiler"] = _told("core, without a compiler", installing, done)
            oldest = oldest_numpy()
            installing = environment.install_exactly(oldest)
            done = check(environment, version, extra=None, compiled=False)
            environments[f"core, {oldest}"] = _told(f"core, {oldest}", installing, done)
        shutil.rmtree(place)
    total = round(time.monotonic() - start, 1)
    print(f"{len(environments)} environments in {total} s")
    some = "" if tuple(names) == ENVIRONMENTS else f" --only {','.join(names)}"
    return {
        "command": f"python -m tools.wheels{some}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "sizes": sizes,
        "seconds_building": seconds,
        "seconds": total,
        "environments": environments,
    }


def oldest_numpy() -> str:
    """The lowest version that the project claims; the oldest torch and Python are those of every environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (numpy,) = (text for text in project["dependencies"] if text.startswith("numpy"))
    return str(numpy).replace(">=", "==")


def _told(name: str, installing: float, done: dict[str, Any]) -> dict[str, Any]:
    extras = ", ".join(done["complete"]) or "none"
    print(f"{name}: installed in {installing:.0f} s, checked in {done['seconds']:.0f} s; extras {extras}", flush=True)
    return {"seconds_installing": round(installing, 1), **done}


def _version(wheel: pathlib.Path) -> str:
    found = re.match(r"torchkrr-([^-]+)-", wheel.name)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"tools.wheels: {error}")
