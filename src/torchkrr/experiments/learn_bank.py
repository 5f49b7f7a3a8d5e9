"""Features of many pictures under a network as it is now."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import NotFittedError
from ..vision.images import Images, Preparation

BATCH = 256


@torch.no_grad()
def features_of(backbone: nn.Module, pictures: Images, rows: Tensor, prepare: Preparation) -> Tensor:
    """`(N, D)`, without gradient and in eval mode; the mode is afterwards what it was."""
    training = backbone.training
    backbone.eval()
    try:
        return torch.cat([backbone(prepare(pictures.read(batch.tolist()))) for batch in rows.split(BATCH)])
    finally:
        backbone.train(training)


class MemoryBank:
    """Features of the rows that predictions are made from, kept from one refresh to the next.

    While a network is trained its features change with each step, so an evaluation by neighbors needs those of all rows
    anew. The bank has them as of the end of an epoch.
    """

    def __init__(self, pictures: Images, rows: Tensor, prepare: Preparation) -> None:
        self.rows, self.labels = rows, pictures.labels[rows]
        self._pictures, self._prepare = pictures, prepare
        self._features: Tensor | None = None

    def refresh(self, backbone: nn.Module) -> Tensor:
        """Compute all features again, `(N, D)`."""
        self._features = features_of(backbone, self._pictures, self.rows, self._prepare)
        return self._features

    @property
    def features(self) -> Tensor:
        if self._features is None:
            raise NotFittedError("The bank is empty. Call refresh(backbone) first.")
        return self._features
