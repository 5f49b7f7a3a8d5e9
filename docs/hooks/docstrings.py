"""Docstrings as griffe knows them: it calls a doctest "Examples:", and takes "Equivalent to:" for a box of prose."""

from __future__ import annotations

import re
from typing import Any

import griffe


class KnownSections(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^Equivalent to:$", "Equivalent to\n", text, flags=re.MULTILINE)
