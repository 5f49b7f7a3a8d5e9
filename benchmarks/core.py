"""How fast is the core, and how does it grow?

    python -m benchmarks.core --out benchmarks/results        # or: make bench
    python -m benchmarks.core --quick                         # or: make bench-quick

The local solve, forward and with gradients, against the same formula in plain torch, and how much of the rate of one matrix
product it reaches; peak memory; time against Q and N. M = 100, C = 10, float32, one machine, one run, best of five, error
beside time. For searches see `benchmarks.search`. Writes `core.jsonl`, `core.md` and `core.png`; with `--quick` only the
first two, of fewer cases and the best of two, in `runs/bench`.

GFLOP/s count M^2 D + M^3 / 3 operations for a query, a product and a sum as two: half of the product of the neighbors with
themselves, which is symmetric, and the factorization. Instructions per cycle are counted by `perf` where it can.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from benchmarks import harness, plain
from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn

NEIGHBORS, OUTPUTS, RIDGE = 100, 10, 1e-6
Method = Callable[[Tensor, Tensor, Tensor], Tensor]
CHUNKS = (64, 256)  # plain torch is given the better of these
# Name: features, centers, neighbors, queries
SOLVES = {f"local solve, D={features}": (features, 20_000, NEIGHBORS, 2000) for features in (8, 32, 512)}
FEW = "few centers, N=1000, M=500, D=1280"  # whose inner products are formed once for all queries
SOLVES[FEW] = (1280, 1000, 500, 128)
QUICK = "growth, Q=2000, N=20000, D=32"
PRODUCT = 1536  # rows and columns of the matrices whose product is the machine's rate


def cases(*, quick: bool = False) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name, sizes in SOLVES.items():
        features, centers, neighbors_, queries = sizes
        chunks = tuple(chunk // 16 for chunk in CHUNKS) if name == FEW else CHUNKS
        if quick:
            yield (
                name,
                partial(
                    local_solve, features, centers, neighbors_, max(queries // 4, min(queries, 64)), chunks[:1], repeats=2
                ),
            )
        else:
            yield name, partial(local_solve, *sizes, chunks, repeats=5)
    if quick:
        yield QUICK, partial(growth, 2000, 20_000)
        return
    for task in ("search", "solve", "layer", "gradient"):
        yield f"memory of {task}, Q=10000, N=50000, D=512", partial(memory, task)
    for queries in (1000, 2000, 4000, 8000, 16000):
        yield f"growth, Q={queries}, N=20000, D=32", partial(growth, queries, 20_000)
    for centers in (10_000, 40_000, 80_000, 160_000):
        yield f"growth, Q=2000, N={centers}, D=32", partial(growth, 2000, centers)


def local_solve(
    features: int, num_centers: int, num_neighbors: int, num_queries: int, chunks: Sequence[int], *, repeats: int
) -> harness.Record:
    torch.manual_seed(0)
    query, centers = torch.randn(num_queries, features), torch.randn(num_centers, features)
    values = torch.randn(num_centers, OUTPUTS)
    lengthscale = float(torch.pdist(centers[:500]).mean())
    kernel = kernels.Exponential(lengthscale)
    indices = neighbors.nearest(query, centers, num_neighbors, kernel=kernel)

    def ours(query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=RIDGE)

    def other(chunk: int) -> Method:
        return partial(plain.local_kernel_ridge, indices=indices, lengthscale=lengthscale, ridge=RIDGE, chunk=chunk)

    methods: dict[str, Method] = {"torchkrr": ours, **{f"plain torch, chunks of {chunk}": other(chunk) for chunk in chunks}}
    exact = ours(query.double(), centers.double(), values.double())
    errors = {
        name: float((method(query, centers, values) - exact).square().mean().sqrt()) for name, method in methods.items()
    }
    matrix = torch.randn(PRODUCT, PRODUCT)
    with torch.no_grad():
        calls = {name: partial(method, query, centers, values) for name, method in methods.items()}
        forward = harness.interleaved({**calls, "product": partial(torch.mm, matrix, matrix)}, repeats)
        per_cycle = harness.instructions_per_cycle(calls["torchkrr"])
    product = 2e-9 * PRODUCT**3 / forward.pop("product")
    rate = 1e-9 * num_queries * (num_neighbors**2 * features + num_neighbors**3 / 3) / forward["torchkrr"]
    leaves = [tensor.clone().requires_grad_() for tensor in (query, centers, values)]

    def with_gradients(method: Method) -> object:
        return torch.autograd.grad(method(*leaves).sum(), leaves)

    both = harness.interleaved({name: partial(with_gradients, method) for name, method in methods.items()}, repeats)
    return {
        "forward_us": {name: seconds / num_queries * 1e6 for name, seconds in forward.items()},
        "forward_backward_us": {name: seconds / num_queries * 1e6 for name, seconds in both.items()},
        "rmse_against_float64": errors,
        "forward_ratio": ratio(forward),
        "forward_backward_ratio": ratio(both),
        "gflops": rate,
        "product_gflops": product,
        "of_product": rate / product,
        "instructions_per_cycle": per_cycle,
    }


def ratio(seconds: dict[str, float]) -> float:
    return min(value for name, value in seconds.items() if name != "torchkrr") / seconds["torchkrr"]


def memory(task: str) -> harness.Record:
    command = [sys.executable, "-m", "benchmarks.memory", task]
    found: harness.Record = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def growth(num_queries: int, num_centers: int) -> harness.Record:
    torch.manual_seed(0)
    query, centers, values = torch.randn(num_queries, 32), torch.randn(num_centers, 32), torch.randn(num_centers, OUTPUTS)
    layer = nn.LocalKernelRidge(centers, values, NEIGHBORS, kernel=kernels.Exponential(8.0), ridge=RIDGE)
    with torch.no_grad():
        indices = layer.neighbors(query)
        seconds = harness.interleaved(
            {
                "search": lambda: layer.neighbors(query),
                "solve": lambda: F.local_kernel_ridge(query, centers, values, indices, kernel=layer.kernel, ridge=RIDGE),
                "end to end": lambda: layer(query),
            },
            repeats=3,
        )
    return {"seconds": seconds, "queries": num_queries, "centers": num_centers}


def draw(records: list[harness.Record], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for panel, (key, other, label) in zip(
        axes, (("queries", "centers", "queries Q"), ("centers", "queries", "centers N")), strict=True
    ):
        grown = [record for record in records if record["case"].startswith("growth")]
        fixed = {"queries": 2000, "centers": 20_000}[other]
        grown = sorted((record for record in grown if record[other] == fixed), key=lambda record: record[key])
        sizes = [record[key] for record in grown]
        for stage, color in {"end to end": "#222222", "solve": "#0b6e99", "search": "#d9730d"}.items():
            seconds = [record["seconds"][stage] for record in grown]
            panel.plot(sizes, seconds, marker="o", color=color, label=stage, linewidth=1.8)
        reference = grown[0]["seconds"]["end to end"]
        panel.plot(sizes, [reference * size / sizes[0] for size in sizes], color="#999999", linestyle=":", label="linear")
        panel.set(xscale="log", yscale="log", xlabel=label, title=f"{fixed:,} {other}")
        panel.grid(alpha=0.25, which="both")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def summarize(records: list[harness.Record]) -> str:
    by_case = {record["case"]: record for record in records}
    machine = by_case["environment"]
    lines = [
        "# Core benchmark",
        "",
        "Made by `python -m benchmarks.core`; records in `core.jsonl`.",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}.",
        "float32, M = 100, C = 10, best of 5, of growth the best of 3.",
        "",
        "| task | torchkrr | other | ratio |",
        "|---|---|---|---|",
    ]
    for case in SOLVES:
        found = by_case[case]
        for key, name in (("forward", "forward"), ("forward_backward", "forward + backward")):
            times = found[f"{key}_us"]
            best = min(value for method, value in times.items() if method != "torchkrr")
            lines.append(
                f"| {case}, {name} | {times['torchkrr']:.0f} us per query "
                f"| plain torch {best:.0f} us | {found[f'{key}_ratio']:.2f} |"
            )
        if case != FEW:  # which does not do the operations that are counted
            per_cycle = found["instructions_per_cycle"]
            counted = "" if per_cycle is None else f", {per_cycle:.1f} instructions per cycle"
            lines.append(
                f"| {case}, rate | {found['gflops']:.0f} GFLOP/s{counted} "
                f"| one matrix product {found['product_gflops']:.0f} GFLOP/s | {found['of_product']:.2f} |"
            )
    for case, found in by_case.items():
        if case.startswith("memory of"):
            lines.append(f"| peak extra {case} | {found['megabytes']:.0f} MB | | |")
    if QUICK in by_case:
        stages = ", ".join(f"{stage} {1e3 * seconds:.0f} ms" for stage, seconds in by_case[QUICK]["seconds"].items())
        lines.append(f"| {QUICK.removeprefix('growth, ')} | {stages} | | |")
    for key, other, fixed, stage in (("queries", "centers", 20_000, "end to end"), ("centers", "queries", 2000, "search")):
        grown = [r for r in records if r["case"].startswith("growth") and r[other] == fixed]
        if len(grown) > 1:
            sizes = np.log([record[key] for record in grown])
            slope = np.polyfit(sizes, np.log([record["seconds"][stage] for record in grown]), 1)[0]
            lines.append(f"| growth with {key}, {stage} | power {slope:.2f} | linear is 1 | |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="default: benchmarks/results, with --quick runs/bench")
    parser.add_argument("--quick", action="store_true", help="what can be had in three minutes")
    chosen = parser.parse_args(words)
    out = chosen.out or pathlib.Path("runs/bench" if chosen.quick else "benchmarks/results")
    records = harness.record(out / "core.jsonl", cases(quick=chosen.quick))
    if not chosen.quick:
        draw(records, out / "core.png")
    text = summarize(records)
    if chosen.quick:
        text = text.replace("best of 5, of growth the best of 3", "the best of few: for a look, not for the record")
    (out / "core.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
