"""What the ranks of a team do apart and together; see `checks`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence

import torch
from tests.distributed.problems import World
from torch import Tensor

from torchkrr.distributed.launch import AllRanks, SingleProcess
from torchkrr.errors import DistributedError

COUNT = 7  # rows: not as many for every rank, and with four ranks in a last round that one of them sits out


def teams(world: World, dtype: torch.dtype) -> dict[str, float | bool]:
    team, rows = AllRanks(process_group=world.group), torch.arange(2.0 * COUNT, dtype=dtype).view(COUNT, 2)
    shared = list(team.shared_out(range(COUNT), lambda numbers: numbered(numbers, rows)))
    calls: list[int] = []
    folder = pathlib.Path(f"{world.folder}-team")
    return {
        "the first does it": team.only_first(calls.append, 1) is None and len(calls) == (world.rank == 0),
        "the first tells": team.first(lambda: {"rank": world.rank, "rows": rows}).get("rank") == 0,
        "the first comes first": team.first_of_all(made_by, folder, world.rank) == "0",
        "shared out": same(shared, list(SingleProcess().shared_out(range(COUNT), lambda all_: numbered(all_, rows))))
        == team.is_first,
        "one fails, all stop": stops(team, world.rank, world.size - 1),
    }


def numbered(numbers: Sequence[int], rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    for number in numbers:
        yield number, rows[: number + 1]


def same(found: list[tuple[int, Tensor]], expected: list[tuple[int, Tensor]]) -> bool:
    """In whatever order; of a rank that got nothing it is false."""
    found = sorted(found, key=lambda part: part[0])
    return len(found) == len(expected) and all(
        number == other and torch.equal(rows, others)
        for (number, rows), (other, others) in zip(found, expected, strict=True)
    )


def made_by(file: pathlib.Path, rank: int) -> str:
    """Who has written the file."""
    if not file.exists():
        file.write_text(str(rank))
    return file.read_text()


def stops(team: AllRanks, rank: int, failing: int) -> bool:
    """The rank that fails raises its own error, the others one that names it."""
    expected, words = (KeyError, "mine") if rank == failing else (DistributedError, f"Rank {failing} could not do its part")
    return raised(lambda: list(team.shared_out(range(COUNT), lambda _: fails(rank == failing))), expected, words)


def fails(at_once: bool) -> Iterator[tuple[int, Tensor]]:
    if at_once:
        raise KeyError("mine")
    yield 0, torch.zeros(1, 1)


def raised(call: Callable[[], object], kind: type[Exception], words: str) -> bool:
    try:
        call()
    except kind as error:
        return words in str(error)
    return False
