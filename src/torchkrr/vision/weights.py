"""Read files of weights, compare them with a network by name and shape, and load them."""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
from collections import OrderedDict
from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import FileError

SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".ckpt")
CONTAINERS = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema", "net")  # keys around a state_dict
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")
SHOWN = 4  # names in an error


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a file, half precision widened to float32. Nothing in the file is executed.

    Args:
        path: a .safetensors file, or a `state_dict` saved by torch (.pth, .pt, .th, .bin, .ckpt), also inside a checkpoint.
    """
    file = _weights_file(path)
    if file.suffix not in SUFFIXES:
        raise FileError(f"The weights {path} must end in {', '.join(SUFFIXES)}, which says how to read them.")
    weights = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    # A wrapper, such as DataParallel, writes its own name before every other.
    while prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None):
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}


def load_weights(network: nn.Module, path: str | os.PathLike[str], *, head: str | None = None) -> nn.Module:
    """Load a file into a network without its classifier, and return the part of the network that the file holds.

    That is the network. If the file has the weights of one of its children alone (such as `features` of a VGG), it is that
    child, under its own name.

    Args:
        network: its classifier may be gone already.
        head: name of the classifier, whose weights in the file are skipped.
    """
    weights = read_weights(path)
    if head:
        weights = {name: tensor for name, tensor in weights.items() if not f"{name}.".startswith(f"{head}.")}
    network, weights = _matching_part(network, weights)
    expected = network.state_dict()
    # Counters of batch norm are absent from old files, and features do not depend on them.
    missing = [name for name in expected if name not in weights and not name.endswith("num_batches_tracked")]
    foreign = [name for name in weights if name not in expected]
    misshapen = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(expected[name].shape)}"
        for name, tensor in weights.items()
        if name in expected and tensor.shape != expected[name].shape
    ]
    problems = {"are missing": missing, "do not belong to it": foreign, "have another shape": misshapen}
    if any(problems.values()):
        listed = "; ".join(f"{len(names)} {problem} ({_listed(names)})" for problem, names in problems.items() if names)
        raise FileError(
            f"The weights {path} do not fit {type(network).__name__}: of {len(expected)} tensors {listed}. "
            "Name the backbone that these weights were made for."
        )
    network.load_state_dict(weights, strict=False)
    return network


def file_hash(path: str | os.PathLike[str]) -> str:
    """A hash of a file of weights."""
    with _weights_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _weights_file(path: str | os.PathLike[str]) -> pathlib.Path:
    file = pathlib.Path(path)
    if not file.is_file():
        raise FileError(f"The weights {path} are not there. Give a file that ends in {', '.join(SUFFIXES)}.")
    return file


def _matching_part(network: nn.Module, weights: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network, or the only child that these weights fit, and the weights under the names of the network."""
    if set(network.state_dict()) <= set(weights):
        return network, weights
    for name, child in network.named_children():
        own = set(child.state_dict())
        if own and own == set(weights):
            weights = {f"{name}.{key}": tensor for key, tensor in weights.items()}
        if own and {f"{name}.{key}" for key in own} == set(weights):
            return nn.Sequential(OrderedDict({name: child})), weights
    return network, weights


def _read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is no safetensors file, or is damaged: {error}.") from error


def _read_torch(path: pathlib.Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{path} cannot be read as a file of weights: {reason}. Expected a state_dict.") from error
    for key in CONTAINERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise FileError(f"{path} holds no state_dict: a dictionary of named tensors was expected.")
    return {str(name): value for name, value in content.items()}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
