"""Registered tensors: fixed or learned under one name, and checkpoints of another size.

Fixed tensors (centers, values, fitted statistics) are buffers whose size is data, not architecture: a checkpoint decides
it. Learned ones are Parameters held by an optimizer and keep torch's strict rule.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def register(module: nn.Module, name: str, tensor: Tensor, *, learn: bool) -> None:
    """Register `tensor` as a Parameter or as a buffer, under the same name either way."""
    tensor = usable(tensor)
    if learn:
        module.register_parameter(name, nn.Parameter(tensor.detach().clone()))
    else:
        module.register_buffer(name, tensor)


def usable(tensor: Tensor) -> Tensor:
    """The tensor, or its copy if it was made in inference mode and so could not take part in a backward pass."""
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return tensor.clone()


def resize_buffers(module: nn.Module, names: Iterable[str], state: Mapping[str, Any], prefix: str) -> None:
    """Give the named buffers the sizes found in `state`; call before `_load_from_state_dict`.

    The buffers are fresh ones even where the size is right: loading must not write into a tensor of the caller.
    """
    for name in names:
        loaded = state.get(prefix + name)
        current = module._buffers.get(name)
        if loaded is not None and current is not None:
            module._buffers[name] = torch.empty(loaded.shape, dtype=current.dtype, device=current.device)


def keep_double(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`fn` of `Module._apply`, for a module whose float64 state follows the device but not the dtype of the data.

    Statistics rounded to half precision would be useless, and no conversion back could repair them.
    """

    def moved(tensor: Tensor) -> Tensor:
        result = fn(tensor)
        if tensor.dtype == torch.float64 and result.is_floating_point() and result.dtype != torch.float64:
            return tensor.to(result.device)
        return result

    return moved


class OwnLock:
    """A lock that one thread may take several times; each copy and each pickle has a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OwnLock], tuple[()]]:
        return OwnLock, ()


def without_graph(module: nn.Module) -> dict[str, Any]:
    """The state that copies and pickles take: a fixed tensor leaves its graph behind, which torch could not copy."""
    state = dict(module.__dict__)
    state["_buffers"] = {name: None if t is None else t.detach() for name, t in module._buffers.items()}
    return state
