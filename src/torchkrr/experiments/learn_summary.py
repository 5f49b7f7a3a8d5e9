"""Records of several seeds as one cell for each head and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .records import Record

TITLES = {"linear": "linear head", "loo": "kernel, leave-one-out", "split": "kernel, split", "centers": "kernel, centers"}


class Cell(NamedTuple):
    """One head at one depth, over its seeds."""

    head: str  # a key of TITLES
    discard: int
    num_seeds: int
    accuracy: float  # mean
    lowest: float
    highest: float
    by_seed: dict[int, float]
    readings: dict[str, float]  # mean accuracies
    curve: list[float]  # mean validation accuracy after each epoch that all seeds had
    parameters: int  # of backbone and head
    num_features: int
    steps: float  # mean
    seconds: float  # mean, of training without validation
    step: float  # mean seconds of a step, from the best epoch of each run

    @property
    def title(self) -> str:
        return TITLES[self.head]


def head_of(record: Record) -> str:
    return "linear" if record["head"] == "linear" else str(record["config"]["objective"])


def summarize(records: Sequence[Record]) -> list[Cell]:
    """One cell for each head, in the order they come, and depth, ascending."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((head_of(record), record["discard"]), []).append(record)
    order = list(dict.fromkeys(head_of(record) for record in records))
    return [_cell(*key, groups[key]) for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))]


def differences(cells: Sequence[Cell], head: str, other: str = "linear") -> dict[int, list[float]]:
    """Accuracy minus that of the other head at the same depth, for each seed that both have."""
    found = {(cell.head, cell.discard): cell.by_seed for cell in cells}
    return {
        depth: [value - found[other, depth][seed] for seed, value in by_seed.items() if seed in found[other, depth]]
        for (name, depth), by_seed in found.items()
        if name == head and (other, depth) in found
    }


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _cell(head: str, discard: int, records: list[Record]) -> Cell:
    accuracies = {record["seed"]: record["accuracy"] for record in records}
    curves = [record["epochs"]["accuracy"] for record in records]
    first = records[0]
    return Cell(
        head=head,
        discard=discard,
        num_seeds=len(records),
        accuracy=mean(list(accuracies.values())),
        lowest=min(accuracies.values()),
        highest=max(accuracies.values()),
        by_seed=accuracies,
        readings={name: mean([record["readings"][name]["accuracy"] for record in records]) for name in first["readings"]},
        curve=[mean(values) for values in zip(*curves, strict=False)],
        parameters=sum(first["parameters"].values()),
        num_features=first["num_features"],
        steps=mean([record["steps"] for record in records]),
        seconds=mean([record["seconds"]["train"] for record in records]),
        step=mean([record["seconds"]["step"] for record in records]),
    )
