"""How fast is the core, and how does it grow?

    python -m benchmarks.core --out benchmarks/results        # or: make bench

Exact search against faiss's flat index; the local solve, forward and with gradients, against the same formula in plain
torch; peak memory; time against Q and N. M = 100, C = 10, float32, one machine, one run, best of five, error beside time.
Writes `core.jsonl`, `core.md` and `core.png`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from torchkrr.errors import MissingExtraError

NEIGHBORS, OUTPUTS, RIDGE = 100, 10, 1e-6
Method = Callable[[Tensor, Tensor, Tensor], Tensor]
CHUNKS = (64, 256)  # plain torch is given the better of these


def cases() -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    yield "search, N=50000, D=512", search
    for features in (8, 32, 512):
        yield f"local solve, D={features}", partial(local_solve, features)
    for task in ("search", "solve", "layer", "gradient"):
        yield f"memory of {task}, Q=10000, N=50000, D=512", partial(memory, task)
    for queries in (1000, 2000, 4000, 8000, 16000):
        yield f"growth, Q={queries}, N=20000, D=32", partial(growth, queries, 20_000)
    for centers in (10_000, 40_000, 80_000, 160_000):
        yield f"growth, Q=2000, N={centers}, D=32", partial(growth, 2000, centers)


def search() -> harness.Record:
    torch.manual_seed(0)
    query, centers = torch.randn(1000, 512), torch.randn(50_000, 512)
    exact = neighbors.ExactIndex().build(centers)
    found: dict[str, Tensor] = {}
    functions: dict[str, Callable[[], object]] = {
        "torchkrr": lambda: found.update(torchkrr=exact.search(query, NEIGHBORS).indices),
        "matrix product alone": lambda: torch.mm(query, centers.T),
    }
    try:
        neighbors.FaissIndex("Flat")
    except MissingExtraError as error:
        return {"missing": str(error)}
    import faiss

    flat = faiss.IndexFlatL2(512)
    flat.add(centers.numpy())
    functions["faiss.IndexFlatL2"] = lambda: found.update(faiss=torch.from_numpy(flat.search(query.numpy(), NEIGHBORS)[1]))
    seconds = harness.interleaved(functions)
    double = (query.double().square().sum(1, keepdim=True) + centers.double().square().sum(1)) - 2 * (
        query.double() @ centers.double().T
    )
    truth = double.topk(NEIGHBORS, largest=False).indices
    recall = {name: float((rows.unsqueeze(2) == truth.unsqueeze(1)).any(2).double().mean()) for name, rows in found.items()}
    return {"seconds": seconds, "recall": recall, "ratio": seconds["faiss.IndexFlatL2"] / seconds["torchkrr"]}


def local_solve(features: int) -> harness.Record:
    torch.manual_seed(0)
    num_queries = 2000
    query, centers, values = torch.randn(num_queries, features), torch.randn(20_000, features), torch.randn(20_000, OUTPUTS)
    lengthscale = float(torch.pdist(centers[:500]).mean())
    kernel = kernels.Exponential(lengthscale)
    indices = neighbors.nearest(query, centers, NEIGHBORS, kernel=kernel)

    def ours(query: Tensor, centers: Tensor, values: Tensor) -> Tensor:
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=RIDGE)

    def other(chunk: int) -> Method:
        return partial(plain.local_kernel_ridge, indices=indices, lengthscale=lengthscale, ridge=RIDGE, chunk=chunk)

    methods: dict[str, Method] = {"torchkrr": ours, **{f"plain torch, chunks of {chunk}": other(chunk) for chunk in CHUNKS}}
    exact = ours(query.double(), centers.double(), values.double())
    errors = {
        name: float((method(query, centers, values) - exact).square().mean().sqrt()) for name, method in methods.items()
    }
    with torch.no_grad():
        forward = harness.interleaved({name: partial(method, query, centers, values) for name, method in methods.items()})
    leaves = [tensor.clone().requires_grad_() for tensor in (query, centers, values)]

    def with_gradients(method: Method) -> object:
        return torch.autograd.grad(method(*leaves).sum(), leaves)

    both = harness.interleaved({name: partial(with_gradients, method) for name, method in methods.items()})
    return {
        "forward_us": {name: seconds / num_queries * 1e6 for name, seconds in forward.items()},
        "forward_backward_us": {name: seconds / num_queries * 1e6 for name, seconds in both.items()},
        "rmse_against_float64": errors,
        "forward_ratio": ratio(forward),
        "forward_backward_ratio": ratio(both),
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
    found = by_case["search, N=50000, D=512"]
    if "missing" in found:
        lines.append(f"| exact search | | {found['missing']} | |")
    else:
        ours, theirs = found["seconds"]["torchkrr"], found["seconds"]["faiss.IndexFlatL2"]
        product = found["seconds"]["matrix product alone"]
        lines.append(
            f"| exact search, Q = 1000, N = 50,000, D = 512 | {ours:.2f} s | faiss flat {theirs:.2f} s, "
            f"one matrix product {product:.2f} s | {theirs / ours:.2f} |"
        )
    for features in (8, 32, 512):
        found = by_case[f"local solve, D={features}"]
        for key, name in (("forward", "forward"), ("forward_backward", "forward + backward")):
            times = found[f"{key}_us"]
            best = min(value for method, value in times.items() if method != "torchkrr")
            lines.append(
                f"| local solve, {name}, D = {features} | {times['torchkrr']:.0f} us per query "
                f"| plain torch {best:.0f} us | {found[f'{key}_ratio']:.2f} |"
            )
    for task in ("search", "solve", "layer", "gradient"):
        megabytes = by_case[f"memory of {task}, Q=10000, N=50000, D=512"]["megabytes"]
        lines.append(f"| peak extra memory, {task}, Q = 10,000, N = 50,000, D = 512 | {megabytes:.0f} MB | | |")
    for key, other, fixed, stage in (("queries", "centers", 20_000, "end to end"), ("centers", "queries", 2000, "search")):
        grown = [r for r in records if r["case"].startswith("growth") and r[other] == fixed]
        sizes = np.log([record[key] for record in grown])
        slope = np.polyfit(sizes, np.log([record["seconds"][stage] for record in grown]), 1)[0]
        lines.append(f"| growth with {key}, {stage} | power {slope:.2f} | linear is 1 | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    out = parser.parse_args().out
    records = harness.record(out / "core.jsonl", cases())
    draw(records, out / "core.png")
    text = summarize(records)
    (out / "core.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
