"""Pages that need no other file, light or dark as the reader's system."""

from __future__ import annotations

import base64
import html
import importlib.resources
import os
import string
from collections.abc import Callable
from typing import Any

from .._files import replacing
from .figures import DARK, LIGHT, Look, svg_of


def write_page(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def filled(template: str, **parts: str) -> str:
    """A template of the package with its parts, which are HTML, and the style of all pages."""
    return string.Template(_template(template)).substitute(style=_template("style.css"), **parts)


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
