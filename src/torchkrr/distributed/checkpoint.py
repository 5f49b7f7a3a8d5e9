"""Checkpoints of sharded layers: written by any number of ranks, and read by any other number, or by one process.

They are checkpoints of `torch.distributed.checkpoint`. Each rank writes its own rows as a piece of one tensor, and readers
see a tensor with the rows of all ranks. So a checkpoint of a model with a `ShardedLocalKernelRidge` also loads into a model
with a `torchkrr.nn.LocalKernelRidge` in its place, and the other way round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from ..errors import FileError, InputError
from .local import ShardedLocalKernelRidge
from .process_group import Shards, even_shards

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
    sharded, group = _sharded_layers(module), _group_of(module)
    for layer in sharded.values():
        layer.count_centers()
    pieces = {f"{prefix}{name}": layer.shards for prefix, layer in sharded.items() for name in PER_CENTER}
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    planner = _SavePlanner(state, pieces, dist.get_rank(group) if sharded else 0)
    with _file_errors(path, "written"):
        save_state(state, checkpoint_id=path, planner=planner, process_group=group, no_dist=not sharded)


def load(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Read a checkpoint into a module with the same names of tensors, whether its layers are sharded or not.

    Collective, if a layer is sharded. If the ranks together have as many centers as the checkpoint, each keeps its number of
    centers; otherwise the centers are split evenly, which is possible only if they are fixed.
    """
    sharded, group = _sharded_layers(module), _group_of(module)
    rank = dist.get_rank(group) if sharded else 0
    with _file_errors(path, "read"):
        saved_tensors = FileSystemReader(path).read_metadata().state_dict_metadata
    pieces: dict[str, Shards] = {}
    for prefix, layer in sharded.items():
        layer.count_centers()
        centers = saved_tensors.get(f"{prefix}centers")
        if isinstance(centers, TensorStorageMetadata):
            shards = _shards_for(layer, centers.size[0])
            pieces |= {f"{prefix}{name}": shards for name in PER_CENTER}
    state: dict[str, Tensor] = {}
    for name, saved in saved_tensors.items():
        if not isinstance(saved, TensorStorageMetadata):
            raise FileError(f"{path} is no checkpoint of a module: {name!r} in it is no tensor.")
        shape = [pieces[name].sizes[rank], *saved.size[1:]] if name in pieces else saved.size
        state[name] = torch.empty(shape, dtype=saved.properties.dtype)
    with _file_errors(path, "read"):
        planner = _LoadPlanner(state, pieces, rank)
        load_state(state, checkpoint_id=path, planner=planner, process_group=group, no_dist=not sharded)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} does not hold the state of this module: {' '.join(str(error).split())}") from error
    for layer in sharded.values():
        layer.count_centers()


def _sharded_layers(module: nn.Module) -> dict[str, ShardedLocalKernelRidge]:
    """Sharded layers by the prefix of the names of their tensors."""
    return {
        f"{name}." if name else "": layer
        for name, layer in module.named_modules()
        if isinstance(layer, ShardedLocalKernelRidge)
    }


def _group_of(module: nn.Module) -> Any:
    groups = {id(layer.process_group): layer.process_group for layer in _sharded_layers(module).values()}
    if len(groups) > 1:
        raise InputError("The sharded layers of the module have different process groups. Save and load them one by one.")
    return next(iter(groups.values()), None)


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


class _Pieces:
    """The tensors of this rank, some of which are rows of a larger tensor."""

    def __init__(self, state: dict[str, Tensor], shards: dict[str, Shards], rank: int) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)  # type: ignore[call-arg]  # a planner
        self._state, self._shards, self._rank = state, shards, rank

    def _chunk(self, name: str) -> ChunkStorageMetadata:
        """The place of this rank's rows in the whole tensor."""
        tensor, start = self._state[name], self._shards[name].start(self._rank) if name in self._shards else 0
        offsets = torch.Size([start, *(0 for _ in tensor.shape[1:])][: tensor.ndim])
        return ChunkStorageMetadata(offsets=offsets, sizes=tensor.shape)


class _SavePlanner(_Pieces, DefaultSavePlanner):
    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items: list[WriteItem] = []
        # Every tensor is in the plan of every rank; torch drops what several ranks would write.
        for item in plan.items:
            items += self._piece(item.index.fqn) if item.index.fqn in self._shards else [item]
        return dataclasses.replace(plan, items=items)

    def _piece(self, name: str) -> list[WriteItem]:
        tensor, chunk = self._state[name], self._chunk(name)
        if not len(tensor):
            return []
        data = TensorWriteData(
            chunk=chunk,
            properties=TensorProperties.create_from_tensor(tensor),
            size=torch.Size([self._shards[name].total, *tensor.shape[1:]]),
        )
        return [WriteItem(index=MetadataIndex(name, chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)]

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._state[index.fqn]


class _LoadPlanner(_Pieces, DefaultLoadPlanner):
    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, tensor in self._state.items():
            saved = self.metadata.state_dict_metadata[name]
            if tensor.numel() and isinstance(saved, TensorStorageMetadata):
                items += create_read_items_for_chunk_list(name, saved, [self._chunk(name)])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._state[index.fqn]


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
