"""Links to files of the repository lead to their places on the site, and public names to their documentation."""

from __future__ import annotations

import importlib
import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.pages import Page

from repository import DOCS, FENCE, LINK, ROOT, linked_file, place_on_site

NAMESPACES = (
    *("functional", "nn", "kernels", "transforms", "neighbors", "tuning"),
    *("losses", "models", "interpolate", "estimators", "vision", "text", "distributed"),
)
NAME = re.compile(r"(?<!\[)`(torchkrr(?:\.\w+)+)`")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    # Generated pages lie where their source is in the repository.
    written = DOCS / page.file.src_uri
    source = written if written.exists() else ROOT / page.file.src_uri
    parts = FENCE.split(markdown)
    parts[::2] = [_with_links(part, source, page.file.src_uri) for part in parts[::2]]
    return "".join(parts)


def _with_links(prose: str, source: pathlib.Path, uri: str) -> str:
    def moved(found: re.Match[str]) -> str:
        path = linked_file(source, found[1])
        return found[1] if path is None else posixpath.relpath(place_on_site(path), posixpath.dirname(uri) or ".")

    def named(found: re.Match[str]) -> str:
        return f"[`{found[1]}`][{PUBLIC[found[1]]}]" if found[1] in PUBLIC else found[0]

    return NAME.sub(named, LINK.sub(moved, prose))


def _public_names() -> dict[str, str]:
    """Where each public name is documented: a function named as its file is hidden by that file."""
    found = {}
    for namespace in NAMESPACES:
        for name in importlib.import_module(f"torchkrr.{namespace}").__all__:
            path = f"torchkrr.{namespace}.{name}"
            hidden = (ROOT / "src" / path.replace(".", "/")).with_suffix(".py").exists()
            found[path] = f"{path}.{name}" if hidden and name != "checkpoint" else path
    return found


PUBLIC = _public_names()
