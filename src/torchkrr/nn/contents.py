"""What something was made from, so that it can be kept exactly as long as it holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._precision import working_dtype
from ..kernels import Kernel


class Contents(NamedTuple):
    """A record by content: version counters miss `.data`, numpy and what DDP broadcasts."""

    sums: Tensor  # (N,): a hash of each row
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
        copies = tuple(tensor.detach().clone() for tensor in state)
        return Contents(_hash(rows.detach()), copies, tuple(kernel.modules()), (*settings, *_plain_attributes(kernel)))


def _hash(rows: Tensor) -> Tensor:
    """An integer for each row, from its bits: sums of floats would lose small columns beside large ones.

    Weights are odd, so that every edit of one number shows; edits of several hide from it with a chance of 2^-32.
    """
    rows = rows.to(working_dtype(rows.dtype)).contiguous()
    bits = rows.view(torch.int64 if rows.dtype == torch.float64 else torch.int32)
    weights = (torch.arange(1, rows.shape[1] + 1, device=rows.device) * 0x9E3779B1).to(bits.dtype) | 1
    # One pass over the rows, as the search of a single query makes too.
    return torch.mv(bits, weights) if rows.device.type == "cpu" else (bits * weights).sum(1)


def _plain_attributes(kernel: Kernel) -> list[tuple[str, object]]:
    """Numbers and names that a kernel or transform keeps beside its tensors."""
    return [
        (name, value)
        for module in kernel.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str | tuple) and name != "training"
    ]


def _alike(a: object, b: object) -> bool:
    return a is b or (not isinstance(a, Tensor) and a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
