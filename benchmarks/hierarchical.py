"""What does the coarse part of hierarchical kernel ridge regression bring on features of a network?

    python -m benchmarks.hierarchical --data NAME train_x.npy train_y.npy test_x.npy test_y.npy
    python -m benchmarks.hierarchical --data NAME features.npz      # with these four names inside

Test accuracy and seconds, with the paper's kernel, M = 100 and 1000 coarse points: SK (the local layer), and HAN-SK (the
hierarchical one) with its coarse part fitted to all rows or to the coarse points alone, which is given beside. `--data` may
be repeated. Writes `hierarchical.jsonl` and `hierarchical.md`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from torchkrr import kernels, nn

PARTS = ("train_x", "train_y", "test_x", "test_y")
NUM_NEIGHBORS, NUM_COARSE = 100, 1000
METHODS: dict[str, dict[str, Any] | None] = {
    "SK": None,
    "HAN-SK, least squares": {"num_coarse": NUM_COARSE, "coarse": "least_squares"},
    "HAN-SK, interpolate": {"num_coarse": NUM_COARSE, "coarse": "interpolate"},
}


@functools.lru_cache(maxsize=1)  # the methods are measured one after another on the same data
def load(paths: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features and classes of both parts."""
    if len(paths) == 1:
        file = np.load(paths[0])
        arrays = [file[part] for part in PARTS]
    else:
        arrays = [np.load(path) for path in paths]
    names = np.unique(arrays[1])
    train, test = (torch.from_numpy(arrays[i]).float() for i in (0, 2))
    train_labels, test_labels = (torch.from_numpy(np.searchsorted(names, arrays[i])) for i in (1, 3))
    return train, train_labels, test, test_labels


def cases(data: list[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for name, paths in data:
        for method in METHODS:
            yield f"{name}, {method}", functools.partial(measure, name, paths, method)


@torch.no_grad()
def measure(name: str, paths: tuple[str, ...], method: str) -> harness.Record:
    features, labels, query, answers = load(paths)
    one_hot = torch.nn.functional.one_hot(labels).float()
    kernel = kernels.default_kernel(features)
    options = METHODS[method]
    start = time.perf_counter()
    layer_type = nn.LocalKernelRidge if options is None else nn.HierarchicalKernelRidge
    layer = layer_type(features, one_hot, NUM_NEIGHBORS, kernel=kernel, **(options or {}))
    layer(query[:1])  # embeds the centers, builds the index, fits the coarse part
    fitted = time.perf_counter()
    scores = layer(query)
    record: harness.Record = {
        "data": name,
        "method": method,
        "rows": len(features),
        "features": features.shape[1],
        "queries": len(query),
        "accuracy": accuracy(scores, answers),
        "fit_seconds": fitted - start,
        "predict_seconds": time.perf_counter() - fitted,
    }
    if isinstance(layer, nn.HierarchicalKernelRidge):
        record["coarse_accuracy"] = accuracy(layer.coarse_part(query), answers)
    return record


def accuracy(scores: Tensor, answers: Tensor) -> float:
    return 100 * float((scores.argmax(1) == answers).double().mean())


def report(command: str, records: list[harness.Record]) -> str:
    lines = [
        "# Hierarchical kernel ridge regression on features",
        "",
        f"`{command}`; records and machine in `hierarchical.jsonl`. Test accuracy in percent; M = {NUM_NEIGHBORS}, "
        f"{NUM_COARSE} coarse points. Fitting is the normalizing of the features, the index and the coarse part; the kernel "
        "itself is fitted before.",
        "",
        "| data | rows x features | method | accuracy | coarse part alone | fit, seconds | predict, seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records[1:]:  # behind the environment
        alone = f"{record['coarse_accuracy']:.2f}" if "coarse_accuracy" in record else ""
        size, seconds = (
            f"{record['rows']} x {record['features']}",
            f"{record['predict_seconds']:.1f} for {record['queries']}",
        )
        cells = record["data"], size, record["method"], f"{record['accuracy']:.2f}", alone
        lines.append(f"| {' | '.join(cells)} | {record['fit_seconds']:.1f} | {seconds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", action="append", required=True, metavar="NAME PATH")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    chosen = parser.parse_args()
    data = [(name, tuple(paths)) for name, *paths in chosen.data]
    for name, paths in data:
        if len(paths) not in (1, 4):
            parser.error(f"--data {name} needs one .npz file, or four .npy files ({', '.join(PARTS)}), got {len(paths)}.")
    given = (f"--data {name} {' '.join(pathlib.Path(path).name for path in paths)}" for name, paths in data)
    command = " ".join(("python -m benchmarks.hierarchical", *given))
    records = harness.record(chosen.out / "hierarchical.jsonl", cases(data))
    (chosen.out / "hierarchical.md").write_text(report(command, records))


if __name__ == "__main__":
    main()
