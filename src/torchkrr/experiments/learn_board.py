"""Curves for TensorBoard, if they are asked for."""

from __future__ import annotations

import importlib
import pathlib
from types import TracebackType
from typing import Any

from .extras import needed
from .learn_training import Epoch


class Board:
    """`with Board(folder, shown=True) as board: board.add(1, epoch)`; does nothing if it is not to be shown.

    A run that goes on after `begun` epochs takes back what was drawn of later ones.
    """

    def __init__(self, folder: pathlib.Path, *, shown: bool, begun: int = 0) -> None:
        self._writer: Any = None
        if not shown:
            return
        needed("tensorboard", "A curve for TensorBoard", extra="tensorboard")
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(folder), purge_step=begun + 1)

    def add(self, number: int, epoch: Epoch) -> None:
        if self._writer is None:
            return
        self._writer.add_scalar("loss/training", epoch.loss, number)
        self._writer.add_scalar("loss/validation", epoch.log_loss, number)
        self._writer.add_scalar("accuracy/validation", epoch.accuracy, number)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()
