"""Optional dependencies: import them, or say which extra brings them."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from .errors import MissingExtraError

ADDS = {
    "faiss": 'approximate search: neighbors.FaissIndex, and index="auto" for many centers',
    "ot": "assignments: functional.assignment, monge_cost and the losses made of them",
    "sklearn": "torchkrr.estimators: regressors and a classifier for tables",
    "storage": "saving and loading models",
    "cli": "torchkrr fit, predict and evaluate on CSV and Parquet files",
    "plot": "pictures of what was chosen",
    "vision": "torchkrr transfer and classify on images, with backbones of torchvision and timm",
    "rl": "python -m paper.lander: agents with kernels on games of Gymnasium",
    "demo": "torchkrr transfer on digits, with the backbone that comes with the package",
    "tensorboard": "python -m paper.learning --tensorboard: curves while it trains",
}
PACKAGE = "torchkrr"
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^]]*)\])?(?P<range>[^;]*)(?:;(?P<marker>.*))?")
COMPARISONS = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1), "==": (0,)}


class Requirement(NamedTuple):
    name: str
    least: str | None  # version
    found: str | None  # version, None where it is missing

    @property
    def met(self) -> bool:
        return self.found is not None and (self.least is None or compare(self.found, self.least) >= 0)

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


def core_requirements() -> list[Requirement]:
    return list(_needs(PACKAGE, None))


def extra_requirements() -> dict[str, list[Requirement]]:
    """Of every extra for users; empty where the package is used without being installed."""
    if installed_version(PACKAGE) is None:
        return {}
    return {extra: sorted(set(_needs(PACKAGE, extra))) for extra in ADDS}


def install_command(extra: str) -> str:
    return f'pip install "{PACKAGE}[{extra}]"'


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def compare(one: str, other: str) -> int:
    """-1, 0 or 1, by the numbers that versions begin with.

    Example:
        >>> compare("2.13.0+cpu", "2.13"), compare("2.9.1", "2.13"), compare("3.0rc1", "2.13")
        (0, -1, 1)
    """
    ours, theirs = (_numbers(text) for text in (one, other))
    return (ours > theirs) - (ours < theirs)


def _needs(package: str, extra: str | None) -> Iterator[Requirement]:
    """What a package needs for one of its extras, or for none; extras of other packages are followed."""
    if installed_version(package) is None:
        return
    for text in importlib.metadata.requires(package) or []:
        parts = REQUIREMENT.match(text)
        assert parts is not None
        if not _applies(parts["marker"], extra):
            continue
        if parts["name"] != PACKAGE:
            least = re.search(r">=\s*([0-9.]+)", parts["range"])
            yield Requirement(parts["name"], least and least[1], installed_version(parts["name"]))
        for further in (parts["extras"] or "").split(","):
            if further:
                yield from _needs(parts["name"], further.strip())


def _applies(marker: str | None, extra: str | None) -> bool:
    """Whether a requirement is one of this extra, here. Markers joined by `and`; others than these two kinds never apply."""
    wanted = False
    for clause in (marker or "").split(" and "):
        words = re.fullmatch(r"""\s*\(?\s*(\w+)\s*([<>=!]+)\s*["']([^"']*)["']\s*\)?\s*""", clause)
        if words is None:
            if clause.strip():
                return False
        elif words[1] == "extra":
            wanted = words[3] == extra
            if not wanted:
                return False
        elif words[1] == "python_version" and words[2] in COMPARISONS:
            here = ".".join(map(str, sys.version_info[:2]))
            if compare(here, words[3]) not in COMPARISONS[words[2]]:
                return False
        else:
            return False
    return wanted or extra is None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
