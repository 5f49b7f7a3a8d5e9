"""Columns of a table, whatever it came in: arrays, pandas or polars frames.

A categorical column is an array of strings with `None` where a value is missing; a numeric one is float with NaN there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import InputError

Array = np.ndarray[Any, Any]


def is_frame(table: Any) -> bool:
    """Whether it has named columns, as frames of pandas and polars do."""
    return hasattr(table, "columns") and hasattr(table, "__getitem__") and not isinstance(table, np.ndarray)


def width(table: Any) -> int:
    return len(table.columns) if is_frame(table) else np.asarray(table).shape[1]


def column(table: Any, at: int) -> Any:
    if not is_frame(table):
        return np.asarray(table)[:, at]
    return table[table.columns[at]] if _is_polars(table) else table.iloc[:, at]


def names_strings(series: Any) -> bool:
    """Whether a column of a frame holds strings or categories by its dtype."""
    dtype = getattr(series, "dtype", None)
    if _is_polars(series):
        return str(dtype).split("(")[0] in ("String", "Utf8", "Categorical", "Enum", "Object")
    return str(dtype) in ("category", "object", "str") or str(dtype).startswith("string")


def numbers(series: Any, name: str) -> Array:
    """A column as float64, NaN where a value is missing."""
    try:
        if _is_polars(series):
            # to_numpy alone keeps integers as integers, and nulls as objects.
            values = np.array([math.nan if value is None else float(value) for value in series.to_list()], dtype=np.float64)
        elif hasattr(series, "to_numpy"):
            values = series.to_numpy(dtype=np.float64, na_value=math.nan)
        else:
            values = np.asarray(series, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"Column {name} is taken as numeric but holds {_example(series)}. Name it in categorical_features, give it a "
            "string or category dtype, or turn it into numbers first."
        ) from None
    if np.isinf(values).any():
        raise InputError(f"Input X contains infinity in column {name}. Replace it, by NaN if the value is missing.")
    return values


def first_text(values: Any) -> str | None:
    """The first text in a column or an array that is not a number, if any is."""
    for value in np.asarray(values, dtype=object).ravel().tolist():
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                return value
    return None


def levels(series: Any) -> Array:
    """A column as strings, `None` where a value is missing; equal numbers give equal strings, whatever their dtype."""
    given = series.to_list() if hasattr(series, "to_list") else list(series)
    found = np.empty(len(given), dtype=object)
    for at, value in enumerate(given):
        found[at] = _level(value)
    return found


def _level(value: Any) -> str | None:
    # The NA of pandas before any comparison: what it compares to is NA again, and neither true nor false.
    if value is None or type(value).__name__ == "NAType" or value != value:
        return None
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (int, float, np.integer, np.floating)):
        return repr(float(value))
    return str(value)


def _example(series: Any) -> str:
    given = series.to_list() if hasattr(series, "to_list") else list(series)
    strange = [value for value in given if value is not None and not isinstance(value, (int, float, np.number))]
    return repr(strange[0]) if strange else "something else"


def _is_polars(thing: Any) -> bool:
    return type(thing).__module__.split(".")[0] == "polars"
