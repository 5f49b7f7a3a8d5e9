"""A missing optional package is named with the extra that brings it; requirements are read as pip reads them."""

import importlib.metadata
import pathlib
import sys
import tomllib

import pytest
import torch

from torchkrr import _extras
from torchkrr.errors import MissingExtraError


def test_a_missing_package_names_its_user_and_the_extra():
    with pytest.raises(MissingExtraError) as caught:
        _extras.import_extra("no_such_package.part", "A plot", extra="plot", instead="Tables work without it.")
    assert str(caught.value) == (
        'A plot needs no_such_package, which is not installed: pip install "torchkrr[plot]". Tables work without it.'
    )


def test_a_package_that_misses_another_one_says_so_itself(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        _extras.import_extra("broken_package", "A plot", extra="plot")


@pytest.mark.parametrize(
    ("words", "declares"), [("operator torchvision::nms does not exist", True), ("another trouble", False), (None, False)]
)
def test_operators_are_declared_only_where_they_are_missing(monkeypatch, words, declares):
    declared, failures = [], [words] if words else []

    class Library:
        def __init__(self, *_):
            pass

        def define(self, schema):
            declared.append(schema.split("(")[0])

    def importing(name, _user, *, extra):
        if failures:
            raise RuntimeError(failures.pop())
        return name

    monkeypatch.setattr(_extras, "_declared", [])
    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(_extras, "import_extra", importing)
    monkeypatch.setattr(_extras.sys, "modules", dict(sys.modules))
    if words and not declares:
        with pytest.raises(RuntimeError, match=words):
            _extras.import_torchvision()
    else:
        assert _extras.import_torchvision() == "torchvision"
    assert declared == (["nms", "qnms"] if declares else [])


@pytest.mark.parametrize(
    ("requirement", "extra", "applies"),
    [
        ("numpy>=2.0", None, True),
        ("numpy>=2.0", "plot", False),
        ('numpy>=2.0; extra == "plot"', "plot", True),
        ('numpy>=2.0; extra == "plot"', None, False),
        ("numpy>=2.0 ; (python_version >= '3.9') and extra == 'plot'", "plot", True),
        ("numpy>=2.0 ; python_version < '3.9' and extra == 'plot'", "plot", False),
        ('numpy>=2.0; python_version ~= "3.9"', None, False),
        ('numpy>=2.0; sys_platform == "win32"', None, False),
        ('numpy>=2.0; sys_platform in "win32 cygwin"', None, False),
        ('numpy>=2.0; extra == "plot" or extra == "other"', "plot", False),
    ],
)
def test_requirements_are_those_of_the_extra_and_of_this_python(requirement, extra, applies, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", lambda package: [requirement])
    monkeypatch.setattr(_extras, "installed_version", lambda name: "2.4.1")
    expected = [_extras.Requirement("numpy", "2.0", "2.4.1")] if applies else []
    assert list(_extras.requirements(extra)) == expected


def test_a_package_that_is_not_installed_has_no_requirements(monkeypatch):
    monkeypatch.setattr(_extras, "installed_version", lambda name: None)
    assert list(_extras.requirements()) == []


@pytest.mark.parametrize(
    ("installed", "least", "met"),
    [("2.13.0+cpu", "2.13", True), ("2.9.1", "2.13", False), ("10.1", "2.0", True), (None, None, False), ("0", None, True)],
)
def test_versions_are_compared_by_their_numbers(installed, least, met):
    assert _extras.Requirement("torch", least, installed).met is met


PROJECT = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_every_extra_for_users_is_explained():
    assert list(_extras.ADDS) == [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]


def test_requirements_are_those_of_the_project():
    assert [str(one) for one in _extras.requirements()] == PROJECT["dependencies"]
    found = {extra: {str(one) for one in _extras.requirements(extra)} for extra in _extras.ADDS}
    assert found["faiss"] == {"faiss-cpu>=1.11"}
    assert found["cli"] == {
        "scikit-learn>=1.7",
        "safetensors>=0.5",
        "pandas>=2.2",
        "pyarrow>=18",
        "shtab>=1.9",
    }  # two extras further
    assert {"gymnasium>=1.2", "matplotlib>=3.10", "pillow>=11"} < found["rl"]
    assert any(name.lower().startswith("box2d") for name in found["rl"])  # an extra of another package
