"""Target columns, as numbers or as classes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ..errors import InputError
from .values import Array, Place, is_text, numbers, parsed, texts

Task = Literal["regression", "classification"]


def task_of(column: Any, name: str, place: Place) -> Task:
    """Text, true and false, and just two whole numbers are classes; other numbers are not."""
    values, strange = parsed(column, name, place)
    if strange and int(np.isfinite(values).sum()) < len(strange):
        return "classification"
    different = np.unique(values[np.isfinite(values)])
    if strange or len(different) != 2 or not (different == np.round(different)).all():
        return "regression"
    return "classification"


def target_numbers(column: Any, name: str, place: Place, *, one_of_several: bool = False) -> Array:
    then = "Correct the value, or remove the row." + (" A target of classes is fitted alone." if one_of_several else "")
    values = numbers(column, name, place, then=then)
    _all_known(np.isnan(values), name, place)
    return values


def target_labels(column: Any, name: str, place: Place, classes: Array | None = None) -> Array:
    """Labels as they are written: whole numbers as such, all else as text; or as the known classes are."""
    text = texts(column)
    _all_known(np.array([label is None for label in text]), name, place)
    if classes is None:
        values, strange = parsed(column, name, place)
        numeric = not strange and not _words(column) and bool((values == np.round(values)).all())
        return values.astype(np.int64) if numeric else text
    given = numbers(column, name, place) if classes.dtype.kind in "iufb" else text
    # Before the cast, which cuts 1.7 down to the class 1, and "catfish" to "cat".
    unknown = ~np.isin(given, classes)
    if unknown.any():
        at = int(np.flatnonzero(unknown)[0])
        raise InputError(
            f"Target {name!r} of {place.path} holds the class {text[at]!r} in row {place.first + at}, which the model "
            f"does not know. Its classes: {', '.join(map(str, classes.tolist()))}."
        )
    return given.astype(classes.dtype)


def _words(column: Any) -> bool:
    if pa.types.is_boolean(column.type):
        return True
    return is_text(column.type) and any(str(one).strip().lower() in ("true", "false") for one in column.unique().to_pylist())


def _all_known(missing: Array, name: str, place: Place) -> None:
    if missing.any():
        raise InputError(
            f"Target {name!r} of {place.path} is missing in row {place.first + int(np.flatnonzero(missing)[0])}. "
            "Remove the rows without a target first."
        )
