"""Which search is quickest, and what does an approximate one cost in accuracy?

    python -m benchmarks.search --out benchmarks/results

Exact search, inverted lists and a graph on points with and without structure; what `AutoIndex` chooses; one query against a
thousand centers; and a million centers end to end: index built and 10,000 queries predicted through `LocalKernelRidge`
with `index="auto"`, against the same layer with exact search. M = 100, float32. An interrupted run goes on where it was.
Writes `search.jsonl` and `search.md`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks import harness
from torchkrr import kernels, neighbors, nn

T = TypeVar("T")
NEIGHBORS, FEATURES = 100, 32
EXACT = [(1000, 50_000, 512), (10_000, 10_000, 32), (1000, 100_000, 32), (1000, 1_000_000, 32)]
KINDS = ("clustered", "gaussian")


def cases() -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    yield "one query, N=1000, D=32", one_query
    for queries, centers, features in EXACT:
        yield f"exact, Q={queries}, N={centers}, D={features}", partial(exact, queries, centers, features)
    for kind in KINDS:
        for factory in ("IVF256,Flat", "HNSW32"):
            yield f"{factory}, {kind}, N=100000, D=32", partial(approximate, kind, factory, 100_000)
        yield f"IVF1024,Flat, {kind}, N=1000000, D=32", partial(approximate, kind, "IVF1024,Flat", 1_000_000)
    for kind in KINDS:
        for method in ("auto", "exact"):
            yield f"million, {kind}, {method}", partial(in_own_process, kind, method)


def points(kind: str, count: int, seed: int) -> Tensor:
    """Rows without any structure, or in 200 clusters of different widths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, FEATURES, generator=generator)
    if kind == "gaussian":
        return rows
    places = 1.5 * torch.randn(200, FEATURES, generator=torch.Generator().manual_seed(0))
    which = torch.randint(200, (count,), generator=generator)
    return rows.mul_(0.3 + 0.4 * (which % 7)[:, None] / 7).add_(places[which])


def function(x: Tensor) -> Tensor:
    """Smooth, in all features."""
    return torch.sin(x[:, :8].sum(1) / 3).add_(torch.cos(x[:, 8:16].sum(1) / 4)).add_(x[:, 16:].tanh().mean(1))[:, None]


def timed(function: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def one_query() -> harness.Record:
    torch.manual_seed(0)
    query, centers, values = torch.randn(1, 32), torch.randn(1000, 32), torch.randn(1000, 10)
    layer = nn.LocalKernelRidge(centers, values, NEIGHBORS)
    plain = nn.LocalKernelRidge(centers, values, NEIGHBORS, kernel=kernels.Exponential(8.0))
    with torch.no_grad():
        embedded = plain.kernel.embed(query)
        functions: dict[str, Callable[[], object]] = {
            "layer, default kernel": lambda: layer(query),
            "layer, Exponential": lambda: plain(query),
            "neighbors, Exponential": lambda: plain.neighbors(query),
            "search alone": lambda: plain.index.search(embedded, NEIGHBORS),
        }
        return {"milliseconds": {k: 1e3 * v for k, v in harness.interleaved(functions, repeats=200).items()}}


def exact(num_queries: int, num_centers: int, features: int) -> harness.Record:
    torch.manual_seed(0)
    query, centers = torch.randn(num_queries, features), torch.randn(num_centers, features)
    build, index = timed(lambda: neighbors.ExactIndex().build(centers))
    found = harness.interleaved({"search": lambda: index.search(query, NEIGHBORS)}, repeats=5 if num_centers < 1e6 else 1)
    nanoseconds = found["search"] / num_queries / num_centers * 1e9
    return {"build": build, "search": found["search"], "nanoseconds_per_pair": nanoseconds}


def approximate(kind: str, factory: str, count: int) -> harness.Record:
    centers, query = points(kind, count, 1), points(kind, 1000, 2)
    index = neighbors.FaissIndex(factory)
    build, _ = timed(lambda: index.build(centers))
    efforts = (128, 256, 512) if "HNSW" in factory else (4, 16, 64, 128)
    found = []
    for effort in efforts:
        index.nprobe = index.ef_search = effort
        seconds, _ = timed(lambda: index.search(query, NEIGHBORS))
        recall = neighbors.recall(index, query, NEIGHBORS, sample=200)
        found.append({"effort": effort, "microseconds": seconds * 1e3, "recall": recall})
    return {"build": build, "efforts": found}


def in_own_process(kind: str, method: str) -> harness.Record:
    """Peak memory is that of a process."""
    command = [sys.executable, "-m", "benchmarks.search", "--million", kind, method]
    found: harness.Record = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def million(kind: str, method: str) -> harness.Record:
    centers, query = points(kind, 1_000_000, 1), points(kind, 10_000, 2)
    noise = 0.1 * torch.randn(len(centers), 1, generator=torch.Generator().manual_seed(3))
    values, truth = function(centers).add_(noise), function(query)
    kernel = kernels.Matern32(float(torch.pdist(centers[:500]).mean()))
    layer = nn.LocalKernelRidge(
        centers, values, NEIGHBORS, kernel=kernel, ridge=1e-2, index="auto" if method == "auto" else None
    )
    with torch.no_grad():
        build, _ = timed(lambda: layer(query[:1]))  # the first call builds
        search, _ = timed(lambda: layer.neighbors(query))
        predict, found = timed(lambda: layer(query))
        memory = harness.peak_megabytes()
        recall = neighbors.recall(layer.index, layer.kernel.embed(query), NEIGHBORS, sample=500)
    rmse = float((found - truth).square().mean().sqrt())
    return {
        "build": build,
        "search": search,
        "predict": predict,
        "build and predict": build + predict,
        "megabytes": memory,
        "recall": recall,
        "rmse": rmse,
        "spread": float(truth.std()),
        "choice": str(getattr(layer.index, "choice", "exact")),
    }


def summarize(records: list[harness.Record]) -> str:
    by_case = {record["case"]: record for record in records}
    machine = by_case["environment"]
    lines = [
        "# Search benchmark",
        "",
        "Made by `python -m benchmarks.search`; records in `search.jsonl`.",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, float32, M = {NEIGHBORS}.",
        "",
        "| one query against N = 1000, D = 32 | milliseconds |",
        "|---|---|",
        *(f"| {name} | {value:.2f} |" for name, value in by_case["one query, N=1000, D=32"]["milliseconds"].items()),
        "",
        "| exact search | build, s | search, s | ns per query and point |",
        "|---|---|---|---|",
    ]
    for record in records:
        if record["case"].startswith("exact, "):
            name = record["case"].removeprefix("exact, ")
            numbers = f"{record['build']:.2f} | {record['search']:.2f} | {record['nanoseconds_per_pair']:.1f}"
            lines.append(f"| {name} | {numbers} |")
    lines += ["", "| faiss, 1000 queries | build, s | effort: microseconds per query, recall |", "|---|---|---|"]
    for record in records:
        if "efforts" in record:
            efforts = "; ".join(f"{e['effort']}: {e['microseconds']:.0f}, {e['recall']:.3f}" for e in record["efforts"])
            lines.append(f"| {record['case']} | {record['build']:.1f} | {efforts} |")
    lines += [
        "",
        "A million centers (D = 32, C = 1, noise 0.1), 10,000 queries, `LocalKernelRidge`:",
        "",
        '| points, index | build, s | predict, s | peak memory, MB | recall | RMSE | to exact | choice of "auto" |',
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        for method in ("auto", "exact"):
            record = by_case[f"million, {kind}, {method}"]
            ratio = record["rmse"] / by_case[f"million, {kind}, exact"]["rmse"]
            lines.append(
                f"| {kind}, {method} | {record['build']:.1f} | {record['predict']:.1f} | {record['megabytes']:.0f} "
                f"| {record['recall']:.3f} | {record['rmse']:.4f} | {ratio:.4f} | {record['choice']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--million", nargs=2, metavar=("POINTS", "INDEX"), help="one case, printed, nothing written")
    arguments = parser.parse_args()
    if arguments.million:
        print(json.dumps(million(*arguments.million)))
        return
    records = harness.record(arguments.out / "search.jsonl", cases())
    text = summarize(records)
    (arguments.out / "search.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
