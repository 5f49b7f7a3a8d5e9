"""The smallest entries of each row, and rows in order: what search does once it has numbers.

On a CPU numpy selects and sorts several times faster than torch, and lets go of the interpreter while it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

GROUP = 4


def smallest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` smallest of each row of `scores` `(q, B)`, in no particular order, and their columns."""
    if _array(scores) is None:
        values, columns = scores.topk(count, largest=False, sorted=False)
        return values, columns
    columns = _smallest_columns(scores, count)
    return scores.gather(1, columns), columns


def _smallest_columns(scores: Tensor, count: int) -> Tensor:
    rows, width = scores.shape
    if count == width:
        return torch.arange(width).expand(rows, width)
    if width <= 3 * GROUP * count:
        return torch.from_numpy(np.argpartition(scores.numpy(), count - 1, axis=1))[:, :count]
    # The `count` smallest lie in the `count` groups whose own smallest entries are smallest. Column j is in group j modulo
    # the number of groups, so that minima are taken over whole stretches of memory.
    groups = width // GROUP
    grouped = scores[:, : GROUP * groups].unflatten(1, (GROUP, groups))
    best = _smallest_columns(grouped.amin(1), count)  # (q, count)
    columns = (best.unsqueeze(1) + groups * torch.arange(GROUP).unsqueeze(1)).flatten(1)
    left_over = torch.arange(GROUP * groups, width).expand(rows, -1)
    columns = torch.cat((columns, left_over), dim=1)
    return columns.gather(1, _smallest_columns(scores.gather(1, columns), count))


def sort_rows(rows: Tensor) -> Tensor:
    """Each row of integers in order."""
    array = _array(rows)
    return rows.sort(dim=1).values if array is None else torch.from_numpy(np.sort(array, axis=1))


def order_of(values: Tensor) -> Tensor:
    """The columns of each row of `values` `(q, K)` in order of value, equal ones by column."""
    array = _array(values)
    if array is None:
        return values.argsort(dim=1, stable=True)
    order = np.argsort(array, axis=1)
    ordered = np.take_along_axis(array, order, axis=1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    # A stable sort costs three times as much, and few rows need it.
    if tied.any():
        order[tied] = np.argsort(array[tied], axis=1, kind="stable")
    return torch.from_numpy(order)


def stable_order(values: Tensor) -> Tensor:
    """As `order_of`, for few rows or many ties."""
    array = _array(values)
    if array is None:
        return values.argsort(dim=1, stable=True)
    return torch.from_numpy(np.argsort(array, axis=1, kind="stable"))


def square_root(values: Tensor) -> Tensor:
    """torch's own wakes all threads for a handful of numbers, and waits for them."""
    array = _array(values)
    return values.sqrt() if array is None else torch.from_numpy(np.sqrt(array))


def _array(values: Tensor) -> np.ndarray[Any, Any] | None:
    """The same numbers for numpy; `None` on another device, and inside `torch.func`, whose tensors have no memory."""
    if values.device.type != "cpu":
        return None
    try:
        return values.numpy()
    except RuntimeError:
        return None
