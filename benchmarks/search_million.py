"""A million points with the spectrum of real features, searched in one way, in a process of its own.

    python -m benchmarks.search_million exact|lists|graph|mapped FEATURES

Points are normal, with the 256 leading variances of the features in the file, in turned directions, so that no feature
stands out. Prints the seconds to build, for 1000 queries and for one, the recall, and the memory that index and searches
need beside the points. `benchmarks.search` calls it.
"""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from torchkrr import neighbors

COUNT, WIDTH, QUERIES, NEIGHBORS = 1_000_000, 256, 1000, 100
SAMPLE = 100  # queries that the recall is measured on
BLOCK = 50_000
# How hard an approximate index searches: lists that are visited, or points that are kept in mind.
METHODS: dict[str, tuple[int, ...]] = {"exact": (0,), "lists": (8, 32, 128), "graph": (128, 512), "mapped": (0,)}


def run(method: str, features: pathlib.Path, count: int = COUNT) -> harness.Record:
    draw = spread_like(torch.load(features)["x"].float())
    with tempfile.TemporaryDirectory() as folder:
        if method == "mapped":  # never in memory as a whole
            points = torch.from_numpy(np.memmap(f"{folder}/points", dtype=np.float32, mode="w+", shape=(count, WIDTH)))
        else:
            points = torch.empty(count, WIDTH)
        for number, block in enumerate(points.split(BLOCK), start=1):
            block.copy_(draw(len(block), number))
        return measured(method, points, draw(QUERIES, 0))


def spread_like(features: Tensor) -> Callable[[int, int], Tensor]:
    """What draws `(count, WIDTH)` points, the same ones for the same seed."""
    variances = torch.linalg.eigvalsh(features.T.cov().double()).flip(0)[:WIDTH].float()
    turned = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))).Q
    axes = variances.sqrt().unsqueeze(1) * turned

    def draw(count: int, seed: int) -> Tensor:
        return torch.mm(torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)), axes)

    return draw


def measured(method: str, points: Tensor, query: Tensor) -> harness.Record:
    index = made(method, len(points))
    found: list[harness.Record] = []
    with peak() as megabytes:
        build, _ = harness.timed(lambda: index.build(points))
        first, _ = harness.timed(lambda: index.search(query, NEIGHBORS))
        for effort in METHODS[method]:
            set_effort(index, effort)
            functions: dict[str, Callable[[], object]] = {"together": lambda: index.search(query, NEIGHBORS)}
            if method != "mapped":  # which reads the file once for one query as for all
                functions["alone"] = lambda: index.search(query[:1], NEIGHBORS)
            found.append({"effort": effort, "seconds": harness.interleaved(functions, repeats=2)})
    for record in found:
        set_effort(index, record["effort"])
        record["recall"] = neighbors.recall(index, query, NEIGHBORS, sample=SAMPLE)
    sizes = {"points": len(points), "features": points.shape[1], "queries": len(query)}
    return {**sizes, "build": build, "first": first, "efforts": found, "megabytes": max(megabytes) - megabytes[0]}


def made(method: str, count: int) -> neighbors.NeighborIndex:
    if method == "exact":
        return neighbors.ExactIndex()
    if method == "mapped":
        return neighbors.StreamedIndex()
    return neighbors.FaissIndex("HNSW32" if method == "graph" else f"IVF{1 << round(math.log2(count) / 2)},Flat")


def set_effort(index: neighbors.NeighborIndex, effort: int) -> None:
    if isinstance(index, neighbors.FaissIndex):
        index.nprobe = index.ef_search = effort


@contextlib.contextmanager
def peak() -> Iterator[list[float]]:
    """Megabytes of this process, again and again; without those of mapped files, which the system may take back."""
    done, found = threading.Event(), [anonymous_megabytes()]

    def watch() -> None:
        while not done.wait(0.02):
            found.append(anonymous_megabytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def anonymous_megabytes() -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], pathlib.Path(sys.argv[2]))))
