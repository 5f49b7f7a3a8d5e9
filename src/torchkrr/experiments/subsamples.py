"""Label budgets: which rows of the training data a readout may see, the same for every readout."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError


def stratified_order(labels: Tensor, seed: int) -> Tensor:
    r"""A random order of the rows whose every beginning has the classes in their shares, up to a row or two.

    One row of each class comes first, whatever its share, so that none is missing. The other members of a class, shuffled,
    are spread evenly: the $i$-th of $n$ has the place $(i+u)/n$ with one random $u$ in $[0, 1)$ for each class, and the
    places are sorted. A budget is a beginning of the order, so a larger budget of the same seed contains the smaller ones.

    Shape:
        - labels: `(N,)` int64; output: `(N,)` int64

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> order = stratified_order(labels, seed=0)
        >>> labels[order].view(4, 2).sum(1)  # one of each class in each pair
        tensor([1, 1, 1, 1])
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator)
    places = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        members = shuffled[labels[shuffled] == label]
        steps = torch.arange(len(members), dtype=torch.float64)
        places[members] = (steps + torch.rand(1, generator=generator, dtype=torch.float64)) / len(members)
        places[members[0]] = -1.0
    return shuffled[places[shuffled].argsort(stable=True)]


def budget_rows(labels: Tensor, budget: int | None, seed: int) -> Tensor:
    """The rows of a budget, `(budget,)`; all of them, in their own order, for `None` or a budget of as many.

    Example:
        >>> budget_rows(torch.tensor([1, 0, 1]), None, seed=3)
        tensor([0, 1, 2])
    """
    if budget is not None and budget < 1:
        raise InputError(f"A budget must be at least 1 label, got {budget}.")
    if budget is None or budget >= len(labels):
        return torch.arange(len(labels))
    return stratified_order(labels, seed)[:budget]


def held_out(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to judge by, `share` of them and at least one, both stratified.

    Example:
        >>> fit, judge = held_out(torch.tensor([0, 1] * 10), 0.2, seed=0)
        >>> len(fit), len(judge)
        (16, 4)
    """
    if len(labels) < 2:
        raise InputError(f"Holding rows out needs at least 2 of them, got {len(labels)}.")
    # From the start of the order, so that the rows to fit on have one of each class.
    kept = min(max(1, round(len(labels) * (1 - share))), len(labels) - 1)
    order = stratified_order(labels, seed)
    return order[:kept], order[kept:]
