"""Weights in files: read, compare with a network by name and shape, load."""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
from collections import OrderedDict

import torch
from torch import Tensor, nn

from ..errors import FileError
from .extras import needed

ENDINGS = (".safetensors", ".pth", ".pt", ".th", ".bin", ".ckpt")
HOLDERS = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema", "net")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")
SHOWN = 4  # names in an error


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a file, in float32 where they are in half precision. Nothing in the file is executed."""
    where = pathlib.Path(path)
    if not where.is_file():
        raise FileError(f"The weights {path} are not there. Give a file that ends in {', '.join(ENDINGS)}.")
    if where.suffix == ".safetensors":
        found = _read_safetensors(where)
    elif where.suffix in ENDINGS:
        found = _read_torch(where)
    else:
        raise FileError(f"The weights {path} must end in {', '.join(ENDINGS)}, which says how to read them.")
    # A wrapper, such as DataParallel, writes its own name before every other.
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in found)), None):
        found = {name[len(prefix) :]: tensor for name, tensor in found.items()}
    return {name: _widened(tensor) for name, tensor in found.items()}


def load_weights(network: nn.Module, path: str | os.PathLike[str], *, head: str | None = None) -> nn.Module:
    """Load a file into a network without its classifier; returns the part of the network that the file holds.

    That is the network, or, if the file has the weights of one of its children alone (such as `features` of a VGG), that
    child, under its own name.

    Args:
        network: its classifier may be gone already.
        head: name of the classifier, whose weights in the file are passed over.
    """
    weights = read_weights(path)
    if head:
        weights = {name: tensor for name, tensor in weights.items() if not f"{name}.".startswith(f"{head}.")}
    part, weights = _part_held(network, weights)
    wanted = part.state_dict()
    # Counters of batch norm are absent from old files, and features do not depend on them.
    absent = [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")]
    foreign = [name for name in weights if name not in wanted]
    other = [name for name, tensor in weights.items() if name in wanted and tensor.shape != wanted[name].shape]
    if absent or foreign or other:
        problems = [f"{len(absent)} are missing ({_listed(absent)})"] * bool(absent)
        problems += [f"{len(foreign)} do not belong to it ({_listed(foreign)})"] * bool(foreign)
        shapes = [f"{name} {tuple(weights[name].shape)} instead of {tuple(wanted[name].shape)}" for name in other]
        problems += [f"{len(other)} have another shape ({_listed(shapes)})"] * bool(other)
        raise FileError(
            f"The weights {path} do not fit {type(network).__name__}: of {len(wanted)} tensors {'; '.join(problems)}. "
            "Name the backbone that these weights were made for."
        )
    part.load_state_dict(weights, strict=False)
    return part


def file_hash(path: str | os.PathLike[str]) -> str:
    """Of the contents of a file of weights."""
    where = pathlib.Path(path)
    if not where.is_file():
        raise FileError(f"The weights {path} are not there. Give a file that ends in {', '.join(ENDINGS)}.")
    with where.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(network: nn.Module) -> str:
    """A hash of every tensor of a network, with its name and shape."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _part_held(network: nn.Module, weights: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network, or the child alone whose weights these are, and the weights under the names of the network."""
    names = set(weights)
    if not set(network.state_dict()) - names:
        return network, weights
    for title, child in network.named_children():
        own = set(child.state_dict())
        if own and own == names:
            weights = {f"{title}.{name}": tensor for name, tensor in weights.items()}
        if own and {f"{title}.{name}" for name in own} == set(weights):
            return nn.Sequential(OrderedDict({title: child})), weights
    return network, weights


def _read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    library = needed("safetensors", "Reading weights", extra="storage")
    try:
        with library.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (library.SafetensorError, OSError) as error:
        raise FileError(f"{path} is no safetensors file, or is damaged: {error}.") from error


def _read_torch(path: pathlib.Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path} cannot be read as a file of weights: {reason}. Expected a state_dict.") from error
    for holder in HOLDERS:
        if isinstance(found, dict) and isinstance(found.get(holder), dict):
            found = found[holder]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise FileError(f"{path} holds no state_dict: a dictionary of named tensors was expected.")
    return {str(name): value for name, value in found.items()}


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float32 else tensor


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
