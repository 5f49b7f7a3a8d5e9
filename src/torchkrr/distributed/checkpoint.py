"""Checkpoints of sharded layers: written by any number of ranks, read by any other number, or by one process.

They are those of `torch.distributed.checkpoint`: each rank writes its own rows, as pieces of one tensor, and a tensor of the
whole size is what every other reader of such checkpoints sees. So a model with a `ShardedLocalKernelRidge` in it becomes one
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
from .shards import Shards, even_shards

PER_CENTER = ("centers", "values")


def save(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the state of a module, with the rows of all ranks of the sharded layers in it, to a folder.

    Collective. The folder is new or empty, and can be reached by all ranks under the same name.

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
        layer._count_centers()
    pieces = {f"{prefix}{name}": layer.shards for prefix, layer in sharded.items() for name in PER_CENTER}
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    planner = _SavePlanner(state, pieces, dist.get_rank(group) if sharded else 0)
    with _explained(path, "written"):
        save_state(state, checkpoint_id=path, planner=planner, process_group=group, no_dist=not sharded)


def load(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Read a checkpoint into a module that has the same names, whether its layers are sharded or not.

    Collective, if a layer is sharded. If the ranks together have as many centers as the checkpoint, each keeps the number it
    has; otherwise they are shared out evenly, which only fixed centers allow.
    """
    sharded, group = _sharded_layers(module), _group_of(module)
    rank = dist.get_rank(group) if sharded else 0
    with _explained(path, "read"):
        found = FileSystemReader(path).read_metadata().state_dict_metadata
    pieces: dict[str, Shards] = {}
    for prefix, layer in sharded.items():
        layer._count_centers()
        saved = found.get(f"{prefix}centers")
        if isinstance(saved, TensorStorageMetadata):
            shards = _shards_for(layer, saved.size[0])
            pieces |= {f"{prefix}{name}": shards for name in PER_CENTER}
    state: dict[str, Tensor] = {}
    for name, about in found.items():
        if not isinstance(about, TensorStorageMetadata):
            raise FileError(f"{path} is no checkpoint of a module: {name!r} in it is no tensor.")
        rows = [pieces[name].sizes[rank], *about.size[1:]] if name in pieces else about.size
        state[name] = torch.empty(rows, dtype=about.properties.dtype)
    with _explained(path, "read"):
        planner = _LoadPlanner(state, pieces, rank)
        load_state(state, checkpoint_id=path, planner=planner, process_group=group, no_dist=not sharded)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"{path} does not hold the state of this module: {' '.join(str(error).split())}") from error
    for layer in sharded.values():
        layer._count_centers()


def _sharded_layers(module: nn.Module) -> dict[str, ShardedLocalKernelRidge]:
    """By what the names of their tensors begin with."""
    return {
        f"{name}." if name else "": part
        for name, part in module.named_modules()
        if isinstance(part, ShardedLocalKernelRidge)
    }


def _group_of(module: nn.Module) -> Any:
    groups = {id(layer.process_group): layer.process_group for layer in _sharded_layers(module).values()}
    if len(groups) > 1:
        raise InputError("The sharded layers of the module have different process groups. Save and load them one by one.")
    return next(iter(groups.values()), None)


def _shards_for(layer: ShardedLocalKernelRidge, count: int) -> Shards:
    if layer.shards.total == count:
        return layer.shards
    learned = [name for name in PER_CENTER if name in layer._parameters]
    if learned:
        raise InputError(
            f"The checkpoint has {count} centers, the layer {layer.shards.total}, and {' and '.join(learned)} are learned, "
            f"so that an optimizer may hold them. Build the layer with {count} centers over all ranks, of any value."
        )
    return even_shards(count, len(layer.shards.sizes))


class _SavePlanner(DefaultSavePlanner):
    """Rows of a shard are a piece of a tensor with the rows of all."""

    def __init__(self, state: dict[str, Tensor], pieces: dict[str, Shards], rank: int) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._state, self._pieces, self._rank = state, pieces, rank

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items: list[WriteItem] = []
        # Every tensor is in the plan of every rank; torch drops what several ranks would write.
        for item in plan.items:
            shards = self._pieces.get(item.index.fqn)
            items += [item] if shards is None else self._piece(item.index.fqn, shards)
        return dataclasses.replace(plan, items=items)

    def _piece(self, name: str, shards: Shards) -> list[WriteItem]:
        tensor = self._state[name]
        if not len(tensor):
            return []
        offsets = torch.Size([shards.start(self._rank), *(0 for _ in tensor.shape[1:])])
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=offsets, sizes=tensor.shape),
            properties=TensorProperties.create_from_tensor(tensor),
            size=torch.Size([shards.total, *tensor.shape[1:]]),
        )
        return [WriteItem(index=MetadataIndex(name, offsets), type=WriteItemType.SHARD, tensor_data=data)]

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._state[index.fqn]


class _LoadPlanner(DefaultLoadPlanner):
    """The piece of each tensor that a rank wants, from whatever pieces were written."""

    def __init__(self, state: dict[str, Tensor], pieces: dict[str, Shards], rank: int) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._state, self._pieces, self._rank = state, pieces, rank

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, tensor in self._state.items():
            start = self._pieces[name].start(self._rank) if name in self._pieces else 0
            offsets = torch.Size([start, *(0 for _ in tensor.shape[1:])]) if tensor.ndim else torch.Size([])
            wanted = ChunkStorageMetadata(offsets=offsets, sizes=tensor.shape)
            about = self.metadata.state_dict_metadata[name]
            if tensor.numel() and isinstance(about, TensorStorageMetadata):
                items += create_read_items_for_chunk_list(name, about, [wanted])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._state[index.fqn]


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str], verb: str) -> Iterator[None]:
    """Errors of torch's checkpoints, in one line that names the folder."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is what was asked for
            yield
    except (OSError, CheckpointException) as error:
        text = " ".join(str(error).split())
        raise FileError(f"The checkpoint {path} cannot be {verb}: {text[-300:]}") from error


__all__ = ["load", "save"]
