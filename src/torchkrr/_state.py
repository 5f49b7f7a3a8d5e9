"""Registered tensors: fixed or learned under one name, and checkpoints of another size.

Fixed tensors (centers, values, fitted statistics) are buffers whose size is data, not architecture: a checkpoint decides
it. Learned ones are Parameters held by an optimizer and keep torch's strict rule.

What a kernel or a transform computes with is float64 where it is fixed, and an ordinary Parameter where it is learned: fused
optimizers and sharding want one dtype, torch's default, and at least one dimension.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def register(module: nn.Module, name: str, tensor: Tensor, *, learn: bool) -> None:
    """Register `tensor` as a Parameter or as a buffer, under the same name either way."""
    tensor = usable(tensor)
    if learn:
        module.register_parameter(name, nn.Parameter(tensor.detach().clone()))
    else:
        module.register_buffer(name, tensor)


def register_setting(module: nn.Module, name: str, tensor: Tensor, *, learn: bool) -> None:
    """As `register`, for what a kernel or a transform computes with; a number becomes a tensor of one."""
    dtype = torch.get_default_dtype() if learn else torch.float64
    register(module, name, torch.atleast_1d(tensor).to(dtype), learn=learn)


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


def add_dimension(names: Iterable[str], state: dict[str, Any], prefix: str) -> None:
    """Turn the named 0-d tensors of `state` into tensors of one, as they are now; call before `_load_from_state_dict`."""
    for name in names:
        loaded = state.get(prefix + name)
        if loaded is not None and loaded.ndim == 0:
            state[prefix + name] = loaded.reshape(1)


def keep_double(module: nn.Module, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`fn` of `Module._apply`, for a module whose float64 buffers follow the device but not the dtype of the data.

    Statistics rounded to half precision would be useless, and no conversion back could repair them.
    """
    fixed = {id(buffer) for buffer in module.buffers() if buffer.dtype == torch.float64}

    def moved(tensor: Tensor) -> Tensor:
        result = fn(tensor)
        if id(tensor) in fixed and result.is_floating_point() and result.dtype != torch.float64:
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


def shown(number: Tensor) -> str:
    """A tensor of one in the text of its module; a process may not have it, as on the meta device or in another shard."""
    try:
        return f"{float(number.detach()):g}"
    except RuntimeError:
        return "..."


def with_tensors(module: M, place: Mapping[int, Tensor]) -> M:
    """The same module with other tensors, by the `id` of those it has.

    The given one is not touched, as `torch.func.functional_call` would touch it: other threads may be computing with it.
    """
    clone = object.__new__(type(module))
    clone.__dict__ = dict(module.__dict__)
    for group in ("_parameters", "_buffers"):
        clone.__dict__[group] = {name: place.get(id(tensor), tensor) for name, tensor in module.__dict__[group].items()}
    clone.__dict__["_modules"] = {
        name: None if child is None else with_tensors(child, place) for name, child in module._modules.items()
    }
    return clone


def without_graph(module: nn.Module) -> dict[str, Any]:
    """The state that copies and pickles take: a fixed tensor leaves its graph behind, which torch could not copy."""
    state = dict(module.__dict__)
    state["_buffers"] = {name: None if t is None else t.detach() for name, t in module._buffers.items()}
    return state


def weights_hash(network: nn.Module) -> str:
    """A hash of every tensor of a network, with its name and shape."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
