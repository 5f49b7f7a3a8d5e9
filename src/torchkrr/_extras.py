"""Optional dependencies: import them, or say which extra brings them."""

from __future__ import annotations

import importlib
import importlib.metadata
import operator
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from .errors import MissingExtraError

ADDS = {
    "faiss": 'approximate search: neighbors.FaissIndex, and index="auto" for many centers',
    "ot": "assignments: functional.assignment, monge_cost and the losses made of them",
    "sklearn": "torchkrr.estimators: regressors and a classifier for tables",
    "storage": "saving and loading models",
    "pgvector": "stores.PgVectorStore: examples in PostgreSQL",
    "lance": "stores.LanceStore: examples in LanceDB",
    "cli": "torchkrr fit, predict, evaluate and update",
    "plot": "pictures of what was chosen",
    "text": "torchkrr.text: embeddings of sentences",
    "vision": "torchkrr on images, with backbones of torchvision and timm",
    "rl": "python -m paper.lander: agents with kernels on games of Gymnasium",
    "demo": "torchkrr transfer on digits, with the backbone that comes with the package",
    "tensorboard": "python -m paper.learning --tensorboard: curves while it trains",
}
PACKAGE = "torchkrr"
# Box operators that torchvision describes to torch on import, even if its compiled part, which declares them, cannot be
# loaded: a CUDA build beside a CPU build of torch. Nothing here uses them.
BOX_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^]]*)\])?(?P<range>[^;]*)(?:;(?P<marker>.*))?")
CLAUSE = re.compile(r"""(\w+)\s*([<>=!~]+|not in|in)\s*["']([^"']*)""")
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}
_declared: list[Any] = []  # a declaration lasts as long as its library object


class Requirement(NamedTuple):
    """A package that is needed, from a version on, and the version that is installed; `None` where there is none."""

    name: str
    least: str | None
    installed: str | None

    @property
    def met(self) -> bool:
        return self.installed is not None and version_numbers(self.installed) >= version_numbers(self.least or "0")

    def __str__(self) -> str:
        return self.name if self.least is None else f"{self.name}>={self.least}"


def import_extra(module: str, user: str, *, extra: str, instead: str = "") -> ModuleType:
    """Import an optional module, or raise an error that names its user and the extra to install.

    Args:
        module: what to import, for instance `"scipy.optimize"`.
        user: what needs it, the subject of the error.
        extra: the extra of torchkrr that brings it.
        instead: a sentence on what works without it.

    Example:
        >>> import_extra("math", "Rounding", extra="none").floor(1.5)
        1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != package:
            raise
        message = f"{user} needs {package}, which is not installed: {install_command(extra)}. {instead}"
        raise MissingExtraError(message.rstrip()) from None


def import_torchvision(name: str = "torchvision", user: str = "This backbone") -> ModuleType:
    """`torchvision`, or a part of it, which `user` needs. Two operators that its import expects are declared if missing."""
    try:
        return import_extra(name, user, extra="vision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _declared:
            raise
    library = importlib.import_module("torch.library").Library("torchvision", "DEF")
    for schema in BOX_OPERATORS:
        library.define(schema)
    _declared.append(library)
    for half_imported in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        del sys.modules[half_imported]
    return import_extra(name, user, extra="vision")


def install_command(extra: str) -> str:
    return f'pip install "{PACKAGE}[{extra}]"'


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, to compare it by.

    Example:
        >>> version_numbers("2.13.0+cpu"), version_numbers("2.13"), version_numbers("3.0rc1")
        ((2, 13), (2, 13), (3,))
    """
    numbers = re.search(r"^\d+(\.\d+)*|^", version)
    assert numbers is not None
    return tuple(int(part) for part in re.sub(r"(\.0+)+$", "", numbers[0]).split(".") if part)


def requirements(extra: str | None = None, package: str = PACKAGE) -> Iterator[Requirement]:
    """What a package needs for one of its extras, or for none; extras of other packages are followed.

    Nothing where the package is used without being installed.
    """
    if installed_version(package) is None:
        return
    for text in importlib.metadata.requires(package) or []:
        match = REQUIREMENT.match(text)
        assert match is not None
        if not _applies(match["marker"] or "", extra):
            continue
        if match["name"] != PACKAGE:
            least = re.search(r">=\s*([0-9.]+)", match["range"])
            yield Requirement(match["name"], least and least[1], installed_version(match["name"]))
        for further in filter(None, (match["extras"] or "").split(",")):
            yield from requirements(further.strip(), match["name"])


def _applies(marker: str, extra: str | None) -> bool:
    """Whether a requirement is one of this extra, here. A marker with clauses of other kinds never applies."""
    if " or " in marker:
        return False
    clauses, python = CLAUSE.findall(marker), sys.version_info[:2]
    versions = [(sign, version_numbers(text)) for what, sign, text in clauses if what == "python_version"]
    here = [COMPARE[sign](python, version) for sign, version in versions if sign in COMPARE]
    extras = [name for what, _, name in clauses if what == "extra"]
    return extras == ([] if extra is None else [extra]) and all(here) and len(extras) + len(here) == len(clauses)
