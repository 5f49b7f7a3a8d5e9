"""Scores of classes to probabilities: the temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError

# Predictions of one-hot values differ by about one at most: from all but sure of the largest to sure of none.
TEMPERATURES = torch.logspace(-2.5, 1.5, 41, dtype=torch.float64)


def best_temperature(means: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
    """The temperature with the least mean cross-entropy: `(Q, *, C)` and `(Q, 1.., C)` to `(*)`.

    The largest of those that are no more than 1 / Q above it: Q rows without an error say no more than that errors are
    rarer than about one in Q, which is not a reason to be surer still. With `counts` `(Q,)` each stands for so many rows.
    """
    with torch.no_grad():
        candidates = TEMPERATURES.to(means)
        counts = means.new_ones(len(means)) if counts is None else counts.to(means)
        total, shares = counts.sum(), (counts / counts.sum()).view(-1, *[1] * (means.ndim - 2))
        losses = torch.stack(
            [(shares * cross_entropy(means, targets, t.expand(means.shape[1:-1]))).sum(0) for t in candidates]
        )
        good = losses <= losses.amin(0) + 1 / total
        places = torch.arange(len(candidates), device=means.device).view(-1, *[1] * (losses.ndim - 1))
        return candidates[torch.where(good, places, 0).amax(0)]


def cross_entropy(means: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
    return -(targets * torch.log_softmax(means / temperature.unsqueeze(-1), dim=-1)).sum(-1)


def check_memberships(values: Tensor, user: str, remedy: str) -> None:
    """Values `(N, C)` that are probabilities of classes; `user` begins the errors, and `remedy` ends them."""
    sums = values.detach().sum(-1)
    if values.shape[-1] < 2:
        raise InputError(f"{user} needs one column of values per class, got 1. {remedy}")
    if bool((values < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        needed = "values that are class probabilities (non-negative, rows sum to one)"
        raise InputError(f"{user} needs {needed}, got others. {remedy}")
