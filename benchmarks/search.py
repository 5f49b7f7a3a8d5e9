"""Which search is quickest, and what does an approximate one cost in accuracy?

    python -m benchmarks.search --out benchmarks/results --features FILE

Exact search against faiss's flat index and a product with a selection; one query of a layer, stage by stage; inverted lists
and a graph on points with and without structure; what `AutoIndex` chooses; a million centers end to end: index built and
10,000 queries predicted through `LocalKernelRidge` with `index="auto"`, against the same layer with exact search; and a
million points with the spectrum of real features, searched in four ways. M = 100, float32. An interrupted run goes on where
it was.

FILE holds features of CIFAR-10 by a frozen network, as `torch.save` writes a dictionary: "x" `(50000, D)` of the training
images, "xt" `(10000, D)` of the test images. Without it the cases that need them are named as missing. Writes `search.jsonl`
and `search.md`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks import harness, search_million
from benchmarks.search_report import summarize
from torchkrr import kernels, neighbors, nn
from torchkrr.core.local import solve_local
from torchkrr.errors import MissingExtraError

NEIGHBORS, FEATURES = 100, 32
QUERIES, CENTERS, WIDTHS = 1000, 50_000, (512, 1280)  # of the comparison of exact searches
CHUNKS = (64, 256)  # queries of a product with a selection, which is given the better of these
EXACT = [(1000, 50_000, 512), (10_000, 10_000, 32), (1000, 100_000, 32), (1000, 1_000_000, 32)]
KINDS = ("clustered", "gaussian")
NO_FILE = "give features of CIFAR-10 with --features"


def cases(features: pathlib.Path | None) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for kind in ("real", "normal"):
        for width in WIDTHS:
            yield f"compared, {kind}, D={width}", partial(compared, kind, width, features)
    yield "one query, N=1000, D=32", one_query
    for kind, count, width in [("normal", 1000, w) for w in WIDTHS] + [("normal", CENTERS, w) for w in WIDTHS]:
        yield f"stages, {kind}, N={count}, D={width}", partial(stages, kind, count, width, features)
    yield f"stages, real, N={CENTERS}, D={WIDTHS[-1]}", partial(stages, "real", CENTERS, WIDTHS[-1], features)
    for queries, centers, width in EXACT:
        yield f"exact, Q={queries}, N={centers}, D={width}", partial(exact, queries, centers, width)
    for kind in KINDS:
        for factory in ("IVF256,Flat", "HNSW32"):
            yield f"{factory}, {kind}, N=100000, D=32", partial(approximate, kind, factory, 100_000)
        yield f"IVF1024,Flat, {kind}, N=1000000, D=32", partial(approximate, kind, "IVF1024,Flat", 1_000_000)
    for kind in KINDS:
        for method in ("auto", "exact"):
            yield f"million, {kind}, {method}", partial(in_own_process, "search", "--million", kind, method)
    for method in search_million.METHODS:
        yield f"spectrum, {method}", partial(spectrum, method, features)


def data(kind: str, width: int, features: pathlib.Path | None) -> tuple[Tensor, Tensor]:
    """Queries and points: images of CIFAR-10, at a smaller width by a random projection; or normal numbers."""
    generator = torch.Generator().manual_seed(0)
    if kind == "normal":
        return torch.randn(QUERIES, width, generator=generator), torch.randn(CENTERS, width, generator=generator)
    assert features is not None
    found = torch.load(features)
    query, centers = found["xt"][:QUERIES].float(), found["x"][:CENTERS].float()
    if width == centers.shape[1]:
        return query.contiguous(), centers.contiguous()
    projection = torch.randn(centers.shape[1], width, generator=generator) / width**0.5
    return query @ projection, centers @ projection


def compared(kind: str, width: int, features: pathlib.Path | None) -> harness.Record:
    if kind == "real" and features is None:
        return {"missing": NO_FILE}
    query, centers = data(kind, width, features)
    squares = centers.square().sum(1)
    build, index = harness.timed(lambda: neighbors.ExactIndex().build(centers))
    first, _ = harness.timed(lambda: index.search(query, NEIGHBORS))  # makes the copy in 8 bits, where there is one
    found: dict[str, Tensor] = {}

    def selected(chunk: int) -> None:
        scores = (torch.addmm(squares, part, centers.T, alpha=-2) for part in query.split(chunk))
        rows = [score.topk(NEIGHBORS, largest=False).indices for score in scores]
        found["product and selection"] = torch.cat(rows)

    functions: dict[str, Callable[[], object]] = {
        "torchkrr": lambda: found.update(torchkrr=index.search(query, NEIGHBORS).indices),
        **{f"product and selection, {chunk} at a time": partial(selected, chunk) for chunk in CHUNKS},
        "product alone": lambda: torch.mm(query, centers.T),
    }
    try:
        neighbors.FaissIndex("Flat")
    except MissingExtraError as error:
        return {"missing": str(error)}
    import faiss

    flat = faiss.IndexFlatL2(width)
    flat.add(centers.numpy())
    functions["faiss.IndexFlatL2"] = lambda: found.update(faiss=torch.from_numpy(flat.search(query.numpy(), NEIGHBORS)[1]))
    seconds = harness.interleaved(functions)
    truth = in_float64(query, centers)
    share = {name: float((rows.unsqueeze(2) == truth.unsqueeze(1)).any(2).double().mean()) for name, rows in found.items()}
    others = [time for name, time in seconds.items() if name not in ("torchkrr", "product alone")]
    ratio = min(others) / seconds["torchkrr"]
    return {"build": build, "first": first, "seconds": seconds, "recall": share, "ratio": ratio}


def in_float64(query: Tensor, centers: Tensor) -> Tensor:
    mean = centers.mean(0)
    query, centers = (query - mean).double(), (centers - mean).double()
    squares = centers.square().sum(1)
    scores = (torch.addmm(squares, q, centers.T, alpha=-2) for q in query.split(100))
    return torch.cat([score.topk(NEIGHBORS, largest=False).indices for score in scores])


def stages(kind: str, count: int, width: int, features: pathlib.Path | None) -> harness.Record:
    """One query of a layer, and what each part of the call takes alone."""
    if kind == "real" and features is None:
        return {"missing": NO_FILE}
    query, centers = data(kind, width, features)
    query, centers = query[:1], centers[:count].clone()
    values = torch.randn(len(centers), 10)
    kernel = kernels.Exponential(float(torch.pdist(centers[:500]).mean()))
    layer = nn.LocalKernelRidge(centers, values, NEIGHBORS, kernel=kernel)
    with torch.no_grad():
        for _ in range(20):  # after some calls the index has its copy in 8 bits
            layer(query)
        points, embedded, options = layer._embed(query), layer._embedded_centers(), layer._options(False)
        assert embedded is not None
        both, rows = (points, embedded), layer.index.find(points, NEIGHBORS).indices
        functions: dict[str, Callable[[], object]] = {
            "whole call": lambda: layer(query),
            "checks": lambda: layer._check_query(layer._flat(query), layer.centers, layer.values),
            "embedding": lambda: layer._embed(query),
            "are the centers the same?": layer._embedded_centers,
            "search": lambda: layer.index.find(points, NEIGHBORS),
            "gather and solve": lambda: solve_local(query, centers, values, rows, options, "mean", embedded=both),
            "query @ centers.T": lambda: query @ centers.T,
        }
        seconds = harness.interleaved(functions, repeats=50)
    return {
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "of a product": seconds["whole call"] / seconds["query @ centers.T"],
    }


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


def exact(num_queries: int, num_centers: int, width: int) -> harness.Record:
    torch.manual_seed(0)
    query, centers = torch.randn(num_queries, width), torch.randn(num_centers, width)
    build, index = harness.timed(lambda: neighbors.ExactIndex().build(centers))
    found = harness.interleaved({"search": lambda: index.search(query, NEIGHBORS)}, repeats=5 if num_centers < 1e6 else 1)
    nanoseconds = found["search"] / num_queries / num_centers * 1e9
    return {"build": build, "search": found["search"], "nanoseconds_per_pair": nanoseconds}


def approximate(kind: str, factory: str, count: int) -> harness.Record:
    centers, query = points(kind, count, 1), points(kind, 1000, 2)
    index = neighbors.FaissIndex(factory)
    build, _ = harness.timed(lambda: index.build(centers))
    efforts = (128, 256, 512) if "HNSW" in factory else (4, 16, 64, 128)
    found = []
    for effort in efforts:
        index.nprobe = index.ef_search = effort
        seconds, _ = harness.timed(lambda: index.search(query, NEIGHBORS))
        recall = neighbors.recall(index, query, NEIGHBORS, sample=200)
        found.append({"effort": effort, "microseconds": seconds * 1e3, "recall": recall})
    return {"build": build, "efforts": found}


def in_own_process(module: str, *words: str) -> harness.Record:
    """Peak memory is that of a process."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    found: harness.Record = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def spectrum(method: str, features: pathlib.Path | None) -> harness.Record:
    return {"missing": NO_FILE} if features is None else in_own_process("search_million", method, str(features))


def million(kind: str, method: str) -> harness.Record:
    centers, query = points(kind, 1_000_000, 1), points(kind, 10_000, 2)
    noise = 0.1 * torch.randn(len(centers), 1, generator=torch.Generator().manual_seed(3))
    values, truth = function(centers).add_(noise), function(query)
    kernel = kernels.Matern32(float(torch.pdist(centers[:500]).mean()))
    layer = nn.LocalKernelRidge(
        centers, values, NEIGHBORS, kernel=kernel, ridge=1e-2, index="auto" if method == "auto" else None
    )
    with torch.no_grad():
        build, _ = harness.timed(lambda: layer(query[:1]))  # the first call builds
        search, _ = harness.timed(lambda: layer.neighbors(query))
        predict, found = harness.timed(lambda: layer(query))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--features", type=pathlib.Path, help="features of CIFAR-10, a file as above")
    parser.add_argument("--million", nargs=2, metavar=("POINTS", "INDEX"), help="one case, printed, nothing written")
    arguments = parser.parse_args()
    if arguments.million:
        print(json.dumps(million(*arguments.million)))
        return
    records = harness.record(arguments.out / "search.jsonl", cases(arguments.features))
    text = summarize(records)
    (arguments.out / "search.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
