"""Checkpoints, by every rank of one launch; as in `checks`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import torch
from tests.distributed.problems import NUM_CENTERS, NUM_FEATURES, QUERIES, World, data, error, plain, sharded

from torchkrr import errors
from torchkrr.distributed import ShardedLocalKernelRidge, checkpoint

Found = dict[str, float | bool]


def checkpoints(world: World, dtype: torch.dtype) -> Found:
    """Written by these ranks: read by fewer of them, by the same with other shards, and by each into a plain layer."""
    centers, values, query = data(dtype)
    asked = world.own(query, QUERIES)
    parts = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype), sharded(world, centers, values))
    torch.nn.init.eye_(parts[0].weight)
    torch.nn.init.zeros_(parts[0].bias)
    checkpoint.save(parts, world.folder)
    expected = plain(centers, values)(query)
    # Another number of centers and another layout, to be replaced.
    other = ShardedLocalKernelRidge(asked + 1, asked[:, :2], 12, process_group=world.group, ridge=1e-2)
    again = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype), other)
    checkpoint.load(again, world.folder)
    alone = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype), plain(query, query[:, :2]))
    checkpoint.load(alone, world.folder)
    learned = torch.nn.Sequential(
        torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype), sharded(world, centers + 1, values, learn_centers=True)
    )
    before = learned[1].centers
    checkpoint.load(learned, world.folder)
    too_few = ShardedLocalKernelRidge(
        asked, asked[:, :2], 12, process_group=world.group, ridge=1e-2, learn_values=True, kernel=learned[1].kernel
    )
    stranger = torch.nn.Sequential(torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype), too_few)
    return {
        "same ranks": error(again(asked), world.own(expected, QUERIES)),
        "evenly": len(other.centers) in (NUM_CENTERS // world.size, NUM_CENTERS // world.size + 1),
        "one process": error(alone(query), expected),
        "in place": before is learned[1].centers and error(learned(asked), world.own(expected, QUERIES)) < 1e-6,
        "learned of another size": raised(lambda: checkpoint.load(stranger, world.folder), "learned"),
        "nothing there": raised(lambda: checkpoint.load(alone, world.folder + "-none"), "cannot be read"),
        "another module": raised(lambda: checkpoint.load(alone[1], world.folder), "does not hold"),
    }


def checkpoints_of_others(world: World, dtype: torch.dtype) -> Found:
    """Written by every smaller number of ranks before, and by one process: read by these."""
    centers, values, query = data(dtype)
    asked, expected, found = world.own(query, QUERIES), world.own(plain(centers, values)(query), QUERIES), {}
    alone = pathlib.Path(world.folder).with_name("alone")
    if world.size == 1:
        checkpoint.save(torch.nn.Sequential(torch.nn.Identity(), plain(centers, values)), alone)
    for size in range(1, world.size):
        linear = torch.nn.Linear(NUM_FEATURES, NUM_FEATURES, dtype=dtype)
        parts = torch.nn.Sequential(linear, sharded(world, centers + 1, values))
        checkpoint.load(parts, pathlib.Path(world.folder).with_name(f"checkpoints-float64-{size}"))
        found[f"from {size} ranks"] = error(parts(asked), expected)
    parts = torch.nn.Sequential(torch.nn.Identity(), sharded(world, centers + 1, values))
    checkpoint.load(parts, alone)
    return {**found, "from one process": error(parts(asked), expected)}


def raised(call: Callable[[], object], words: str) -> bool:
    """Whether it fails with an error of the library that has these words."""
    try:
        call()
    except errors.KernelRidgeError as found:
        return words in str(found)
    return False
