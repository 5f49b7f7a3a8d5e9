"""What an index would say about the package."""

from __future__ import annotations

import email
import email.message
import pathlib
import re
import tomllib

from .building import ROOT, files_of


def check_metadata(wheel: pathlib.Path) -> None:
    files = files_of(wheel)
    (name,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    found = email.message_from_string(files[name].decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = (ROOT / "src" / "torchkrr" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)
    assert version is not None
    assert found["Version"] == version[1], f"the wheel is of version {found['Version']}, the source of {version[1]}"
    assert found["Name"] == project["name"]
    assert found["Summary"] == project["description"]
    assert found["Requires-Python"] == project["requires-python"]
    assert found["License-Expression"] == project["license"]
    assert found.get_all("License-File") == ["LICENSE"]
    licenses = name.replace("METADATA", "licenses/LICENSE")
    assert files[licenses].decode() == (ROOT / "LICENSE").read_text()
    assert found.get_all("Classifier") == project["classifiers"]
    assert set(found.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])
    scripts = files[name.replace("METADATA", "entry_points.txt")].decode()
    assert "torchkrr = torchkrr.cli:main" in scripts
    check_readme(found)


def check_readme(found: email.message.Message) -> None:
    """As an index shows it: Markdown, complete, with every block of code closed."""
    assert found["Description-Content-Type"] == "text/markdown"
    text = str(found.get_payload())
    assert text.strip() == (ROOT / "README.md").read_text().strip()
    assert len(re.findall(r"^```", text, flags=re.MULTILINE)) % 2 == 0, "a block of code of the README is not closed"
    assert text.startswith("# ")
