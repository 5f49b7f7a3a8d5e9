"""Pages that nobody writes: recorded results, and the scripts that other pages link to."""

from __future__ import annotations

import json
import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from repository import DOCS, LINK, RESULTS, ROOT, linked_file, place_on_site, prose_of


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    assert config.nav is not None
    for section in config.nav:
        (title,) = section
        if title == "Benchmarks":
            section[title] += [{_title(path): place_on_site(path)} for path in result_pages()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in result_pages():
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, place_on_site(path), content=result_page(path)))
    for path in sorted(RESULTS.iterdir()):
        if path.suffix in (".jsonl", ".png"):
            files.append(File.generated(config, place_on_site(path), abs_src_path=str(path)))
    paper = ROOT / "paper" / "README.md"
    files.append(File.generated(config, place_on_site(paper), content=paper.read_text()))
    for path in sorted(linked_scripts()):
        files.append(File.generated(config, place_on_site(path), content=script_page(path)))
    return files


def result_pages() -> list[pathlib.Path]:
    return [*sorted(RESULTS.glob("*.md")), *sorted((DOCS / "results").glob("*.md"))]


def result_page(path: pathlib.Path) -> str:
    """A recorded table with its picture and the machine it was recorded on."""
    text = path.read_text().replace("\\\n", "  \n")  # line breaks as this Markdown knows them
    records, picture = path.with_suffix(".jsonl"), path.with_suffix(".png")
    if picture.exists() and picture.name not in text:
        text += f"\n![{_title(path)}]({picture.name})\n"
    if records.exists():
        text += f"\n## Recorded on\n\n{_machine(records)}\n\nEvery record: [{records.name}]({records.name}).\n"
    return text


def linked_scripts() -> set[pathlib.Path]:
    found = {linked_file(page, target) for page in DOCS.rglob("*.md") for target in LINK.findall(prose_of(page.read_text()))}
    return {path for path in found if path is not None and path.suffix == ".py"}


def script_page(path: pathlib.Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path.name}\n\n`{name}`\n\n````py\n{path.read_text()}````\n"


def _machine(records: pathlib.Path) -> str:
    first = json.loads(records.read_text().split("\n", 1)[0])
    known = {name: value for name, value in first.items() if name != "case" and isinstance(value, str | int | float)}
    if first.get("case") != "environment":
        return "The machine is in each record."
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in known.items())


def _title(path: pathlib.Path) -> str:
    found = re.search(r"^# (.+)$", path.read_text(), flags=re.MULTILINE)
    return found[1] if found else path.stem
