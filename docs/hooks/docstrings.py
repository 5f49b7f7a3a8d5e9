"""Docstrings and signatures as griffe knows them.

It calls a doctest "Examples:", and takes "Equivalent to:" for a box of prose. Of `**options` that functions share it shows
no more than the name, where `help` shows each of them.
"""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import griffe


class KnownSections(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^Equivalent to:$", "Equivalent to\n", text, flags=re.MULTILINE)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if "options" not in func.parameters or "Unpack[" not in str(func.parameters["options"].annotation):
            return
        del func.parameters["options"]
        function: Any = pydoc.locate(func.path)
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in func.parameters:
                default, kind = repr(parameter.default), griffe.ParameterKind.keyword_only
                func.parameters.add(griffe.Parameter(name, annotation=parameter.annotation, kind=kind, default=default))
