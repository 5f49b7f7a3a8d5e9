"""From the weights of centers to those of training rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .columns import Array
from .rows import Centers, Rows


def rows_behind(
    blocks: Iterable[tuple[Array, Array]], rows: Rows, centers: Centers, most: int | None
) -> tuple[Array, Array]:
    """Rows and weights of each prediction, largest weight first, `(Q, R)` each; a weight of zero where there are fewer.

    Args:
        blocks: for some queries after others, centers `(q, M)`, each once, and their weights.
        most: how many rows of each prediction; `None` is all.
    """
    of_row = centers.of_row.numpy()
    order = np.argsort(of_row, kind="stable")
    order = order[of_row[order] >= 0]  # rows sorted by their center
    sizes = np.bincount(of_row[order], minlength=len(centers.points))
    starts = np.cumsum(sizes) - sizes
    shares = rows.weights.numpy()[order] / centers.weights.numpy()[of_row[order]]
    chosen = [_largest(*_spread(*block, sizes, starts, order, shares), most) for block in blocks]
    width = max(block.shape[1] for block, _ in chosen)
    filled = [np.pad(block, ((0, 0), (0, width - block.shape[1])), mode="edge") for block, _ in chosen]
    weights = [np.pad(block, ((0, 0), (0, width - block.shape[1]))) for _, block in chosen]
    found, total = np.concatenate(filled), np.concatenate(weights)
    # The first row again, with no weight.
    return np.where(total == 0, found[:, :1], found).astype(np.int64), total


def _spread(indices: Array, weights: Array, sizes: Array, starts: Array, order: Array, shares: Array) -> tuple[Array, Array]:
    """Each center stands for its rows, one after another: rows and weights `(q, W)`, zeros at the end."""
    if sizes.max() == 1:
        places = starts[indices]
        return order[places], weights * shares[places]
    repeats = sizes[indices]  # (q, M)
    ends = repeats.cumsum(1)
    width = int(ends[:, -1].max())
    inside = np.arange(width) < ends[:, -1:]  # (q, W)
    # Rows of the block one after another; place in the center is what is left after those before it.
    flat = repeats.reshape(-1)
    first = np.repeat(starts[indices].reshape(-1) - (np.cumsum(flat) - flat), flat)
    places = first + np.arange(flat.sum())
    spread, weight = np.zeros((len(indices), width), dtype=np.int64), np.zeros((len(indices), width))
    spread[inside] = order[places]
    weight[inside] = np.repeat(weights.reshape(-1), flat) * shares[places]
    return spread, weight


def _largest(rows: Array, weights: Array, most: int | None) -> tuple[Array, Array]:
    count = int((weights != 0).sum(1).max())
    best = np.argsort(-np.abs(weights), axis=1, kind="stable")[:, : max(1, count if most is None else min(most, count))]
    return np.take_along_axis(rows, best, 1), np.take_along_axis(weights, best, 1)
