"""Checkpoints whose tensors have another size than the module.

Fixed tensors (centers, values, fitted statistics) are buffers whose size is data, not architecture: a checkpoint
decides it. Learned ones are Parameters held by an optimizer and keep torch's strict rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def register(module: nn.Module, name: str, tensor: Tensor, *, learn: bool) -> None:
    """Register `tensor` as a Parameter or as a buffer, under the same name either way."""
    if learn:
        module.register_parameter(name, nn.Parameter(tensor.detach().clone()))
    else:
        module.register_buffer(name, tensor)


def resize_buffers(module: nn.Module, names: Iterable[str], state: Mapping[str, Any], prefix: str) -> None:
    """Give the named buffers the sizes found in `state`; call before `_load_from_state_dict`."""
    for name in names:
        loaded = state.get(prefix + name)
        current = module._buffers.get(name)
        if loaded is not None and current is not None and loaded.shape != current.shape:
            module._buffers[name] = torch.empty(loaded.shape, dtype=current.dtype, device=current.device)
