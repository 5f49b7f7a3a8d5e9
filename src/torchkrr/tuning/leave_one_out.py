"""Rows to leave out."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_rows(count: int, size: int, seed: int, device: torch.device) -> Tensor:
    """`size` different row numbers out of `count`, or all of them in order."""
    return torch.arange(count, device=device) if size >= count else shuffled_rows(count, size, seed, device)


def shuffled_rows(count: int, size: int, seed: int, device: torch.device) -> Tensor:
    """`size` different row numbers out of `count`, or all of them, in random order: the first few are a sample too."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:size].to(device)
