"""Local kernel ridge readouts whose training rows are spread over ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import ShardedLocalKernelRidge
from ..distributed.launch import AllRanks
from ..nn import LocalKernelRidge
from .lazy import Plan
from .readouts import Fitted, Training


@torch.no_grad()
def fit_sharded(plan: Plan, own: Training, team: AllRanks) -> Fitted:
    """What `PlannedReadout.fit` gives, by all ranks of a team.

    Args:
        plan: the same on every rank.
        own: this rank's part of the training rows, in their order.

    Every rank asks for the scores of the same queries, predicts its part of them, and gets those of all.
    """
    layer = ShardedLocalKernelRidge(own.features, own.one_hot(), **plan.arguments, process_group=team.comm.group)

    @torch.no_grad()
    def scores(query: Tensor) -> Tensor:
        return team.joined(layer(query[team.own(len(query))]), len(query))

    layer(layer.centers[:1])  # embeds and indexes the centers, which belongs to the fit
    return Fitted(scores, plan.temperature, plan.chosen, layer)


def whole(layer: LocalKernelRidge, training: Training) -> LocalKernelRidge:
    """The same layer in one process, with all training rows."""
    if not isinstance(layer, ShardedLocalKernelRidge):
        return layer
    return LocalKernelRidge(
        training.features,
        training.one_hot(),
        layer.num_neighbors,
        kernel=layer.kernel,
        ridge=layer.ridge,
        trend=layer.trend,
        fade=layer.fade,
    )
