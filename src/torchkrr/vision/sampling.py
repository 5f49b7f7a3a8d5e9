"""Classes from labels, stratified splits, and label budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError, InputError


def encode_labels(labels: Sequence[Any] | np.ndarray[Any, Any]) -> tuple[list[str], Tensor]:
    """The names of the classes, sorted (numbers by size, words alphabetically), and the class of each label, `(N,)` int64.

    Example:
        >>> encode_labels(["dog", "cat", "dog"])
        (['cat', 'dog'], tensor([1, 0, 1]))
        >>> encode_labels(["10", "9", "10"])[0]
        ['9', '10']
    """
    words = [str(label) for label in (labels.tolist() if isinstance(labels, np.ndarray) else labels)]
    unique = set(words)
    numeric = all(word.lstrip("-").isdecimal() for word in unique)
    classes = sorted(unique, key=int if numeric else None)
    rows = {name: row for row, name in enumerate(classes)}
    return classes, torch.tensor([rows[word] for word in words], dtype=torch.int64)


def check_classes(source: str, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        received = f"only one class, {classes[0]!r}" if classes else "no class"
        raise FileError(f"{source} has {received}. A classifier needs at least two.")


def check_split(source: str, classes: Sequence[str], train: Tensor, test: Tensor) -> None:
    """Both parts need rows, and every class of the test part must be in the training part."""
    for name, part in (("training", train), ("test", test)):
        if not len(part):
            raise FileError(f"The {name} part of {source} is empty.")
    unseen = sorted(set(test.tolist()) - set(train.tolist()))
    if unseen:
        names = ", ".join(repr(classes[row]) for row in unseen[:5])
        raise FileError(f"The test part of {source} has classes that the training part has not: {names}.")


def stratified_split(
    source: str, labels: Tensor, classes: Sequence[str], *, test_share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Sorted row numbers of a training and a test part; each class gives its share to both.

    Args:
        source: where the labels come from, for errors.
        labels: `(N,)` int64, rows of `classes`.

    Example:
        >>> train, test = stratified_split("x", torch.arange(2).repeat(10), ["a", "b"], test_share=0.2, seed=0)
        >>> len(train), len(test)
        (16, 4)
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}.")
    generator = torch.Generator().manual_seed(seed)
    train: list[Tensor] = []
    test: list[Tensor] = []
    for row, name in enumerate(classes):
        members = (labels == row).nonzero().squeeze(1)
        if len(members) < 2:
            raise FileError(
                f"The class {name!r} of {source} has {len(members)} member{'s' * (len(members) != 1)}, too few to give "
                "one to the training and one to the test part. Add some, or remove the class."
            )
        shuffled = members[torch.randperm(len(members), generator=generator)]
        num_test = min(max(1, round(test_share * len(members))), len(members) - 1)
        test.append(shuffled[:num_test])
        train.append(shuffled[num_test:])
    return torch.cat(train).sort().values, torch.cat(test).sort().values


def stratified_order(labels: Tensor, seed: int) -> Tensor:
    r"""A random order of the rows whose every beginning has the classes in their shares, up to a row or two.

    One row of each class comes first, whatever its share, so that none is missing. The other members of a class, shuffled,
    are spread evenly: the $i$-th of $n$ has the position $(i+u)/n$ with one random $u$ in $[0, 1)$ for each class, and the
    positions are sorted. A budget is a beginning of the order, so it contains all smaller budgets of the same seed.

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
    positions = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        members = shuffled[labels[shuffled] == label]
        steps = torch.arange(len(members), dtype=torch.float64)
        positions[members] = (steps + torch.rand(1, generator=generator, dtype=torch.float64)) / len(members)
        positions[members[0]] = -1.0
    return shuffled[positions[shuffled].argsort(stable=True)]


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
    """Rows to fit on and rows to validate on, `share` of them and at least one, both stratified.

    Example:
        >>> fit, validation = held_out(torch.tensor([0, 1] * 10), 0.2, seed=0)
        >>> len(fit), len(validation)
        (16, 4)
    """
    if len(labels) < 2:
        raise InputError(f"Holding rows out needs at least 2 of them, got {len(labels)}.")
    # From the start of the order, so that the rows to fit on have one of each class.
    num_fit = min(max(1, round(len(labels) * (1 - share))), len(labels) - 1)
    order = stratified_order(labels, seed)
    return order[:num_fit], order[num_fit:]
