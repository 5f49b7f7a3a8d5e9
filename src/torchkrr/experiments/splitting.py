"""Classes from labels, and parts of a collection that have every class in the same shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FileError, InputError

FEWEST = 2  # of a class that is to be split: one to learn from, one to be judged by


def encode(labels: Sequence[Any] | np.ndarray[Any, Any]) -> tuple[list[str], Tensor]:
    """The names of the classes, in order (numbers by size, words by the alphabet), and the row of each label among them.

    Example:
        >>> encode(["dog", "cat", "dog"])
        (['cat', 'dog'], tensor([1, 0, 1]))
        >>> encode(["10", "9", "10"])[0]
        ['9', '10']
    """
    words = [str(label) for label in (labels.tolist() if isinstance(labels, np.ndarray) else labels)]
    different = set(words)
    numbers = all(word.lstrip("-").isdecimal() for word in different)
    classes = sorted(different, key=int if numbers else None)
    rows = {name: row for row, name in enumerate(classes)}
    return classes, torch.tensor([rows[word] for word in words], dtype=torch.int64)


def check_classes(where: str, classes: Sequence[str]) -> None:
    if len(classes) < 2:
        found = f"only one class, {classes[0]!r}" if classes else "no class"
        raise FileError(f"{where} has {found}. A classifier needs at least two.")


def check_parts(where: str, classes: Sequence[str], train: Tensor, test: Tensor) -> None:
    """Both parts have rows, and nothing is tested that could not be learned."""
    for name, part in (("training", train), ("test", test)):
        if not len(part):
            raise FileError(f"The {name} part of {where} is empty.")
    absent = sorted(set(test.tolist()) - set(train.tolist()))
    if absent:
        names = ", ".join(repr(classes[row]) for row in absent[:5])
        raise FileError(f"The test part of {where} has classes that the training part has not: {names}.")


def stratified_split(
    where: str, labels: Tensor, classes: Sequence[str], *, test_share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Row numbers, in order, of a training and a test part; each class gives its share to both.

    Example:
        >>> train, test = stratified_split("x", torch.arange(2).repeat(10), ["a", "b"], test_share=0.2, seed=0)
        >>> len(train), len(test)
        (16, 4)
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}.")
    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    for row, name in enumerate(classes):
        members = (labels == row).nonzero().squeeze(1)
        if len(members) < FEWEST:
            raise FileError(
                f"The class {name!r} of {where} has {len(members)} member{'s' * (len(members) != 1)}, too few to give "
                "one to the training and one to the test part. Add some, or remove the class."
            )
        shuffled = members[torch.randperm(len(members), generator=generator)]
        num_test = min(max(1, round(test_share * len(members))), len(members) - 1)
        parts[1].append(shuffled[:num_test])
        parts[0].append(shuffled[num_test:])
    return torch.cat(parts[0]).sort().values, torch.cat(parts[1]).sort().values
