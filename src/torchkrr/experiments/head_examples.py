"""Examples added to a head and taken out of it: nothing is fitted again, and what it names stays in step."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence

import torch
from torch import Tensor

from .._checks import nearest_name
from ..errors import InputError, ShapeError
from .heads import Head


def with_examples(head: Head, features: Tensor, labels: Sequence[str], items: Sequence[str]) -> Head:
    """A head that knows these examples too. Classes it has not known get a column of their own.

    Args:
        head: it stays as it is.
        features: made by its backbone.
        labels: names of classes, one for each row.
        items: what each row was made from, such as the file of an image; explanations name it.

    Shape:
        - features: `(n, D)`

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
        >>> layer = torchkrr.nn.LocalKernelRidge(x, torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]), 2)
        >>> head = Head(layer, 0.1, ["low", "high"], ["a.png", "b.png", "c.png", "d.png"], None)
        >>> more = with_examples(head, torch.tensor([[5.0], [6.0]]), ["middle", "middle"], ["e.png", "f.png"])
        >>> more.classes, more.classes[int(more.probabilities(torch.tensor([[5.5]])).argmax())]
        (['low', 'high', 'middle'], 'middle')
    """
    if not len(features) == len(labels) == len(items):
        raise ShapeError(
            f"features, labels and items must have as many rows, got {len(features)}, {len(labels)} and {len(items)}."
        )
    known = set(head.items)
    twice = next((item for item in items if item in known or known.add(item)), None)  # type: ignore[func-returns-value]
    if twice is not None:
        raise InputError(f"{twice} would be in the head twice. Take it out first, or give it another name.")
    classes = [*head.classes, *(label for label in dict.fromkeys(labels) if label not in head.classes)]
    layer = copy.deepcopy(head.layer)
    layer.values = torch.nn.functional.pad(layer.values, (0, len(classes) - len(head.classes)))
    numbers = torch.tensor([classes.index(label) for label in labels], device=features.device)
    layer.append(features, torch.nn.functional.one_hot(numbers, len(classes)).to(layer.values))
    return head._replace(layer=layer, classes=classes, items=[*head.items, *items], key="")


def without_examples(head: Head, patterns: Sequence[str]) -> Head:
    """A head that has never known the examples of these names; `*` and `?` stand for any letters.

    A class without examples stays, and is never predicted with confidence. Where fewer examples are left than the head has
    neighbors, it uses all of them.

    Example:
        >>> layer = torchkrr.nn.LocalKernelRidge(torch.randn(3, 2), torch.eye(3), 3)
        >>> head = Head(layer, 0.1, ["a", "b", "c"], ["a/1.png", "b/1.png", "b/2.png"], None)
        >>> without_examples(head, ["b/*"]).items
        ['a/1.png']
    """
    unwanted: set[int] = set()
    for pattern in patterns:
        found = {row for row, item in enumerate(head.items) if item == pattern or fnmatch.fnmatchcase(item, pattern)}
        if not found:
            near = nearest_name(pattern, head.items)
            hint = f"Did you mean {near}?" if near is not None else f"Its examples have names such as {head.items[0]}."
            raise InputError(f"The head has no example {pattern}. {hint}")
        unwanted |= found
    layer = copy.deepcopy(head.layer)
    layer.remove(torch.tensor(sorted(unwanted), device=layer.centers.device))
    layer.num_neighbors = min(layer.num_neighbors, layer.num_centers)
    return head._replace(layer=layer, items=[item for row, item in enumerate(head.items) if row not in unwanted], key="")
