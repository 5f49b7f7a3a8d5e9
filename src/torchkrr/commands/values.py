"""Columns of a table as numbers, text or labels; a value that does not fit is named with its row."""

from __future__ import annotations

import math
import pathlib
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ..errors import InputError

Array = np.ndarray[Any, Any]
# A label is a category written as a number: 3, 3.0 and "3" are the same.
Kind = Literal["number", "text", "label"]
WORDS = {"true": 1.0, "false": 0.0}


class Place(NamedTuple):
    """Where a part of a table comes from."""

    path: pathlib.Path
    first: int  # number of its first row; the row after the header is 1
    typed: bool  # whether the file says which columns are numbers, as Parquet does and CSV does not


CORRECT = "Correct the value, or leave it empty if it is missing."


def numbers(column: Any, name: str, place: Place, *, then: str = CORRECT) -> Array:
    """Float64, NaN where a value is missing; an error ends with what to do `then`."""
    values, strange = parsed(column, name, place)
    if strange:
        at, text = strange[0]
        raise InputError(
            f"Column {name!r} of {place.path} must hold numbers, but row {place.first + at} holds {text!r}. {then}"
        )
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise InputError(
            f"Column {name!r} of {place.path} holds an infinite value in row {place.first + infinite[0]}. "
            "Leave it empty if it is missing."
        )
    return values


def parsed(column: Any, name: str, place: Place) -> tuple[Array, list[tuple[int, str]]]:
    """Numbers, NaN where there is none, and the places and values of text that is none."""
    column = _decoded(column)
    kind = column.type
    if is_text(kind):
        try:
            cast = pa.compute.cast(pa.compute.utf8_trim_whitespace(column), pa.float64())
        except pa.ArrowInvalid:
            return _parsed_one_by_one(column.to_pylist())
        return _floats(cast), []
    if pa.types.is_boolean(kind):
        return _floats(pa.compute.cast(pa.compute.cast(column, pa.uint8()), pa.float64())), []
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return _floats(pa.compute.cast(column, pa.float64(), safe=False)), []
    raise InputError(
        f"Column {name!r} of {place.path} has the type {kind}. Turn it into numbers or text first, or leave it out."
    )


def texts(column: Any) -> Array:
    """Strings, `None` where a value is missing."""
    column = _decoded(column)
    found = np.empty(len(column), dtype=object)
    if pa.types.is_boolean(column.type):  # as the estimators write them, and pandas in CSV files; arrow writes them small
        found[:] = [None if one is None else str(one) for one in column.to_pylist()]
    else:
        found[:] = (column if is_text(column.type) else pa.compute.cast(column, pa.string())).to_pylist()
    return found


def labels(column: Any, name: str, place: Place) -> Array:
    """Floats where a value is a number, strings elsewhere, `None` where it is missing."""
    values, strange = parsed(column, name, place)
    found = np.empty(len(values), dtype=object)
    found[:] = [None if math.isnan(value) else value for value in values.tolist()]
    for at, text in strange:
        found[at] = text
    return found


def kind_of(column: Any, name: str, place: Place, *, categorical: bool) -> Kind:
    """What a column of training data holds.

    Text that is numbers throughout is numbers. Where most of it is, the rest is taken for mistakes, which is an error.
    """
    written = is_text(_decoded(column).type)
    if written and place.typed:
        return "text"
    values, strange = parsed(column, name, place)
    if categorical:
        return "text" if strange or (written and _padded(column)) else "label"
    if not strange:
        return "number"
    if int(np.isfinite(values).sum()) >= len(strange):
        at, text = strange[0]
        raise InputError(
            f"Column {name!r} of {place.path} holds numbers, but row {place.first + at} holds {text!r}. Correct the value, "
            f"leave it empty if it is missing, or name the column in --categorical."
        )
    return "text"


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _decoded(column: Any) -> Any:
    return pa.compute.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _floats(column: Any) -> Array:
    return np.array(column.to_numpy(), dtype=np.float64)


def _padded(column: Any) -> bool:
    """Whether numbers begin with zeros, as codes do: 02134 is not 2134."""
    return bool(pa.compute.any(pa.compute.match_substring_regex(_decoded(column), r"^\s*[-+]?0[0-9]")).as_py())


def _parsed_one_by_one(given: list[str | None]) -> tuple[Array, list[tuple[int, str]]]:
    values, strange = np.full(len(given), math.nan), []
    for at, text in enumerate(given):
        word = "" if text is None else text.strip()
        if not word:
            continue
        try:
            values[at] = WORDS[word.lower()] if word.lower() in WORDS else float(word.replace("_", "?"))
        except ValueError:
            strange.append((at, str(text)))
    return values, strange
