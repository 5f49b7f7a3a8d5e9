"""The sdist, the wheel built from it, and a wheel built where there is no compiler."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src")
# What a build or a run leaves in the tree: none of it may get into a distribution by accident.
LEFTOVERS = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "build", ".*")
SOURCE_ONLY = (".h", ".cpp")


class Built(NamedTuple):
    sdist: pathlib.Path
    wheel: pathlib.Path  # from the sdist, with the compiled solver
    plain: pathlib.Path  # from the tree, without a compiler


def build_all(folder: pathlib.Path) -> Built:
    """Everything from a copy of the tree, so that leftovers of other builds do not count."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=LEFTOVERS)
        else:
            shutil.copy(ROOT / name, tree / name)
    sdist = _build(tree, folder / "dist", "sdist")
    plain = _build(tree, folder / "plain", "wheel", PATH="/nowhere")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return Built(sdist, _build(unpacked, folder / "dist", "wheel"), plain)


def files_of(wheel: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def check_files(built: Built) -> None:
    """The sdist has all that the tree has, and nothing of the package is forgotten."""
    from_sdist, from_tree = files_of(built.wheel), files_of(built.plain)
    compiled = {name for name in from_sdist if name.endswith(".so")}
    assert len(compiled) == (3 if os.uname().machine == "x86_64" else 1), f"the wheel has the compiled {sorted(compiled)}"
    assert not any(name.endswith(".so") for name in from_tree), "a compiler was found where none should be"
    assert set(from_sdist) - compiled == set(from_tree), f"they differ in {set(from_sdist) - compiled ^ set(from_tree)}"
    for name, contents in from_tree.items():
        if not name.endswith((".dist-info/RECORD", ".dist-info/WHEEL")):
            assert from_sdist[name] == contents, f"{name} is not the same in the wheel of the sdist and of the tree"
    package = ROOT / "src" / "torchkrr"
    wanted = {
        f"torchkrr/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyc", *SOURCE_ONLY)
    }
    shipped = {name for name in from_tree if name.startswith("torchkrr/") and not name.endswith(SOURCE_ONLY)}
    assert wanted == shipped, f"tree and wheel differ in {wanted ^ shipped}"
    assert "torchkrr/py.typed" in shipped
    others = {name.split("/")[0] for name in from_tree} - {"torchkrr"}
    assert [name.partition("-")[0] for name in others] == ["torchkrr"], f"the wheel also has {others}"


def _build(tree: pathlib.Path, out: pathlib.Path, kind: str, **environment: str) -> pathlib.Path:
    command = [sys.executable, "-m", "build", f"--{kind}", "--outdir", str(out), str(tree)]
    given = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS), **environment}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    (found,) = out.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return found
