"""Which columns a model takes, and parts of a table as it takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ..errors import InputError
from .tables import Table
from .values import Array, Kind, Place, kind_of, labels, numbers, texts


class Feature(NamedTuple):
    name: str
    kind: Kind


class Features(NamedTuple):
    """The columns of a model, in its order."""

    all: tuple[Feature, ...]
    named: bool = True  # whether the model knows their names

    @property
    def names(self) -> list[str]:
        return [feature.name for feature in self.all]

    @property
    def categorical(self) -> list[str]:
        return [feature.name for feature in self.all if feature.kind != "number"]

    def frame(self, part: Any, place: Place) -> Any:
        """What the model takes, from a part of a table."""
        columns = {name: as_kind(part.column(name), name, kind, place) for name, kind in self.all}
        frame = pd.DataFrame(columns)
        return frame if self.named else frame.to_numpy()

    def described(self) -> str:
        """Such as `3 columns of numbers, 1 of categories (color)`."""
        categorical = self.categorical
        found = f"{len(self.all) - len(categorical)} columns of numbers"
        return found + (f", {len(categorical)} of categories ({', '.join(categorical)})" if categorical else "")


def as_kind(column: Any, name: str, kind: Kind, place: Place) -> Array:
    if kind == "number":
        return numbers(column, name, place)
    return texts(column) if kind == "text" else labels(column, name, place)


def features_of_model(model: Any, table: Table, *, other: Collection[str] = ()) -> Features:
    """The columns that a fitted model needs; without names of its own, all but the `other` ones, in order."""
    kinds = [_kind(column) for column in model.encoder_.columns]
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        table.require([str(name) for name in names], "which the model was fitted with")
        return Features(tuple(Feature(str(name), kind) for name, kind in zip(names, kinds, strict=True)))
    left = [name for name in table.data if name not in other]
    if len(left) != len(kinds):
        raise InputError(
            f"The model was fitted without column names, on {len(kinds)} columns; {table.path} has {len(left)} besides "
            f"{', '.join(other) or 'none'}. Keep those columns alone, in the order of the fit."
        )
    return Features(tuple(Feature(name, kind) for name, kind in zip(left, kinds, strict=True)), named=False)


def features_of_table(names: Sequence[str], whole: Any, categorical: Collection[str], place: Place) -> Features:
    """What the named columns of training data hold."""
    found = ((name, kind_of(whole.column(name), name, place, categorical=name in categorical)) for name in names)
    return Features(tuple(Feature(name, kind) for name, kind in found))


def _kind(column: Any) -> Kind:
    if column.kind == "number":
        return "number"
    return "label" if all(level is None or _is_number(level) for level in column.levels) else "text"


def _is_number(level: str) -> bool:
    """Whether the estimator got a number for this level."""
    try:
        return repr(float(level)) == level
    except ValueError:
        return False
