r"""From a table to the points of a kernel.

Numbers stay what they are, with the median for missing values and a column that marks them. Up to 16 categories become a
column of zeros and ones each, more the mean of each output, drawn to the mean of all. Constants and copies are dropped.

A category that was not seen in training is all zeros, or the mean of all. The means that training rows get are computed
without their own fold, as for a row that is new: otherwise a rare category would carry the row's own value.

Rows that agree in every feature are one center: with ridge $\lambda/w_i$ for row $i$, copies of a point predict exactly
what one center with the sum $w$ of their weights, the mean of their values and ridge $\lambda/w$ predicts. So a weight of
two is a row given twice and a weight of zero is a row left out, repeated rows make nothing singular, and leaving one out
leaves its copies out too.

How far the values of copies lie apart is noise, whatever the function is: each center keeps the squares of what its values
differ from their mean, and how many of its rows are free to differ. Where the values of all copies agree, they may be one
observation written several times, or a weight, and none is free; unless there are so few points that nothing else is known.
Nor are rows free that are all of one group.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ..errors import InputError, ShapeError
from ..transforms import Compose, Transform
from ..tuning.leave_one_out import sample_rows

Array = np.ndarray[Any, Any]
FEW_LEVELS = 16
FOLDS = 5
PRIOR_ROWS = 10.0  # weight of the mean of all in that of a category
FEW_POINTS = 10
ROUNDING = 1e-12  # of values, in parts of the largest
SAMPLES = 2000  # centers, and rows, that are left out
LARGE = 1 << 24  # numbers
MEDIAN_ROWS = 10_000
COLUMNS_AT_ONCE = 64
STEPS = 32
KNOTS = 64


def is_frame(table: Any) -> bool:
    """Whether it has named columns, as frames of pandas and polars do."""
    return hasattr(table, "columns") and hasattr(table, "__getitem__") and not isinstance(table, np.ndarray)


def column(table: Any, at: int) -> Any:
    return table.iloc[:, at] if hasattr(table, "iloc") else table[:, at]


def holds_text(series: Any) -> bool:
    """Whether a column of a pandas or polars frame holds strings or categories by its dtype."""
    dtype = str(getattr(series, "dtype", None)).lower()
    return dtype == "str" or dtype.startswith(("string", "utf8", "categor", "enum", "object"))


def numbers(series: Any, name: str) -> Array:
    """A column as float64, NaN where a value is missing."""
    try:
        if hasattr(series, "iloc"):
            values: Array = series.to_numpy(dtype=np.float64, na_value=math.nan)
        else:  # to_numpy of polars keeps integers as integers, and nulls as objects
            values = np.asarray(series.to_list() if hasattr(series, "to_list") else series, dtype=np.float64)
    except (TypeError, ValueError):
        others = [value for value in _listed(series) if value is not None and not isinstance(value, (int, float, np.number))]
        raise InputError(
            f"Column {name} is taken as numeric but holds {repr(others[0]) if others else 'something else'}. Name it in "
            "categorical_features, give it a string or category dtype, or turn it into numbers first."
        ) from None
    if np.isinf(values).any():
        raise InputError(f"Input X contains infinity in column {name}. Replace it, by NaN if the value is missing.")
    return values


def is_complete(table: Any) -> bool:
    """Whether it is an array of numbers, none missing."""
    return (
        isinstance(table, np.ndarray)
        and table.dtype.kind == "f"
        and not any(np.isnan(block).any() for block in np.array_split(table, 1 + table.size // LARGE))
    )


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
    return np.array([*map(_level, _listed(series)), None], dtype=object)[:-1]


def _level(value: Any) -> str | None:
    # The NA of pandas before any comparison: what it compares to is NA again, and neither true nor false.
    if value is None or type(value).__name__ == "NAType" or value != value:
        return None
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (int, float, np.integer, np.floating)):
        return repr(float(value))
    return str(value)


def _listed(series: Any) -> list[Any]:
    return series.to_list() if hasattr(series, "to_list") else list(series)


@dataclass(frozen=True)
class Column:
    """How one column is encoded."""

    kind: Literal["number", "few", "many"]
    median: float = 0.0
    indicator: bool = False
    levels: tuple[str | None, ...] = ()
    means: tuple[tuple[float, ...], ...] = ()  # of each level, and last of all rows

    def encode(self, series: Any, name: str) -> Array:
        """`(n,)` to `(n, E)`."""
        if self.kind == "number":
            values = numbers(series, name)
            missing = np.isnan(values)
            filled = np.where(missing, self.median, values)
            return np.stack([filled, missing.astype(np.float64)], 1) if self.indicator else filled[:, None]
        codes = self.codes(levels(series))
        return np.eye(len(self.levels) + 1)[codes][:, :-1] if self.kind == "few" else np.array(self.means)[codes]

    def codes(self, given: Array) -> Array:
        """The place of each level among the known ones, and `len(self.levels)` for the others."""
        places = {level: place for place, level in enumerate(self.levels)}
        return np.array([places.get(level, len(places)) for level in given], dtype=np.int64)

    def means_of(self, given: Array, values: Array, weights: Array) -> Array:
        """Mean values of each level, and last of all rows, `(levels + 1, C)`."""
        codes = self.codes(given)
        everywhere = (weights[:, None] * values).sum(0) / weights.sum()
        sums, counts = np.zeros((len(self.levels) + 1, values.shape[1])), np.zeros(len(self.levels) + 1)
        np.add.at(sums, codes, weights[:, None] * values)
        np.add.at(counts, codes, weights)
        sums[-1], counts[-1] = 0.0, 0.0
        means: Array = (sums + PRIOR_ROWS * everywhere) / (counts + PRIOR_ROWS)[:, None]
        return means


@dataclass(frozen=True)
class TableEncoder:
    """What was learned from the columns of a training table; `encode` applies it."""

    columns: tuple[Column, ...]
    kept: tuple[int, ...]  # encoded columns that are neither constant nor copies

    def encode(self, table: Any) -> Array:
        """A table of the same columns to `(n, D)`: float64, or as an array of numbers without missing ones is."""
        if is_complete(table) and not any(learned.indicator for learned in self.columns):
            return table if len(self.kept) == table.shape[1] else table[:, list(self.kept)]  # type: ignore[no-any-return]
        blocks = [learned.encode(column(table, at), str(at)) for at, learned in enumerate(self.columns)]
        return np.concatenate(blocks, axis=1)[:, list(self.kept)]

    @staticmethod
    def from_state(state: dict[str, Any]) -> TableEncoder:
        """From the plain values that `dataclasses.asdict` gives."""
        columns = (c | {"levels": tuple(c["levels"]), "means": tuple(map(tuple, c["means"]))} for c in state["columns"])
        return TableEncoder(tuple(Column(**c) for c in columns), tuple(state["kept"]))


def fit_encoder(
    table: Any,
    values: Array,
    weights: Array,
    categorical: Any,
    *,
    names: Array | None = None,
    seed: int = 0,
    all_columns: bool = False,
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
    if is_complete(table) and not any(categorical_columns(table, categorical, names)):
        known = table if used.all() else table[used]
        medians = np.median(known[:MEDIAN_ROWS], axis=0)  # for rows to come
        kept = tuple(range(table.shape[1])) if all_columns else _informative(known)
        encoder = TableEncoder(tuple(Column("number", float(median)) for median in medians), kept)
        return encoder, encoder.encode(table)
    if all_columns:
        raise InputError("A model as the prior takes numbers alone: encode categories and fill missing values first.")
    fold = np.random.default_rng(seed).permutation(len(weights)) % min(FOLDS, len(weights))
    columns, blocks = [], []
    for at, is_category in enumerate(categorical_columns(table, categorical, names)):
        series = column(table, at)
        if is_category:
            given = levels(series)
            learned = _learn_levels(given, values, weights)
        else:
            present = numbers(series, str(at))[used]
            known = present[~np.isnan(present)]
            learned = Column("number", float(np.median(known)) if len(known) else 0.0, len(known) < len(present))
        if learned.kind == "many":
            blocks.append(_out_of_fold(learned, given, values, weights, fold))
        else:
            blocks.append(learned.encode(series, str(at)))
        columns.append(learned)
    encoded = np.concatenate(blocks, axis=1)
    kept = _informative(encoded[used])
    return TableEncoder(tuple(columns), kept), encoded[:, list(kept)]


def categorical_columns(table: Any, requested: Any, names: Array | None) -> list[bool]:
    """Which columns are categories: by dtype (`"from_dtype"`), none (`None`), or as a mask, indices or names say."""
    count = table.shape[1]
    if isinstance(requested, str):
        if requested != "from_dtype":
            raise InputError(
                f"categorical_features must be 'from_dtype', None, a mask, indices or names, got {requested!r}. "
                f"For one column give a list: [{requested!r}]."
            )
        return [is_frame(table) and holds_text(column(table, at)) for at in range(count)]
    given = np.asarray([] if requested is None else requested)
    chosen = given.tolist()
    if given.dtype.kind == "b" and given.size:
        if given.shape != (count,):
            raise InputError(f"categorical_features as a mask must have one entry for each of the {count} columns of X.")
        return chosen  # type: ignore[no-any-return]
    if given.dtype.kind in "iu" and given.size:
        if given.min() < 0 or given.max() >= count:
            raise InputError(f"categorical_features must be indices between 0 and {count - 1}, got {chosen}.")
    elif given.size:
        if names is None:
            raise InputError("categorical_features gives names, but X has none. Pass a frame, or give indices.")
        missing = [name for name in chosen if name not in names]
        if missing:
            raise InputError(f"categorical_features names {missing}, which X does not have. Its columns: {list(names)}.")
        chosen = [list(names).index(name) for name in chosen]
    return [at in chosen for at in range(count)]


def _learn_levels(given: Array, values: Array, weights: Array) -> Column:
    used = set(given[weights > 0])
    known: tuple[str | None, ...] = (*sorted(used - {None}), *([None] if None in used else []))
    if len(known) <= FEW_LEVELS:
        return Column("few", levels=known)
    means = Column("many", levels=known).means_of(given, values, weights)
    return Column("many", levels=known, means=tuple(map(tuple, means.tolist())))


def _out_of_fold(learned: Column, given: Array, values: Array, weights: Array, fold: Array) -> Array:
    codes = learned.codes(given)
    encoded = np.empty((len(given), values.shape[1]))
    for one in range(int(fold.max()) + 1):
        inside = fold == one
        outside = np.where(inside, 0.0, weights)
        means = learned.means_of(given, values, outside) if outside.sum() > 0 else np.array(learned.means)
        encoded[inside] = means[codes[inside]]
    return encoded


def _informative(encoded: Array) -> tuple[int, ...]:
    """Columns that vary and differ from those before them; the first one if none does."""
    seen: set[bytes] = set()
    kept = []
    for start in range(0, encoded.shape[1], COLUMNS_AT_ONCE):
        for at, values in enumerate(np.ascontiguousarray(encoded[:, start : start + COLUMNS_AT_ONCE].T) + 0.0, start):
            digest = hashlib.blake2b(values, digest_size=16).digest()  # minus zero is zero by the addition
            if (values != values[0]).any() and digest not in seen:
                seen.add(digest)
                kept.append(at)
    return tuple(kept) or (0,)


class Rows(NamedTuple):
    """Training rows, in the order in which they were given."""

    points: Tensor  # (n, D)
    values: Tensor  # (n, C)
    weights: Tensor  # (n,) float64
    groups: Tensor  # (n,) int64: rows of one group are left out together; negative: alone


class Groups(NamedTuple):
    """Centers that are left out together."""

    of_center: Tensor  # (N,)
    several: tuple[Tensor, ...]  # the centers of each group that has more than one
    largest: int


class Centers(NamedTuple):
    """The different points, in the order of their digests, so that nothing depends on the order of the rows."""

    points: Tensor  # (N, D)
    values: Tensor  # (N, C) float64, weighted means
    weights: Tensor  # (N,) float64, sums
    of_row: Tensor  # (n,) the center of each row, -1 for rows of weight zero
    scatter: Tensor  # (N, C) float64, weighted squares of the differences between the values and their mean
    freedom: Tensor  # (N,) float64, rows but one

    def some(self, which: Tensor | slice) -> Centers:
        """Some of the centers, which rows they are of forgotten."""
        points, values, weights = self.points[which], self.values[which], self.weights[which]
        return Centers(points, values, weights, self.of_row[:0], self.scatter[which], self.freedom[which])


class Sample(NamedTuple):
    """Centers to leave out, and some of the rows of those that stand for several."""

    which: Tensor  # (n,)
    centers: Centers
    values: Tensor  # (m, C) of rows
    weights: Tensor  # (m,)
    of_row: Tensor  # (m,) places in `which`
    counts: Tensor  # (m,) how many rows each stands for; together the freedom of the centers


def different_points(rows: Rows) -> Centers:
    used = rows.weights > 0
    whole = bool(used.all())
    points = (rows.points if whole else rows.points[used]).numpy()
    first, inverse = _first_of_each(points)
    if whole and len(first) == len(points) and points.size > LARGE:  # all different: a copy would double the memory
        different, index = rows.points, torch.arange(len(points))
    else:
        different, index = torch.from_numpy(points[first]), torch.from_numpy(inverse)
    count, weights, values = len(different), rows.weights[used], rows.values[used].double()
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, index, weights)
    totals = torch.zeros(count, values.shape[1], dtype=torch.float64)
    means = totals.index_add(0, index, values * weights.unsqueeze(1)) / sums.unsqueeze(1)
    of_row = torch.full((len(rows.points),), -1, dtype=torch.int64)
    of_row[used] = index
    apart = values - means[index]
    # What is left of equal values after rounding is no difference.
    apart = torch.where(apart.abs() > ROUNDING * values.abs().amax(0), apart, 0.0)
    scatter = totals.index_add(0, index, weights.unsqueeze(1) * apart.square())
    groups = rows.groups[used]
    one_group = (groups >= 0) & (groups == groups[torch.from_numpy(first)][index])
    # Rows of one group do not vouch for each other, so none of them is free.
    vouched = torch.zeros_like(sums).index_add_(0, index, (~one_group).double()) > 0
    scatter = scatter * vouched.unsqueeze(1)
    is_noise_known = count < FEW_POINTS or bool(scatter.any())
    freedom = (sums - 1).clamp_min(0) * vouched if is_noise_known else torch.zeros_like(sums)
    return Centers(different, means, sums, of_row, scatter, freedom)


def _first_of_each(points: Array) -> tuple[Array, Array]:
    """The first row of each different point, in the order of their digests, and for each row which of them it is."""
    digests = np.array([hashlib.blake2b(row + 0.0, digest_size=16).digest() for row in points], dtype="S16")  # no minus zero
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def groups_of(rows: Rows, centers: Centers) -> Groups | None:
    """What is left out together: a center goes with the others of its group, and with the groups of its copies."""
    used = rows.weights > 0
    groups, of_row = rows.groups[used], centers.of_row[used]
    grouped = groups >= 0
    if not bool(grouped.any()):
        return None
    count = len(centers.points)
    _, names = torch.unique(groups[grouped], return_inverse=True)
    size = count + int(names.max()) + 1
    links = coo_array((np.ones(len(names)), (of_row[grouped].numpy(), (count + names).numpy())), shape=(size, size))
    _, parts = connected_components(links, directed=False)
    of_center = torch.from_numpy(parts[:count].astype(np.int64))
    order = of_center.argsort(stable=True)
    sizes = of_center.bincount()
    several = tuple(part for part in order.split(sizes[sizes > 0].tolist()) if len(part) > 1)
    return Groups(of_center, several, max(map(len, several))) if several else None


def sample_of(rows: Rows, centers: Centers, seed: int) -> Sample:
    """Some of the centers, and some rows of those whose copies tell about the noise; at most 2000 each."""
    which = sample_rows(len(centers.points), SAMPLES, seed, torch.device("cpu"))
    place = torch.full((len(centers.points) + 1,), -1, dtype=torch.int64)  # the last for rows of weight zero
    place[which] = torch.arange(len(which))
    repeated = torch.cat((centers.freedom > 0, torch.zeros(1, dtype=torch.bool)))
    known = ((place[centers.of_row] >= 0) & repeated[centers.of_row]).nonzero().squeeze(1)
    chosen = known[sample_rows(len(known), SAMPLES, seed, torch.device("cpu"))]
    of_row, weights, own = place[centers.of_row[chosen]], rows.weights[chosen], centers.some(which)
    counts = weights * own.freedom[of_row] / own.weights[of_row] * (len(known) / max(1, len(chosen)))
    return Sample(which, own, rows.values[chosen].double(), weights, of_row, counts)


class Staircase(Transform):
    r"""One coordinate per step between quantiles of each feature; sums of absolute differences become squared distances.

    With knots $t_0 < t_1 < \dots$ a value becomes $\sqrt{t_{j+1}-t_j}$ times the part of each step below it, so that
    $|e(a) - e(b)|^2 = |a - b|$ between knots. The Gaussian profile on it is the Laplacian kernel of scikit-learn,
    $\prod_d e^{-|a_d-b_d|/(2\ell_d^2)}$. Like a tree it follows single features, and it is flat outside the data.

    Shape:
        - `(*, D)` to `(*, E)`, with at most 32 columns for each feature

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> e = Staircase().fit(x)(x)
        >>> torch.cdist(e, e).square().round(decimals=4)[0]
        tensor([0., 1., 3.])
    """

    statistics = ("steps",)

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        steps = []
        for feature, values in enumerate(x.T):
            knots = _knots(values, STEPS + 1)
            if len(knots) > 1:
                low, width = knots[:-1], knots.diff()
                steps.append(torch.stack((low, width, torch.full_like(low, feature))))
        if not steps:  # nothing varies: one step that every point is on
            steps.append(x.new_tensor([[0.0], [1.0], [0.0]]))
        return (torch.cat((*steps, x.new_tensor([[0.0], [1.0], [x.shape[1]]])), dim=1),)  # the last column keeps D

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        steps = statistics[0]
        if x.shape[-1] != int(steps[2, -1]):
            raise ShapeError(f"x has {x.shape[-1]} features but Staircase was fitted on {int(steps[2, -1])}.")
        low, width, feature = steps[0, :-1], steps[1, :-1], steps[2, :-1].long()
        return ((x[..., feature] - low) / width).clamp(0, 1) * width.sqrt()

    def groups(self) -> Tensor:
        """The feature that each coordinate belongs to, `(E,)`."""
        return self.get_buffer("steps")[2, :-1].long()


class RankTransform(Transform):
    """The share of fitted values below each value, between quantiles by interpolation, at zero mean and unit variance."""

    statistics = ("knots", "levels")

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        knots, shares = [], []
        for values in x.T:
            places = _knots(values, KNOTS)
            ordered = values.sort().values
            below = torch.searchsorted(ordered, places) + torch.searchsorted(ordered, places, right=True)
            share = below.to(x.dtype) / (2 * len(values))
            own = _interpolate(values, places, share)
            share = (share - own.mean()) / own.std(correction=0).clamp_min(1e-12)
            pad = KNOTS - len(places)
            knots.append(torch.cat((places, places[-1:].expand(pad))))
            shares.append(torch.cat((share, share[-1:].expand(pad))))
        return torch.stack(knots), torch.stack(shares)  # (D, KNOTS) each

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        knots, shares = statistics
        if x.shape[-1] != len(knots):
            raise ShapeError(f"x has {x.shape[-1]} features but RankTransform was fitted on {len(knots)}.")
        columns = x.reshape(-1, len(knots)).mT  # (D, n)
        return _interpolate(columns, knots, shares).mT.reshape(x.shape)


class Concatenate(Compose):
    """Several transforms of the same points, their columns side by side."""

    def fit(self, x: Tensor) -> Concatenate:
        for transform in self.transforms:
            transform.fit(x)  # type: ignore[operator]
        return self

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        return torch.cat([transform(x) for transform in self.transforms], dim=-1)


class SelectColumns(Transform):
    """Some of the columns only; fitted, those that vary."""

    statistics = ("kept",)

    @classmethod
    def where(cls, mask: Tensor) -> SelectColumns:
        """Those where the mask `(E,)` is true."""
        columns = cls()
        columns.set_statistics(mask.double())
        return columns

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        return ((x.amax(0) > x.amin(0)).double(),)

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        return x.index_select(-1, statistics[0].nonzero().squeeze(1))


def _knots(values: Tensor, count: int) -> Tensor:
    """At most `count` different values of a column, all of them or its quantiles, in order."""
    different = values.unique()
    if len(different) <= count:
        return different  # type: ignore[no-any-return]
    ordered = values.sort().values
    places = torch.linspace(0, len(ordered) - 1, count, dtype=torch.float64).round().long()
    return ordered[places].unique()  # type: ignore[no-any-return]


def _interpolate(x: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    """Piecewise linear through `(knots, heights)`, constant outside; `(*, n)` by `(*, K)`."""
    last = knots.shape[-1] - 1
    right = torch.searchsorted(knots.contiguous(), x.contiguous()).clamp_(min(1, last), last)
    left = (right - 1).clamp_min_(0)
    start, below = knots.gather(-1, left), heights.gather(-1, left)
    width, rise = knots.gather(-1, right) - start, heights.gather(-1, right) - below
    share = (x - start).div_(width.clamp_min_(torch.finfo(x.dtype).tiny)).clamp_(0, 1)
    return share.mul_(rise).add_(below)
