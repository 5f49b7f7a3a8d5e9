"""The readouts by name: the paper's four, and five beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from .lazy import BlendedReadout, HierarchicalReadout, LocalReadout, PlannedReadout, SelectedReadout, WeightedNeighbors
from .readouts import Readout
from .trained import LogisticRegression, TrainedHead


class Entry(NamedTuple):
    title: str  # for tables and figures
    readout: Readout
    text: str  # what it is, for those who read the table


SELECTED = "sk-select"
LINEUP: dict[str, Entry] = {
    "linear": Entry("linear head", TrainedHead(), "one linear layer, trained"),
    "mlp": Entry("MLP 512", TrainedHead(hidden=512), "two linear layers with 512 hidden units, trained"),
    "sk": Entry(
        "SK", LocalReadout(), "local kernel ridge regression of the labels on the 100 nearest training examples, not trained"
    ),
    "han-sk": Entry(
        "HAN-SK", HierarchicalReadout(), "kernel ridge regression on up to 1,000 coarse examples with local corrections"
    ),
    SELECTED: Entry(
        "SK, selected", SelectedReadout(), "SK with its settings chosen by leave-one-out, a search that is most of its time"
    ),
    "knn": Entry("weighted kNN", WeightedNeighbors(), "votes of the 20 nearest training examples"),
    "logistic": Entry("logistic regression", LogisticRegression(), "a linear classifier whose penalty is chosen"),
    "blended": Entry("SK, blended", BlendedReadout(), "SK made continuous by blending several local regressions"),
    "faded": Entry("SK, faded", LocalReadout(fade=True), "SK made continuous by letting the farthest neighbors fade"),
}


def readout_named(name: str) -> Entry:
    if name not in LINEUP:
        raise InputError(f"There is no readout {name!r}. Choose from {', '.join(LINEUP)}.")
    return LINEUP[name]


def head_named(name: str) -> Entry:
    """A readout that can be written as a head: one local kernel ridge layer."""
    entry = readout_named(name)
    if not isinstance(entry.readout, PlannedReadout):
        able = [known for known, other in LINEUP.items() if isinstance(other.readout, PlannedReadout)]
        raise InputError(f"The readout {name!r} cannot be written as a head. Choose from {', '.join(able)}.")
    return entry


def default_head(readouts: Sequence[str]) -> str:
    """The readout to write among those of a run: the selected one, else the first that can be written, else SK.

    Example:
        >>> default_head(["linear", "faded", "sk"]), default_head(["sk", "sk-select"]), default_head(["knn"])
        ('faded', 'sk-select', 'sk')
    """
    able = [name for name in readouts if isinstance(readout_named(name).readout, PlannedReadout)]
    return SELECTED if SELECTED in able else next(iter(able), "sk")
