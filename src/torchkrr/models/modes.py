"""Training and evaluation mode for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Inside the block all of a model is in one mode; afterwards each module is in its own again, also after an error.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Dropout().eval(), torch.nn.Dropout())
        >>> with in_mode(model, training=False):
        ...     inside = [layer.training for layer in model]
        >>> inside, [layer.training for layer in model]
        ([False, False], [False, True])
    """
    before = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, mode in before.items():
            module.training = mode
