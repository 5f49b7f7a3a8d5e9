"""The readouts by name: the paper's four, and five beside them."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InputError
from .lazy import BlendedReadout, HierarchicalReadout, LocalReadout, SelectedReadout, WeightedNeighbors
from .readouts import Readout
from .trained import LogisticRegression, TrainedHead


class Entry(NamedTuple):
    title: str  # for tables and figures
    readout: Readout


SELECTED = "sk-select"
LINEUP: dict[str, Entry] = {
    "linear": Entry("linear head", TrainedHead()),
    "mlp": Entry("MLP 512", TrainedHead(hidden=512)),
    "sk": Entry("SK", LocalReadout()),
    "han-sk": Entry("HAN-SK", HierarchicalReadout()),
    SELECTED: Entry("SK, selected", SelectedReadout()),
    "knn": Entry("weighted kNN", WeightedNeighbors()),
    "logistic": Entry("logistic regression", LogisticRegression()),
    "blended": Entry("SK, blended", BlendedReadout()),
    "faded": Entry("SK, faded", LocalReadout(fade=True)),
}


def readout_named(name: str) -> Entry:
    if name not in LINEUP:
        raise InputError(f"There is no readout {name!r}. Choose from {', '.join(LINEUP)}.")
    return LINEUP[name]
