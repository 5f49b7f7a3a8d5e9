"""Checkpoints of sharded layers: written by any number of ranks, and read by any other number, or by one process.

They are checkpoints of `torch.distributed.checkpoint`. Each rank writes its own rows as a piece of one tensor, and readers
see a tensor with the rows of all ranks. So a checkpoint of a model with a `ShardedLocalKernelRidge` also loads into a model
with a `torchkrr.nn.LocalKernelRidge` in its place, and the other way round.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from ..errors import FileError, InputError
from .launch import Shards, even_shards
from .local import ShardedLocalKernelRidge

PER_CENTER = ("centers", "values")


def save(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the state of a module to a folder, with the rows of all ranks of its sharded layers.

    Collective. The folder must be new or empty, and have the same path on all ranks.

    Example:
        >>> import pathlib, tempfile
        >>> from torchkrr.distributed import ShardedLocalKernelRidge, launched
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "checkpoint"
        >>> centers, values, query = torch.randn(50, 3), torch.randn(50, 1), torch.randn(4, 3)
        >>> with launched():
        ...     layer = ShardedLocalKernelRidge(centers, values, 8)
        ...     expected = layer(query)
        ...     save(layer, path)
        >>> plain = torchkrr.nn.LocalKernelRidge(torch.zeros(8, 3), torch.zeros(8, 1), 8)
        >>> load(plain, path)  # one process is enough
        >>> bool(torch.allclose(plain(query), expected))
        True
    """
    sharded, group = _sharded_layers(module)
    shards: dict[str, Shards] = {}
    for prefix, layer in sharded.items():
        layer.count_centers()
        shards |= {f"{prefix}{name}": layer.shards for name in PER_CENTER}
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    with _file_errors(path, "written"):
        save_state(_Rows.among(state, shards, group), checkpoint_id=path, process_group=group, no_dist=not sharded)


def load(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Read a checkpoint into a module with the same names of tensors, whether its layers are sharded or not.

    Collective, if a layer is sharded. If the ranks together have as many centers as the checkpoint, each keeps its number of
    centers; otherwise the centers are split evenly, which is possible only if they are fixed.
    """
    sharded, group = _sharded_layers(module)
    with _file_errors(path, "read"):
        saved_tensors = FileSystemReader(path).read_metadata().state_dict_metadata
    shards: dict[str, Shards] = {}
    for prefix, layer in sharded.items():
        layer.count_centers()
        centers = saved_tensors.get(f"{prefix}centers")
        if isinstance(centers, TensorStorageMetadata):
            shards |= {f"{prefix}{name}": _shards_for(layer, centers.size[0]) for name in PER_CENTER}
    state: dict[str, Tensor] = {}
    for name, saved in saved_tensors.items():
        if not isinstance(saved, TensorStorageMetadata):
            raise FileError(f"{path} is no checkpoint of a module: {name!r} in it is no tensor.")
        shape = [shards[name].sizes[dist.get_rank(group)], *saved.size[1:]] if name in shards else saved.size
        state[name] = torch.empty(shape, dtype=saved.properties.dtype)
    with _file_errors(path, "read"):
        load_state(_Rows.among(state, shards, group), checkpoint_id=path, process_group=group, no_dist=not sharded)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} does not hold the state of this module: {' '.join(str(error).split())}") from error
    for layer in sharded.values():
        layer.count_centers()


def _sharded_layers(module: nn.Module) -> tuple[dict[str, ShardedLocalKernelRidge], Any]:
    """Sharded layers by the prefix of the names of their tensors, and their process group."""
    layers = {
        f"{name}." if name else "": layer
        for name, layer in module.named_modules()
        if isinstance(layer, ShardedLocalKernelRidge)
    }
    groups = {id(layer.process_group): layer.process_group for layer in layers.values()}
    if len(groups) > 1:
        raise InputError("The sharded layers of the module have different process groups. Save and load them one by one.")
    return layers, next(iter(groups.values()), None)


def _shards_for(layer: ShardedLocalKernelRidge, count: int) -> Shards:
    if layer.shards.total == count:
        return layer.shards
    learned = [name for name, _ in layer.named_parameters(recurse=False) if name in PER_CENTER]
    if learned:
        raise InputError(
            f"The checkpoint has {count} centers, the layer {layer.shards.total}, and {' and '.join(learned)} are learned, "
            f"so that an optimizer may hold them. Build the layer with {count} centers over all ranks, of any value."
        )
    return even_shards(count, len(layer.shards.sizes))


class _Rows(Tensor):
    """The rows of this rank: to `torch.distributed.checkpoint` a piece of the tensor with the rows of all ranks."""

    whole: torch.Size
    start: int  # row number of the first
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def among(cls, state: dict[str, Tensor], shards: dict[str, Shards], group: Any) -> dict[str, Tensor]:
        """The same state, in which tensors with shards are such rows; they share memory with those given."""
        views = dict(state)
        for name in shards.keys() & state.keys():
            views[name] = rows = state[name].as_subclass(cls)
            rows.whole = torch.Size([shards[name].total, *rows.shape[1:]])
            rows.start = shards[name].start(dist.get_rank(group))
        return views

    def size(self) -> torch.Size:  # type: ignore[override]
        return self.whole

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        offsets = torch.Size([self.start, *(0 for _ in self.shape[1:])])
        return [ChunkStorageMetadata(offsets=offsets, sizes=self.shape)] if len(self) else []

    def __create_write_items__(self, name: str, _: Tensor) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self)
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.whole),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, _: MetadataIndex) -> Tensor:
        return self.as_subclass(Tensor)


@contextlib.contextmanager
def _file_errors(path: str | os.PathLike[str], verb: str) -> Iterator[None]:
    """Turn errors of torch's checkpoints into one line that names the folder."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is intended
            yield
    except (OSError, CheckpointException) as error:
        text = " ".join(str(error).split())
        raise FileError(f"The checkpoint {path} cannot be {verb}: {text[-300:]}") from error


__all__ = ["load", "save"]
