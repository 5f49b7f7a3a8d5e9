"""How do accuracy and time depend on the number of neighbors, the kernel profile and the ridge?

    python -m benchmarks.sensitivity --data FOLDER        # or: make bench-tuning DATA=FOLDER

Test RMSE of the local layer on UCI tables (split 0, standardized features at unit mean distance, constant trend), for every
profile, ridge and number of neighbors, each at the lengthscale that leave-one-out chooses for it; and time to predict,
search and solve apart. Writes `sensitivity.jsonl`.
"""

from __future__ import annotations

import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch

import torchkrr
from benchmarks import harness, uci_data
from torchkrr import functional as F
from torchkrr import kernels, neighbors, transforms

TABLES = ("elevators", "kin40k", "airfoil")
PROFILES = ("Exponential", "Matern32", "Matern52", "Gaussian")
RIDGES = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
NEIGHBORS = (5, 10, 20, 50, 100, 200)
QUERIES = 1000
REPEATS = 2


def cases(data: pathlib.Path) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name in TABLES:
        for profile in PROFILES:
            for ridge in RIDGES:
                yield f"{name}, {profile}, ridge {ridge:g}", partial(run, data, name, profile, ridge)


def run(data: pathlib.Path, name: str, profile: str, ridge: float) -> harness.Record:
    split = uci_data.load(data, name, 0)
    query, targets = split.query[:QUERIES], split.targets[:QUERIES]
    transform = transforms.Compose(transforms.Standardize(), transforms.MeanDistance()).fit(split.centers)
    kernel: kernels.Kernel = getattr(kernels, profile)(input_transform=transform)
    choices = {"kernels": kernel, "ridges": [ridge], "num_neighbors": NEIGHBORS[:-1], "num_samples": 256}
    chosen = torchkrr.select(split.centers, split.values, **choices)  # type: ignore[arg-type]
    found: harness.Record = {"table": name, "profile": profile, "ridge": ridge, "lengthscale": chosen.table[0].lengthscale}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", torchkrr.errors.RidgeRaisedWarning)
        for count in NEIGHBORS:
            search = solve = math.inf
            for _ in range(REPEATS):
                start = time.perf_counter()
                indices = neighbors.nearest(query, split.centers, count, kernel=chosen.kernel)
                middle = time.perf_counter()
                prediction = F.local_kernel_ridge(
                    query, split.centers, split.values, indices, kernel=chosen.kernel, ridge=ridge, trend="constant"
                )
                solve = min(solve, time.perf_counter() - middle)
                search = min(search, middle - start)
            found[f"rmse_{count}"] = uci_data.rmse(prediction, targets)
            found[f"search_us_{count}"] = 1e6 * search / len(query)
            found[f"solve_us_{count}"] = 1e6 * solve / len(query)
    return found


def main() -> None:
    chosen = uci_data.arguments(__doc__)
    harness.record(chosen.out / "sensitivity.jsonl", cases(chosen.data))


if __name__ == "__main__":
    main()
