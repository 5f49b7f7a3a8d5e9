"""Formulas become MathML when a page is built: no script, no font and no network is needed to show them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# Commands that latex2mathml does not know, or makes brackets of that few fonts can draw.
INSTEAD = {
    r"\\arg\b": r"\\operatorname{arg}",
    r"\\big[lr]?\b": "",
    r"\\Big[lr]?\b(?=\()": r"\\left",
    r"\\Big[lr]?\b(?=\))": r"\\right",
}
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)


def on_post_page(output: str, **_: Any) -> str:
    return FORMULA.sub(_as_mathml, output)


def _as_mathml(found: re.Match[str]) -> str:
    block, tex = found[2] == "[", html.unescape(found[3]).strip()
    for command, other in INSTEAD.items():
        tex = re.sub(command, other, tex)
    formula = convert(tex, display="block" if block else "inline")
    if "<mi>\\" in formula:
        raise PluginError(f"This formula has a command that cannot be shown: {tex}")
    return f'<div class="formula">{formula}</div>' if block else formula
