"""The layout as an assertion: imports point one way, exports resolve, every file has its tests."""

import ast
import importlib
import pathlib
import pkgutil
import sys

import pytest

import torchkrr
from torchkrr import errors

PACKAGE = pathlib.Path(torchkrr.__file__).parent
ROOT = PACKAGE.parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
OUTSIDE = {"__init__", "__main__", "experiments"}  # the names at the top, the command, and stubs for old imports


def file_name(path):
    return str(path.relative_to(PACKAGE))


def rooms():
    """Packages and modules in the order of docs/images/architecture.png; "_" are the private modules beside them."""
    tree = ast.parse((ROOT / "docs" / "figures" / "architecture.py").read_text())
    (drawn,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS")
    names = [name for row in ast.literal_eval(drawn) for name in row.split(", ") if name != "..."]
    return list(dict.fromkeys("_" if name.startswith("_") else name for name in names))


ORDER = rooms()


def room_of(path):
    """The room of a file, given as a path below the package."""
    name = pathlib.PurePath(path).with_suffix("").parts[0]
    return name if name in OUTSIDE or not name.startswith("_") else "_"


def imports_of(path, source=None):
    """What a file imports from the project: pairs of a file below the package and a name, `None` for the file itself."""
    folder = path.parent
    for node in ast.walk(ast.parse(path.read_text() if source is None else source)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = [folder, *folder.parents][node.level - 1].joinpath(*(node.module or "").split("."))
        for alias in node.names:
            if base.with_suffix(".py").exists():
                yield file_name(base.with_suffix(".py")), alias.name
            elif (base / f"{alias.name}.py").exists():
                yield file_name(base / f"{alias.name}.py"), None
            elif (base / alias.name / "__init__.py").exists():
                yield file_name(base / alias.name / "__init__.py"), None
            else:
                yield file_name(base / "__init__.py"), alias.name


def wrong_imports(path, source=None):
    """The imports of a file that point to a later room, or to a private name of another."""
    own = room_of(file_name(path))
    for other, name in imports_of(path, source):
        room = room_of(other)
        if own in OUTSIDE or room in OUTSIDE:
            continue
        if ORDER.index(room) > ORDER.index(own):
            yield f"{other} comes later"
        if room != own and name is not None and name.startswith("_"):
            yield f"{other}: {name} is private"


def cycle_among(graph):
    """Nodes that import each other in a circle, or nothing."""
    done = set()

    def visit(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for other in sorted(graph.get(node, ())):
                if cycle := visit(other, [*path, node]):
                    return cycle
            done.add(node)
        return []

    return next(filter(None, (visit(node, []) for node in sorted(graph))), [])


def test_the_picture_shows_every_package():
    assert set(ORDER) == {room_of(file_name(path)) for path in FILES} - OUTSIDE


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_imports_point_to_earlier_rooms_and_public_names(path):
    assert list(wrong_imports(path)) == []


@pytest.mark.parametrize(
    ("file", "source", "complaints"),
    [
        ("core/dense.py", "from ..nn import KernelRidge", ["nn/__init__.py comes later"]),
        ("core/dense.py", "def f():\n    from .. import runs", ["runs.py comes later"]),
        ("cli/fit.py", "from ..core.local import _check_centers", ["core/local.py: _check_centers is private"]),
        ("core/dense.py", "from .factor import _any\nfrom .._checks import check_ridge\nfrom .. import _state", []),
    ],
)
def test_a_wrong_import_is_found(file, source, complaints):
    assert list(wrong_imports(PACKAGE / file, source)) == complaints


def test_packages_and_files_import_each_other_in_no_circle():
    top = PACKAGE / "__init__.py"
    graph = {file_name(path): {other for other, _ in imports_of(path)} for path in FILES if path != top}
    assert cycle_among(graph) == []
    between = {}
    for file, others in graph.items():
        between.setdefault(room_of(file), set()).update(room for room in map(room_of, others) if room != room_of(file))
    assert cycle_among(between) == []
    assert sum(map(len, between.values())) > 50  # imports were found


def test_a_circle_is_found():
    assert cycle_among({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle_among({"a": {"b", "c"}, "b": {"c"}}) == []


# Files without a test file of their own, and why.
ELSEWHERE = {
    "errors.py": "each error is raised, and its text checked, where it is used",
}


def test_every_file_has_tests_where_you_look_for_them():
    missing = set()
    for path in FILES:
        if path.stem not in ("__init__", "__main__"):
            place = path.relative_to(PACKAGE).with_name(f"test_{path.stem.removeprefix('_')}.py")
            if not (ROOT / "tests" / place).exists():
                missing.add(file_name(path))
    assert missing == ELSEWHERE.keys()
    assert len(ELSEWHERE) <= 5


MODULES = [importlib.import_module(info.name) for info in pkgutil.iter_modules(torchkrr.__path__, "torchkrr.")]
NAMESPACES = [torchkrr, *(module for module in MODULES if hasattr(module, "__all__"))]


def test_every_documented_package_says_what_it_exports():
    documented = {page.stem for page in (ROOT / "docs" / "api").glob("*.md")} - {"index", "errors"}  # all errors are public
    assert documented <= {module.__name__.split(".")[-1] for module in NAMESPACES}


@pytest.mark.parametrize("module", NAMESPACES, ids=lambda module: module.__name__)
def test_every_exported_name_exists(module):
    scope = {}
    exec(f"from {module.__name__} import *", scope)
    assert module.__all__
    assert sorted(scope.keys() - {"__builtins__"}) == sorted(module.__all__)


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
        known = {"sklearn", "scipy"}
        extra = {"estimators": known, "quality": known, "cli": {"pandas", "pyarrow", "sklearn"}}.get(path.parent.name, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                assert name.split(".")[0] in allowed | standard | extra, f"{path} imports {name}"


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def names_used(source):
    """What a script uses of torchkrr, as dotted names: imported, or reached from what was imported."""
    tree, bound = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {(alias.asname or "torchkrr"): alias.name for alias in node.names if alias.name.startswith("torchkrr")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torchkrr":
            bound |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    used = set(bound.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in bound and all(part.isidentifier() for part in rest):
                used.add(".".join([bound[first], *rest]))
    return used


def is_public(name):
    """Whether each part of a dotted name is exported by the module before it."""
    thing = torchkrr
    for part in name.split(".")[1:]:
        if isinstance(thing, type(torchkrr)):
            namespaces = (
                {"distributed", "estimators", "quality", "stores", "text", "vision", "audit", "suggest"}
                if thing is torchkrr
                else set()
            )
            if part not in {*getattr(thing, "__all__", ()), *namespaces, "__file__"}:
                return False
        thing = getattr(thing, part)
    return True


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_use_public_names_only(path):
    used = names_used(path.read_text())
    assert used
    assert [name for name in sorted(used) if not is_public(name)] == []


@pytest.mark.parametrize(
    "line",
    ["from torchkrr.core.local import solve_local", "import torchkrr as t; t._state", "from torchkrr import nn; nn.base.x"],
)
def test_a_name_that_is_not_public_is_found(line):
    assert not all(map(is_public, names_used(line)))
