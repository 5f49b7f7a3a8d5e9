"""Cases of `benchmarks.peers` with a search in them: pipelines, memory, single queries, grids; each returns a record."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from benchmarks import harness, methods, optional, pipelines
from benchmarks.solve_measures import OUTPUTS, RIDGE, rms
from torchkrr import backend_report, kernels, neighbors, nn
from torchkrr.core import compiled


def peers() -> harness.Record:
    return {"versions": optional.versions(), "backend": str(backend_report())}


def end_to_end(
    num_queries: int, num_centers: int, features: int, num_neighbors: int, names: tuple[str, ...], repeats: int
) -> harness.Record:
    problem = pipelines.make_problem(num_queries, num_centers, features, num_neighbors)
    found, missing = pipelines.available(problem, names)
    results: dict[str, Tensor] = {}

    def run(name: str) -> None:
        with torch.no_grad():
            results[name] = found[name]()(problem.query)

    seconds = harness.interleaved({name: partial(run, name) for name in found}, repeats)
    few = min(500, num_queries)
    in_double = problem._replace(centers=problem.centers.double(), values=problem.values.double())
    references: dict[str, Tensor] = {}
    for formula in ("exponential", "Gaussian"):
        with torch.no_grad():
            references[formula] = pipelines.torchkrr(in_double, formula)(problem.query[:few].double())
    formulas = {name: formula for name, formula in pipelines.FORMULAS.items() if name in found}
    return {
        "queries": num_queries,
        "centers": num_centers,
        "features": features,
        "repeats": repeats,
        "seconds": seconds,
        "rmse": {name: rms(results[name] - problem.truth) for name in found if name != pipelines.FLAT},
        "difference_to_float64": {n: rms(results[n][:few].double() - references[f]) for n, f in formulas.items()},
        "missing": missing,
    }


def memory(name: str, *sizes: int) -> harness.Record:
    """Peak memory is that of a process."""
    command = [sys.executable, "-m", "benchmarks.peers_memory", name, *map(str, sizes)]
    found: harness.Record = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def one_query(num_centers: int, features: int, num_neighbors: int, repeats: int) -> harness.Record:
    problem = pipelines.make_problem(1, num_centers, features, num_neighbors)
    names = (pipelines.OURS, pipelines.OURS_GAUSSIAN, pipelines.SCIPY, pipelines.KNN, pipelines.FLAT)
    found, missing = pipelines.available(problem, names)
    ready = {name: build() for name, build in found.items()}
    ready["torchkrr, default kernel"] = nn.LocalKernelRidge(problem.centers, problem.values, num_neighbors)
    times: dict[str, list[float]] = {name: [] for name in ready}
    with torch.no_grad():
        for repeat in range(repeats + 20):
            for name, predict in ready.items():
                start = time.perf_counter()
                predict(problem.query)
                if repeat >= 20:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {
        "best_ms": {name: min(values) for name, values in times.items()},
        "median_ms": {name: statistics.median(values) for name, values in times.items()},
        "missing": missing,
    }


def grid(coarse: int, fine: int, num_neighbors: int, repeats: int) -> harness.Record:
    """Queries on a fine grid, each with the neighbors of the middle of its cell of a coarse grid of centers."""

    def points(side: int) -> Tensor:
        line = (torch.arange(side) + 0.5) / side
        return torch.cartesian_prod(line, line)

    centers, query = points(coarse), points(fine)
    values = torch.sin(6 * centers[:, :1] + torch.arange(OUTPUTS)) * torch.cos(5 * centers[:, 1:])
    lines = (query * coarse).long()
    indices = neighbors.nearest(centers, centers, num_neighbors)[lines[:, 0] * coarse + lines[:, 1]]
    solve = methods.torchkrr("auto")
    results: dict[str, Tensor] = {}

    def run(name: str, worthwhile: float) -> None:
        with mock.patch.object(compiled, "WORTHWHILE", worthwhile), torch.no_grad():
            results[name] = solve(query, centers, values, indices, 0.5, RIDGE)

    runs: dict[str, Callable[[], object]] = {
        "shared": partial(run, "shared", compiled.WORTHWHILE),
        "not shared": partial(run, "not shared", float("inf")),
    }
    seconds = harness.interleaved(runs, repeats)
    return {
        "queries": len(query),
        "neighborhoods": len(torch.unique(indices, dim=0)),
        "microseconds": {name: value / len(query) * 1e6 for name, value in seconds.items()},
        "difference": rms(results["shared"] - results["not shared"]),
    }


def stream(num_centers: int, features: int, num_neighbors: int, places: int, rounds: int, repeats: int) -> harness.Record:
    """Single queries, one call each, that come back to the same places."""
    problem = pipelines.make_problem(places, num_centers, features, num_neighbors)

    def layer(keep: int) -> nn.LocalKernelRidge:
        kernel = kernels.Exponential(problem.lengthscale)
        return nn.LocalKernelRidge(
            problem.centers, problem.values, num_neighbors, kernel=kernel, ridge=RIDGE, keep_factors=keep
        )

    layers = {"kept": layer(places), "not kept": layer(0)}

    def run(predict: nn.LocalKernelRidge) -> None:
        with torch.no_grad():
            for _ in range(rounds):
                for row in problem.query:
                    predict(row)

    seconds = harness.interleaved({name: partial(run, predict) for name, predict in layers.items()}, repeats)
    return {"milliseconds": {name: value / places / rounds * 1e3 for name, value in seconds.items()}}
