"""AdamW with cosine annealing, as in the paper's section 4.3; without a gradient scaler."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .learn_config import Config


def make_optimizer(config: Config, backbone: nn.Module, head: nn.Module) -> torch.optim.Optimizer:
    """AdamW; lengthscale, ridge and temperature are numbers, which have a rate of their own and do not decay."""
    numbers = [p for p in head.parameters() if p.numel() == 1 and p.requires_grad]
    known = set(map(id, numbers))
    layers = [p for p in (*backbone.parameters(), *head.parameters()) if p.requires_grad and id(p) not in known]
    groups: list[dict[str, Any]] = [{"params": layers, "lr": config.learning_rate, "weight_decay": config.weight_decay}]
    if numbers:
        groups.append({"params": numbers, "lr": config.kernel_learning_rate, "weight_decay": 0.0})
    for group in groups:
        group["start"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def anneal(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Cosine annealing: rates after this share of all steps, from what they started with to zero."""
    for group in optimizer.param_groups:
        group["lr"] = group["start"] * (1 + math.cos(math.pi * share)) / 2
