"""The layout as an assertion: imports point one way, exports resolve, files stay small."""

import ast
import importlib
import pathlib
import pkgutil
import re
import sys

import pytest

import torchkrr
from torchkrr import errors

PACKAGE = pathlib.Path(torchkrr.__file__).parent
LAYERS = [
    {"__version__", "errors"},
    {"_threads", "_tensors"},
    {"_checks", "_chunking", "_extras", "_files", "native", "_state"},
    {"runs"},
    {"distances"},
    {"transforms"},
    {"kernels"},
    {"neighbors", "core"},
    {"functional"},
    {"nn"},
    {"tuning"},
    {"losses"},
    {"estimators"},
    {"models"},
    {"distributed"},
    {"vision"},
    {"diagnosis"},
    {"cli"},
    {"__main__"},
]
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
FOUND = [info.name for info in pkgutil.walk_packages(torchkrr.__path__, "torchkrr.")]
MODULES = ["torchkrr", *(name for name in FOUND if not name.startswith("torchkrr.native."))]  # its libraries are no modules


def imported(path: pathlib.Path) -> list[list[str]]:
    """Project imports of a file as paths below the package, for instance ["core", "cells"]."""
    found = []
    folder = list(path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1] + (node.module.split(".") if node.module else [])
            found += [base] if base and base != folder else [[*base, alias.name] for alias in node.names]
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upwards_in_the_data_flow(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] == "__init__":
        return
    for other in imported(path):
        if other[0] != parts[0]:
            assert RANK[other[0]] < RANK[parts[0]], f"{path} imports {other}"


def cycle_among(graph: dict[str, set[str]]) -> list[str]:
    """Nodes that import each other in a circle, or nothing."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            found = visit(other, [*path, node])
            if found:
                return found
        done.add(node)
        return []

    return next(filter(None, (visit(node, []) for node in sorted(graph))), [])


def test_files_import_each_other_in_no_circle():
    graph = {}
    for path in FILES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] != "__init__":
            graph["/".join(parts)] = {"/".join(other[: len(other)]) for other in imported(path)}
    assert cycle_among(graph) == []
    assert cycle_among({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists(name):
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported), f"{name}.{exported}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_600_lines(path):
    assert path.read_text().count("\n") <= 600


def test_errors_and_warnings_have_one_base_each():
    for thing in vars(errors).values():
        if isinstance(thing, type) and issubclass(thing, Warning):
            assert issubclass(thing, errors.KernelRidgeWarning)
        elif isinstance(thing, type) and issubclass(thing, Exception):
            assert issubclass(thing, errors.KernelRidgeError)


def test_core_needs_only_torch_and_numpy():
    allowed = {"torch", "numpy", "safetensors", "tqdm", "torchkrr"}
    standard = sys.stdlib_module_names
    for path in PACKAGE.rglob("*.py"):
        extra = {"estimators": {"sklearn", "scipy"}, "cli": {"pandas", "pyarrow", "sklearn"}}.get(path.parent.name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                assert name.split(".")[0] in allowed | standard | extra, f"{path} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE.parents[1] / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_use_public_names_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        # Experiments are code behind the command line, usable but not part of the stable interface.
        if isinstance(node, ast.ImportFrom) and re.match(r"torchkrr\b(?!\.experiments)", node.module or ""):
            module = importlib.import_module(node.module)
            public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
            assert node.module.count(".") <= 1, node.module
            assert {alias.name for alias in node.names} <= set(public), node.module
