r"""From a table of numbers and categories to points.

| column | becomes |
|---|---|
| numbers | itself, missing values replaced by the median, and a column of ones there if some were missing in training |
| up to 16 categories | one column of zeros and ones per category; a missing value is a category of its own |
| more categories | the mean of each output over the rows of the category, drawn to the mean of all |
| constant, or a copy of a column before | nothing |

A category that was not seen in training is all zeros, or the mean of all. The means that training rows get are computed
without their own fold, as for a row that is new: otherwise a rare category would carry the row's own value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import InputError
from .columns import Array, column, is_frame, levels, names_strings, numbers, width

FEW_LEVELS = 16
FOLDS = 5
PRIOR_ROWS = 10.0  # weight of the mean of all in that of a category
Kind = Literal["number", "few", "many"]


@dataclass(frozen=True)
class Column:
    """How one column is encoded."""

    kind: Kind
    median: float = 0.0
    indicator: bool = False
    levels: tuple[str | None, ...] = ()
    means: tuple[tuple[float, ...], ...] = ()  # of each level, and last of all rows


@dataclass(frozen=True)
class TableEncoder:
    """What was learned from the columns of a training table; `encode` applies it."""

    columns: tuple[Column, ...]
    kept: tuple[int, ...]  # encoded columns that are neither constant nor copies

    def encode(self, table: Any) -> Array:
        """A table of the same columns to `(n, D)` float64."""
        parts = [encode_column(at, column(table, number), number) for number, at in enumerate(self.columns)]
        return np.concatenate(parts, axis=1)[:, list(self.kept)]

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        columns = [
            {
                "kind": c.kind,
                "median": c.median,
                "indicator": c.indicator,
                "levels": list(c.levels),
                "means": [list(m) for m in c.means],
            }
            for c in self.columns
        ]
        return {"columns": columns, "kept": list(self.kept)}

    @staticmethod
    def from_state(state: dict[str, Any]) -> TableEncoder:
        columns = tuple(
            Column(c["kind"], c["median"], c["indicator"], tuple(c["levels"]), tuple(tuple(m) for m in c["means"]))
            for c in state["columns"]
        )
        return TableEncoder(columns, tuple(state["kept"]))


def fit_encoder(
    table: Any, values: Array, weights: Array, categorical: Sequence[bool], *, seed: int = 0
) -> tuple[TableEncoder, Array]:
    """Learn the encoding of a table, and encode it, out of fold where outputs are used.

    Shape:
        - table: `(n, D)`; values: `(n, C)`; weights: `(n,)`, of which zeros are not learned from; encoded: `(n, E)`

    Example:
        >>> table = np.array([[1.0, 0.0], [2.0, 1.0], [np.nan, 0.0]])
        >>> encoder, encoded = fit_encoder(table, np.zeros((3, 1)), np.ones(3), [False, True])
        >>> encoded
        array([[1. , 0. , 1. , 0. ],
               [2. , 0. , 0. , 1. ],
               [1.5, 1. , 1. , 0. ]])
    """
    used = weights > 0
    fold = np.random.default_rng(seed).permutation(len(weights)) % min(FOLDS, len(weights))
    columns, parts = [], []
    for at, is_category in enumerate(categorical):
        given = column(table, at)
        if not is_category:
            learned = _number(numbers(given, str(at)), used)
            parts.append(encode_column(learned, given, at))
        else:
            found = levels(given)
            learned = _category(found, values, weights)
            parts.append(
                _out_of_fold(found, learned, values, weights, fold)
                if learned.kind == "many"
                else encode_column(learned, given, at)
            )
        columns.append(learned)
    encoded = np.concatenate(parts, axis=1)
    kept = _informative(encoded[used])
    return TableEncoder(tuple(columns), kept), encoded[:, list(kept)]


def categorical_columns(table: Any, wanted: Any, names: Array | None) -> list[bool]:
    """Which columns are categories: by dtype (`"from_dtype"`), none (`None`), or as a mask, indices or names say."""
    count = width(table)
    if wanted is None:
        return [False] * count
    if isinstance(wanted, str):
        if wanted != "from_dtype":
            raise InputError(
                f"categorical_features must be 'from_dtype', None, a mask, indices or names, got {wanted!r}. "
                f"For one column give a list: [{wanted!r}]."
            )
        return [is_frame(table) and names_strings(column(table, at)) for at in range(count)]
    given = np.asarray(wanted)
    if given.size == 0:
        return [False] * count
    if given.dtype.kind == "b":
        if given.shape != (count,):
            raise InputError(f"categorical_features as a mask must have one entry for each of the {count} columns of X.")
        return [bool(one) for one in given]
    if given.dtype.kind in "iu":
        if given.min() < 0 or given.max() >= count:
            raise InputError(f"categorical_features must be indices between 0 and {count - 1}, got {given.tolist()}.")
        chosen = set(given.tolist())
    else:
        if names is None:
            raise InputError("categorical_features gives names, but X has none. Pass a frame, or give indices.")
        missing = [name for name in given.tolist() if name not in set(names)]
        if missing:
            raise InputError(f"categorical_features names {missing}, which X does not have. Its columns: {list(names)}.")
        chosen = {list(names).index(name) for name in given.tolist()}
    return [at in chosen for at in range(count)]


def encode_column(learned: Column, given: Any, at: int) -> Array:
    if learned.kind == "number":
        values = numbers(given, str(at))
        missing = np.isnan(values)
        filled = np.where(missing, learned.median, values)
        return np.stack([filled, missing.astype(np.float64)], 1) if learned.indicator else filled[:, None]
    codes = _codes(levels(given), learned.levels)
    if learned.kind == "few":
        return np.eye(len(learned.levels) + 1)[codes][:, :-1]
    return np.array(learned.means)[codes]


def _codes(found: Array, known: Sequence[str | None]) -> Array:
    """The place of each level among the known ones, and `len(known)` for the others."""
    places = {level: place for place, level in enumerate(known)}
    return np.array([places.get(level, len(places)) for level in found], dtype=np.int64)


def _number(values: Array, used: Array) -> Column:
    known = values[used & ~np.isnan(values)]
    return Column("number", float(np.median(known)) if len(known) else 0.0, bool(np.isnan(values[used]).any()))


def _category(found: Array, values: Array, weights: Array) -> Column:
    used = weights > 0
    different = sorted({level for level in found[used] if level is not None})
    known: tuple[str | None, ...] = (*different, *([None] if any(level is None for level in found[used]) else []))
    if len(known) <= FEW_LEVELS:
        return Column("few", levels=known)
    return Column("many", levels=known, means=tuple(map(tuple, _means(found, known, values, weights).tolist())))


def _means(found: Array, known: tuple[str | None, ...], values: Array, weights: Array) -> Array:
    """Of each level, and last of all rows, `(levels + 1, C)`."""
    codes = _codes(found, known)
    everywhere = (weights[:, None] * values).sum(0) / weights.sum()
    sums = np.zeros((len(known) + 1, values.shape[1]))
    counts = np.zeros(len(known) + 1)
    np.add.at(sums, codes, weights[:, None] * values)
    np.add.at(counts, codes, weights)
    sums[-1], counts[-1] = 0.0, 0.0
    means: Array = (sums + PRIOR_ROWS * everywhere) / (counts + PRIOR_ROWS)[:, None]
    return means


def _out_of_fold(found: Array, learned: Column, values: Array, weights: Array, fold: Array) -> Array:
    codes = _codes(found, learned.levels)
    encoded = np.empty((len(found), values.shape[1]))
    for one in range(int(fold.max()) + 1):
        inside = fold == one
        outside = np.where(inside, 0.0, weights)
        means = _means(found, learned.levels, values, outside) if outside.sum() > 0 else np.array(learned.means)
        encoded[inside] = means[codes[inside]]
    return encoded


def _informative(encoded: Array) -> tuple[int, ...]:
    """Columns that vary and differ from those before them; the first one if none does."""
    seen: set[bytes] = set()
    kept = []
    for at in range(encoded.shape[1]):
        values = np.ascontiguousarray(encoded[:, at]) + 0.0
        if (values == values[0]).all() or values.tobytes() in seen:
            continue
        seen.add(values.tobytes())
        kept.append(at)
    return tuple(kept) or (0,)
