"""What a probing run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InputError
from .config import Config


@dataclass(frozen=True)
class ProbeConfig(Config):
    """One run: data, frozen network, the layers that end its stages, sizes of the training part and readouts.

    Args:
        layers: the last layer of each stage, in the order they are called; `None` is five stages of a network known to
            `torchkrr.models.known_layers`, and of `digits`.
        budgets: numbers of training examples; `None` is all.
        train_limit: only so many training pictures, stratified, are used at all; `None` is all. Features of the others are
            not computed.
        others: see `Config`. `layer` stays `None`.
    """

    NAME: ClassVar[str] = "probe"
    OPTIONS: ClassVar[dict[str, str]] = {"budgets": "--sizes"}

    budgets: tuple[int | None, ...] = (1000, None)
    readouts: tuple[str, ...] = ("sk", "sk-select", "linear", "knn")
    out: str = "runs/probe"
    layers: tuple[str, ...] | None = None
    train_limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None:
            raise InputError("Probing takes layers=(...), one for each depth, not layer.")
        if self.train_limit is not None and self.train_limit < 2:
            raise InputError(f"train_limit must be at least 2 pictures, got {self.train_limit}.")
