"""Pages that need no other file, light or dark as the reader's system."""

from __future__ import annotations

import base64
import html
import importlib.resources
import json
import os
import string
from collections.abc import Callable
from typing import Any

from .._files import replacing
from .figures import DARK, LIGHT, Look, svg_of


def write_page(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def filled(template: str, *, title: str, data: str, settings: Any, **parts: str) -> str:
    """A page: a template of the package with its parts, which are HTML, in the frame of all pages.

    Title and data, a sentence on what the page is about, are plain text; settings are shown as JSON at its end.
    """
    frame = {"title": title, "data": data, "settings": json.dumps(settings, indent=2)}
    escaped = {name: html.escape(text) for name, text in frame.items()}
    body = string.Template(_template(template)).substitute(parts)
    return string.Template(_template("page.html")).substitute(escaped, style=_template("style.css"), body=body)


def figure_tag(text: str, draw: Callable[[Look], Any]) -> str:
    """A figure inside the page, drawn for light and for dark; the text is for those who cannot see it."""
    light, dark = (_svg_uri(draw(look)) for look in (LIGHT, DARK))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{html.escape(text)}" src="{light}"></picture>'
    )


def _template(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _svg_uri(figure: Any) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg_of(figure).encode()).decode()
