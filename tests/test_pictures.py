"""Every picture of the documentation has a script, was made by it as it is now, and is used."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES = sorted((ROOT / "docs" / "images").iterdir())
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", ROOT / "docs" / "figures" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_script_in_the_repository(picture, make):
    command = make.BY_COMMAND.get(picture.name)
    if command is None:
        assert picture.name in make.scripts(), f"no script saves {picture.name}: add one to docs/figures"
        return
    assert picture.name in (ROOT / "Makefile").read_text()
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_every_picture_is_as_its_script_makes_it(make):
    assert not make.outdated(), "run: make figures"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_shown_somewhere(picture):
    assert any(f"images/{picture.name}" in page.read_text() for page in PAGES)


def test_a_changed_script_makes_its_picture_outdated(make, tmp_path, monkeypatch):
    name, script = next(iter(make.scripts().items()))
    before = make.digest(script)
    changed = tmp_path / script.name
    changed.write_text(script.read_text() + "\n# changed\n")
    assert make.digest(changed) != before
    monkeypatch.setattr(make, "IMAGES", tmp_path)
    assert name in make.outdated()
