"""What something was made from, so that it can be kept exactly as long as it holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._precision import working_dtype
from ..kernels import Kernel


class Contents(NamedTuple):
    """A record by content: version counters miss `.data`, numpy and what DDP broadcasts."""

    sums: Tensor  # (N,): a weighted sum over the columns of each row
    state: tuple[Tensor, ...]  # copied
    modules: tuple[nn.Module, ...]  # of the kernel
    settings: tuple[object, ...]

    def same_as(self, other: Contents) -> bool:
        return (
            len(self.modules) == len(other.modules)
            and all(a is b for a, b in zip(self.modules, other.modules, strict=True))
            and len(self.settings) == len(other.settings)
            and all(map(_alike, self.settings, other.settings))
            and len(self.state) == len(other.state)
            and all(map(_equal, self.state, other.state))
            and _equal(self.sums, other.sums)
        )


def contents_of(rows: Tensor, state: tuple[Tensor, ...], kernel: Kernel, settings: tuple[object, ...]) -> Contents:
    """Of `rows` `(N, D)`, tensors and a kernel; settings are compared by identity, and by `==` if they are no tensors."""
    with torch.inference_mode(False), torch.no_grad():
        rows = rows.detach().to(working_dtype(rows.dtype))
        # One pass over the rows, as the search of a single query makes too. Irregular weights: any edit shows.
        weights = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device).sin()
        copies = tuple(tensor.detach().clone() for tensor in state)
        return Contents(rows @ weights, copies, tuple(kernel.modules()), settings)


def _alike(a: object, b: object) -> bool:
    return a is b or (not isinstance(a, Tensor) and a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
