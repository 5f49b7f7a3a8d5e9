"""What something was made from, so that it can be kept exactly as long as it holds."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import native
from .._chunking import chunk_bytes, ranges, rows_per_chunk
from .._tensors import is_plain, working_dtype

PLAIN = (int, float, str, tuple)
USUAL = frozenset(vars(nn.Module()))  # what every module has, and no kernel computes with
LOWERED = 4  # bits for each byte: half of a number


class Contents(NamedTuple):
    """A record by content: version counters miss `.data`, numpy and what DDP broadcasts."""

    sums: Tensor | None  # (2, N): a hash of each row
    state: tuple[Tensor, ...]  # copied
    modules: tuple[nn.Module, ...]  # of the kernel, or of another module
    settings: tuple[object, ...]

    def hold(self, rows: Tensor | None, state: tuple[Tensor, ...], kernel: nn.Module, settings: tuple[object, ...]) -> bool:
        """Whether `contents_of` the same arguments would be these, without copying any."""
        modules = _modules(kernel)
        return self._agree(state, modules, (*settings, *_plain_attributes(modules))) and (
            rows is None if self.sums is None else rows is not None and _equal(self.sums, row_hashes(rows))
        )

    def same_as(self, other: Contents) -> bool:
        return self._agree(other.state, other.modules, other.settings) and (
            other.sums is None if self.sums is None else other.sums is not None and _equal(self.sums, other.sums)
        )

    def _agree(self, state: tuple[Tensor, ...], modules: tuple[nn.Module, ...], settings: tuple[object, ...]) -> bool:
        return (
            len(self.modules) == len(modules)
            and all(a is b for a, b in zip(self.modules, modules, strict=True))
            and len(self.settings) == len(settings)
            and all(map(_alike, self.settings, settings))
            and len(self.state) == len(state)
            and all(map(_equal, self.state, state))
        )


def contents_of(rows: Tensor | None, state: tuple[Tensor, ...], kernel: nn.Module, settings: tuple[object, ...]) -> Contents:
    """Of `rows` `(N, D)`, tensors and a kernel, or any module; settings are compared by identity, and if no tensors by `==`.

    `None` stands for rows of which nothing is kept, so that nothing can be out of date.
    """
    modules = _modules(kernel)
    with torch.inference_mode(False), torch.no_grad():
        copies = tuple(tensor.detach().clone() for tensor in state)
    sums = None if rows is None else row_hashes(rows)
    return Contents(sums, copies, modules, (*settings, *_plain_attributes(modules)))


def tensors_of(kernel: nn.Module) -> tuple[Tensor, ...]:
    """Parameters and buffers of a kernel: all that its embedding and profile compute with."""
    return tuple(
        tensor
        for module in _modules(kernel)
        for group in (module._parameters, module._buffers)
        for tensor in group.values()
        if tensor is not None
    )


def _modules(module: nn.Module) -> tuple[nn.Module, ...]:
    """As `module.modules()`, which takes longer than a small problem."""
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        found[module] = None
        for child in module._modules.values():
            if child is not None and child not in found:
                visit(child)

    visit(module)
    return tuple(found)


def row_hashes(rows: Tensor) -> Tensor:
    """Two integers for each row `(2, N)`, from its bits: sums of floats would lose small columns beside large ones.

    Weights are odd, so that every edit of one number shows in the first. Modulo 2^32 it is blind to pairs of changed
    signs and nearly so to exponents, which are high bits; the second has them lower.
    """
    with torch.inference_mode(False), torch.no_grad():
        rows = rows.detach()
        rows = rows.to(working_dtype(rows.dtype)).contiguous()
        kind = torch.int64 if rows.dtype == torch.float64 else torch.int32
        weights = _weights(rows.shape[1], kind, rows.device)
        sums = torch.empty(2, rows.shape[0], dtype=kind, device=rows.device)
        if rows.is_cpu and rows.dtype in native.NAMES and native.library() is not None and is_plain(rows):
            _hash(rows, weights, sums)
            return sums
        for chunk in ranges(len(rows), rows_per_chunk(rows.shape[1] * rows.element_size(), chunk_bytes(rows.device))):
            bits = rows[chunk].view(kind)
            for level, part in enumerate((bits, bits >> (LOWERED * rows.element_size()))):
                sums[level, chunk] = torch.mv(part, weights) if rows.device.type == "cpu" else (part * weights).sum(1)
        return sums


def _hash(rows: Tensor, weights: Tensor, sums: Tensor) -> None:
    task = native.HashTask(
        rows=rows.data_ptr(),
        weights=weights.data_ptr(),
        sums=sums.data_ptr(),
        count=rows.shape[0],
        features=rows.shape[1],
        lowered=LOWERED * rows.element_size(),
        threads=torch.get_num_threads(),
    )
    native.call("hash", rows.dtype, task)


@functools.lru_cache(maxsize=16)
def _weights(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Scattered: with multiples of one number, signs of columns 1 and 4 would weigh as much as those of 2 and 3.
    mixed = torch.arange(1, count + 1, device=device) * 0x9E3779B97F4A7C1
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B
    return (mixed ^ (mixed >> 32)).to(dtype) | 1


def _plain_attributes(modules: tuple[nn.Module, ...]) -> list[tuple[str, object]]:
    """Numbers and names that a kernel or transform keeps beside its tensors."""
    return [
        (name, value)
        for module in modules
        for name, value in vars(module).items()
        if name not in USUAL and isinstance(value, PLAIN)
    ]


def _alike(a: object, b: object) -> bool:
    return a is b or (not isinstance(a, Tensor) and a == b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
