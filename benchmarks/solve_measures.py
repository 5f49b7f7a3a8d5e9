"""Cases of `benchmarks.peers` on given neighborhoods: the local solve, its stages and its threads; each returns a record."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from benchmarks import harness, methods
from torchkrr import kernels, neighbors, nn

OUTPUTS, RIDGE = 10, 1e-6
SECONDS = 0.3  # a run of the local solve takes about so long: each method gets as many queries as that needs
TRIAL, TRIAL_BYTES = 32, 2**28  # queries at least, unless a peer would hold more than that for them
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, float, float]


def rms(difference: Tensor) -> float:
    return float(difference.double().square().mean().sqrt())


def solve_inputs(num_neighbors: int, features: int, num_centers: int, num_queries: int, *, search: bool = True) -> Inputs:
    torch.manual_seed(0)
    query, centers = torch.randn(num_queries, features), torch.randn(num_centers, features)
    values = torch.randn(num_centers, OUTPUTS)
    lengthscale = float(torch.pdist(centers[:500]).mean())
    if search:
        indices = neighbors.nearest(query, centers, num_neighbors)
    else:  # different rows, without the time of a search
        first = torch.randint(num_centers, (num_queries, 1))
        indices = (first + torch.randperm(num_centers)[:num_neighbors]) % num_centers
    return query, centers, values, indices, lengthscale, RIDGE


def part(inputs: Inputs, count: int) -> Inputs:
    query, centers, values, indices, *rest = inputs
    return query[:count], centers, values, indices[:count], *rest  # type: ignore[return-value]


def gradients(solve: methods.Solve, inputs: Inputs) -> tuple[Tensor, ...]:
    query, centers, values = (tensor.detach().clone().requires_grad_() for tensor in inputs[:3])
    return torch.autograd.grad(solve(query, centers, values, *inputs[3:]).sum(), (query, centers, values))


def double(inputs: Inputs) -> Inputs:
    query, centers, values, *rest = inputs
    return query.double(), centers.double(), values.double(), *rest  # type: ignore[return-value]


def queries_for(run: Callable[[Inputs], object], inputs: Inputs) -> int:
    least = max(1, min(TRIAL, TRIAL_BYTES // (4 * inputs[3].shape[1] ** 2 * inputs[0].shape[1])))
    trial = part(inputs, least)
    run(trial)
    start = time.perf_counter()
    run(trial)
    return max(least, min(len(inputs[0]), int(SECONDS / (time.perf_counter() - start) * least)))


def per_query(
    runs: dict[str, Callable[[Inputs], object]], inputs: Inputs, size: int, repeats: int
) -> tuple[dict[str, float], dict[str, int], float]:
    """Microseconds per query, the number of queries that was timed, and the rate of a matrix product, taken in turns."""
    counts = {name: queries_for(run, inputs) for name, run in runs.items()}
    square = torch.randn(size, size)
    functions: dict[str, Callable[[], object]] = {
        name: partial(run, part(inputs, counts[name])) for name, run in runs.items()
    }
    functions["sgemm"] = lambda: torch.mm(square, square)
    seconds = harness.interleaved(functions, repeats)
    rate = 2 * size**3 / seconds.pop("sgemm")
    return {name: value / counts[name] * 1e6 for name, value in seconds.items()}, counts, rate


def local_solve(
    num_neighbors: int, features: int, num_centers: int, num_queries: int, square: int, repeats: int
) -> harness.Record:
    inputs = solve_inputs(num_neighbors, features, num_centers, num_queries)
    found, missing = methods.available()
    few = part(inputs, 8)
    exact = methods.torchkrr("torch")(*double(few))
    exact_slope = gradients(methods.torchkrr("torch"), double(few))[0]
    differentiable = {way: solve for way, solve in found.items() if methods.METHODS[way].gradients}
    slopes = {way: gradients(solve, few)[0] for way, solve in differentiable.items() if "one output" not in way}

    def forward(solve: methods.Solve, inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return solve(*inputs)

    errors = {}
    for way, solve in found.items():
        result = forward(solve, few)
        errors[way] = rms(result - exact[:, : result.shape[1]])
    runs: dict[str, Callable[[Inputs], object]] = {way: partial(forward, solve) for way, solve in found.items()}
    both: dict[str, Callable[[Inputs], object]] = {way: partial(gradients, solve) for way, solve in differentiable.items()}
    forward_us, counts, rate = per_query(runs, inputs, square, repeats)
    both_us, both_counts, _ = per_query(both, inputs, square, repeats)
    work = num_neighbors**2 * features + num_neighbors**3 / 3
    best = methods.fastest(forward_us)
    return {
        "neighbors": num_neighbors,
        "features": features,
        "centers": num_centers,
        "forward_us": forward_us,
        "forward_backward_us": both_us,
        "queries": counts,
        "queries_backward": both_counts,
        "rmse_against_float64": errors,
        "gradient_error": {way: rms(slope - exact_slope) / rms(exact_slope) for way, slope in slopes.items()},
        "sgemm_gigaflops": rate / 1e9,
        "sgemm_fraction": {name: work / (value * 1e-6) / rate for name, value in best.items()},
        "missing": missing,
    }


def large_solve(num_neighbors: int, features: int, num_centers: int, num_queries: int, repeats: int) -> harness.Record:
    """Many queries among many centers in one call: torchkrr and plain torch only, the others take minutes."""
    inputs = solve_inputs(num_neighbors, features, num_centers, num_queries, search=False)
    found, _ = methods.available({methods.OURS, methods.TORCH_PATH, methods.PLAIN})
    with torch.no_grad():
        seconds = harness.interleaved({way: partial(solve, *inputs) for way, solve in found.items()}, repeats)
    return {"forward_us": {way: value / num_queries * 1e6 for way, value in seconds.items()}, "queries": num_queries}


def stages(num_queries: int, num_centers: int, num_neighbors: int, features: int, repeats: int) -> harness.Record:
    """Seconds in each stage of a prediction by `LocalKernelRidge`; the solve is gather, Gram, factor and predict in one."""
    torch.manual_seed(0)
    query, centers = torch.randn(num_queries, features), torch.randn(num_centers, features)
    values, kernel = torch.randn(num_centers, OUTPUTS), kernels.Exponential(math.sqrt(2 * features))
    layer = nn.LocalKernelRidge(centers, values, num_neighbors, kernel=kernel, ridge=RIDGE)
    solve = methods.torchkrr("auto")
    with torch.no_grad():
        indices = layer.neighbors(query)
    inputs: Inputs = (query, centers, values, indices, math.sqrt(2 * features), RIDGE)
    functions: dict[str, Callable[[], object]] = {
        "embed": lambda: kernel.embed(centers),
        "build": lambda: neighbors.ExactIndex().build(centers),
        "search": lambda: layer.neighbors(query),
        "solve": lambda: solve(*inputs),
        "layer": lambda: layer(query),
    }
    with torch.no_grad():
        seconds = harness.interleaved(functions, repeats)
    both = harness.interleaved({"both": partial(gradients, solve, inputs)}, repeats)["both"]
    return {
        "queries": num_queries,
        "centers": num_centers,
        "neighbors": num_neighbors,
        "features": features,
        "microseconds": {name: value / num_queries * 1e6 for name, value in seconds.items()}
        | {"backward": (both - seconds["solve"]) / num_queries * 1e6},
    }


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_scaling(num_neighbors: int, features: int, num_centers: int, num_queries: int, repeats: int) -> harness.Record:
    inputs = solve_inputs(num_neighbors, features, num_centers, num_queries)
    found, _ = methods.available({methods.OURS, methods.TORCH_PATH, methods.PLAIN})

    def run(solve: methods.Solve, count: int) -> None:
        with threads(count), torch.no_grad():
            solve(*inputs)

    def run_backward(solve: methods.Solve, count: int) -> None:
        with threads(count):
            gradients(solve, inputs)

    cores = os.cpu_count() or 1
    counts = sorted({count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores} | {cores})
    record: harness.Record = {"threads": counts, "features": features}
    for key, function in (("forward_us", run), ("forward_backward_us", run_backward)):
        record[key] = {}
        runs = {(way, count): partial(function, solve, count) for way, solve in found.items() for count in counts}
        seconds = harness.interleaved({f"{way}|{count}": call for (way, count), call in runs.items()}, repeats)
        for count in counts:
            times = {way: seconds[f"{way}|{count}"] / num_queries * 1e6 for way in found}
            for name, value in methods.fastest(times).items():
                record[key].setdefault(name, []).append(value)
    return record
